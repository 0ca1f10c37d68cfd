"""`invert(module, outputs)` and nothing else: the right answer, or a word about why not."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import torchlift as tl
from torchlift.core.errors import TorchliftError


def outputs(module: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return module.eval()(x)


def misses(parts: list[nn.Module], seed: int) -> Tensor:
    """‖N(x) − y‖/‖y‖ of eight inputs."""
    module = nn.Sequential(*parts)
    y = outputs(module, torch.randn(8, 12, generator=torch.Generator().manual_seed(seed)))
    return tl.invert(module, y, progress=False).residual / y.norm(dim=1)


def test_one_start_is_not_enough_for_networks_with_kinks() -> None:
    """Most runs from a single start end in a minimum that does not fit."""
    missed = []
    for seed in range(3):
        torch.manual_seed(seed)
        norms = [nn.Linear(12, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 24)]
        plain = [nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 24)]
        missed += [misses(norms, seed), misses(plain, seed)]
    assert int((torch.cat(missed) > 1e-2).sum()) <= 3


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.LeakyReLU()])
def test_one_layer_is_inverted_through_its_convex_lifted_problem(activation: nn.Module) -> None:
    """½‖σ(Wx + b) − y‖² has other minima than the best, the lifted problem has none: y = σ(Wx + b) is reached."""
    torch.manual_seed(1)
    layer = nn.Sequential(nn.Linear(100, 120), activation)
    y = outputs(layer, torch.randn(8, 100))
    start = torch.zeros(8, 100)
    alone = tl.invert(layer, y, start=start, algorithm="quasi-newton", progress=False).residual / y.norm(dim=1)
    assert isinstance(activation, nn.LeakyReLU) or float(alone.max()) > 0.05
    assert float((tl.invert(layer, y, progress=False).residual / y.norm(dim=1)).max()) < 5e-3


class Magnitudes(nn.Module):
    """|F Wx|, which is linear along every ray from 0, and flat at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(self.layer(x)).abs()


def test_a_layer_that_is_linear_along_rays_is_tried_from_several_starts() -> None:
    torch.manual_seed(0)
    module = Magnitudes()
    y = outputs(module, torch.randn(6, 5))
    inv = tl.invert(module, y, input_shape=(5,), progress=False)
    assert float((inv.residual / y.norm(dim=1)).max()) < 1e-3


def test_inputs_that_outputs_leave_open_are_said_to_be_open() -> None:
    """A norm at the end forgets mean and length of what comes in: the fit is perfect and the input is another."""
    torch.manual_seed(0)
    forgetful = nn.Sequential(nn.Linear(12, 12), nn.LayerNorm(12))
    x = torch.randn(4, 12)
    inv = tl.invert(forgetful, outputs(forgetful, x), progress=False)
    assert float(inv.residual.max()) < 1e-3 and float((inv.x - x).norm()) > 0.1 * float(x.norm())
    assert "4 of 4 samples that were looked at are not determined" in inv.message
    # a prior that decides leaves nothing open
    held = tl.invert(forgetful, outputs(forgetful, x), tl.priors.Tikhonov(), 0.1, progress=False)
    assert "determined" not in held.message
    honest = nn.Sequential(nn.Linear(12, 40), nn.Tanh(), nn.Linear(40, 30))
    inv = tl.invert(honest, outputs(honest, x), progress=False)
    assert float((inv.x - x).norm()) < 1e-2 * float(x.norm()) and "determine" not in inv.message


def test_fewer_outputs_than_inputs_without_a_prior() -> None:
    torch.manual_seed(0)
    few = nn.Sequential(nn.Linear(12, 9), nn.Tanh())
    y = outputs(few, torch.randn(3, 12))
    assert "Outputs of 9 entries cannot determine inputs of 12" in tl.invert(few, y, progress=False).message
    assert "cannot" not in tl.invert(few, y, tl.priors.Tikhonov(), 1e-3, progress=False).message


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_inverted_in_single(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 30)).to(dtype)
    x = torch.randn(3, 6).to(dtype)
    inv = tl.invert(module, outputs(module, x), progress=False)
    assert inv.x.dtype == torch.float32 and module[0].weight.dtype == dtype
    assert float((inv.x - x).norm()) < 0.02 * float(x.norm())


def test_statistics_of_the_batch_are_refused() -> None:
    """Images of a batch would change each other, and outputs of a trained network come from other statistics."""
    module = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU())
    y = outputs(module, torch.randn(4, 5))
    with pytest.raises(TorchliftError, match=r"BatchNorm1d '1' with those of the batch. Call `.eval\(\)` first"):
        tl.invert(module.train(), y)
    assert tl.invert(module.eval(), y, progress=False).x.shape == (4, 5)


def test_memory_decides_how_many_starts_there_are() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 15))
    y = outputs(module, torch.randn(4, 6))
    assert tl.invert(module, y, memory_limit=20_000, progress=False).x.shape == (4, 6)


def test_a_noise_level_that_nothing_uses_is_said() -> None:
    """With neither a prior nor a decoder there is no weight to choose, and noise is fitted as data are."""
    torch.manual_seed(0)
    net = nn.Linear(4, 8)
    y = net(torch.randn(5, 4)).detach() + 0.1 * torch.randn(5, 8)
    said = "the noise was fitted, too. Pass a prior"
    assert said in tl.invert(net, y, noise_level=0.1, progress=False).message
    assert said not in tl.invert(net, y, progress=False).message
    assert said not in tl.invert(net, y, tl.priors.Tikhonov(), noise_level=0.1, progress=False).message


def test_outputs_that_hardly_depend_on_the_input_are_no_excuse() -> None:
    """Behind many sigmoids all outputs are alike: small residuals in comparison with ‖y‖ are those of any input."""
    torch.manual_seed(0)
    sizes = [12, 64, 64, 64, 64, 48]
    parts = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.Sigmoid())][:-1]
    module, x = nn.Sequential(*parts), torch.randn(4, 12)
    inv = tl.invert(module, outputs(module, x), progress=False)
    assert float((inv.x - x).norm()) < 1e-2 * float(x.norm())
    assert "not determined" not in inv.message
    small = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 48))
    inv = tl.invert(small, outputs(small, 1e-4 * x), progress=False)
    assert float((inv.x - 1e-4 * x).norm()) < 1e-2 * float(1e-4 * x.norm())


def test_a_start_that_fits_has_converged() -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 15)), torch.randn(3, 6)
    assert tl.invert(module, outputs(module, x), start=x, progress=False).converged


def test_outputs_that_are_not_met_are_told() -> None:
    """Converged or not: no input leads to them."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 20), nn.Sigmoid())
    y = 3 * torch.randn(3, 20)
    inv = tl.invert(module, y, progress=False)
    assert inv.converged
    assert "The outputs of 3 of 3 samples are not met: the residual is more than 30 %" in inv.message
    assert "Do they come from this network, or is another start needed?" in inv.message
    held = tl.invert(module, y, tl.priors.Tikhonov(), noise_level=2.0, progress=False)
    assert "not met" not in held.message  # the noise explains it
    reached = tl.invert(module, outputs(module, torch.randn(3, 6)), progress=False)
    assert "not met" not in reached.message


def test_volumes_are_tried_from_grey_too() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv3d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv3d(8, 16, 3, 1, 1), nn.Tanh())
    x = torch.rand(2, 1, 8, 8, 8)
    inv = tl.invert(module, outputs(module, x), input_shape=(1, 8, 8, 8), progress=False)
    assert float((inv.x - x).norm()) < 0.5 * float(x.norm())  # 0.68 from black alone


class Spectrum(nn.Module):
    """|Wx| with complex W: nothing but the inputs says that they are real."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 20, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(self.weight.dtype) @ self.weight).abs()


def test_complex_parameters_do_not_make_inputs_complex() -> None:
    torch.manual_seed(0)
    module, x = Spectrum(), torch.randn(3, 6)
    y = outputs(module, x)
    inv = tl.invert(module, y, input_shape=(6,), progress=False)
    assert float((inv.residual / y.norm(dim=1)).max()) < 1e-3


def test_parametrised_and_compiled_modules() -> None:
    torch.manual_seed(0)
    first = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 32))
    x = torch.randn(3, 6)
    for module in (
        nn.Sequential(first, nn.Tanh(), nn.Linear(32, 20)),
        torch.compile(nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 20)), backend="eager"),
    ):
        inv = tl.invert(module, outputs(module, x), progress=False)
        assert float((inv.x - x).norm()) < 1e-3 * float(x.norm())


def test_linear_layers_of_any_condition() -> None:
    """Square ones, and one that standardises columns of very different size by itself."""
    torch.manual_seed(0)
    square, x = nn.Linear(100, 100), torch.randn(16, 100)
    found = tl.invert(square, outputs(square, x), progress=False)
    assert float((found.x - x).norm() / x.norm()) < 5e-3
    layer, sizes = nn.Linear(13, 20), torch.tensor([0.1, *[1.0] * 10, 15.0, 300.0])
    x = sizes * (2 + torch.randn(8, 13))
    with torch.no_grad():
        layer.weight.div_(sizes)
    found = tl.invert(layer, outputs(layer, x), progress=False)
    assert float(((found.x - x) / sizes).abs().max()) < 2e-2


def smooth_images() -> Tensor:
    coarse = torch.rand(4, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    return nn.functional.interpolate(coarse, size=(24, 24), mode="bicubic").clamp(0, 1)


def encoder(channels: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(channels, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8 * channels, 3, padding=1))


def test_the_unit_of_the_inputs_does_not_matter() -> None:
    images, errors = smooth_images(), []
    for unit in (1.0, 255.0, 65535.0):
        network = encoder(3)
        with torch.no_grad():
            network[0].weight.div_(unit)
        found = tl.invert(network, outputs(network, unit * images), input_shape=(3, 24, 24), progress=False)
        errors.append(float((found.x / unit - images).square().mean()))
    assert max(errors) < 1.3 * min(errors)


class WithoutChannels(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images[:, None])


def test_images_without_channels_are_images() -> None:
    grey, network = smooth_images()[:, 0], encoder(1)
    y = outputs(network, grey[:, None])
    plain = tl.invert(WithoutChannels(network), y, input_shape=(24, 24), progress=False)
    usual = tl.invert(network, y, input_shape=(1, 24, 24), progress=False)
    torch.testing.assert_close(plain.x, usual.x[:, 0], rtol=1e-3, atol=1e-3)


def test_outputs_of_one_number() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(13, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))
    y = outputs(network, torch.randn(5, 13))
    assert float(tl.invert(network, y, progress=False).residual.max()) < 1e-3


def test_transformers_that_leave_directions_open_are_said_to() -> None:
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(24, 4, 48, dropout=0.0, batch_first=True)  # its norm forgets means and sizes
    network = nn.Sequential(nn.Linear(24, 24), layer).eval()
    x = torch.randn(4, 16, 24)
    assert "not determined" in tl.invert(network, outputs(network, x), progress=False).message


class Logarithm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(x)


class Direction(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.norm(dim=1, keepdim=True)


def test_first_guesses_outside_of_the_domain() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(13, 20), 0.5 + torch.rand(4, 13)
    logarithms = nn.Sequential(Logarithm(), layer)
    found = tl.invert(logarithms, outputs(logarithms, x), progress=False)
    assert "at the first guess of 4 of them are not finite" in found.message
    found = tl.invert(logarithms, outputs(logarithms, x), start=torch.ones(4, 13), progress=False)
    assert float((found.x - x).norm() / x.norm()) < 1e-2
    directions = nn.Sequential(Direction(), layer)  # nan at 0, and its length is lost
    assert (
        "4 of 4 samples that were looked at are not determined"
        in tl.invert(directions, outputs(directions, x), progress=False).message
    )


def test_more_noise_than_was_named_is_said() -> None:
    torch.manual_seed(0)
    layer, prior = nn.Linear(13, 200), tl.priors.Tikhonov()
    y = outputs(layer, torch.randn(4, 13))
    noisy = y + 0.1 * torch.randn(y.shape)
    assert "is there more of it?" in tl.invert(layer, noisy, prior, noise_level=0.01, progress=False).message
    assert "is there more of it?" not in tl.invert(layer, noisy, prior, noise_level=0.1, progress=False).message


def test_a_batch_axis_too_few_or_too_many() -> None:
    layer, convolution = nn.Linear(13, 20), nn.Conv2d(3, 8, 3)
    with pytest.raises(TorchliftError, match=r"invert start: expected one input for each output.*start\[None\]"):
        tl.invert(layer, torch.zeros(4, 20), start=torch.zeros(13))
    with pytest.raises(TorchliftError, match="leave the axis of the batch out"):
        tl.invert(convolution, torch.zeros(1, 8, 30, 30), input_shape=(1, 3, 32, 32))
