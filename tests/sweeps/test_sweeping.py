"""`sweeping`: any module, its forward pass untouched, and back-propagation as the perturbation vanishes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import torchlift as tl
from contracts.network_cases import CASES
from torchlift.lab.benchmarks.step_modules import Depthwise, GatedMLP, Transformer, UNet, residual_18
from torchlift.prox import ACTIVATIONS
from torchlift.sweeps import Centring, Perturbation, checkpoint_contexts, sweeping
from torchlift.sweeps.activation import as_called, perturbed
from torchlift.sweeps.perturbation import Activation

SMALL = 1e-5


def tiny() -> sweeping:
    return sweeping(Perturbation(fixed=SMALL))


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradients(
    module: nn.Module, context: AbstractContextManager[Any], y: Tensor, call: Callable[..., Tensor] | None = None
) -> list[Tensor]:
    """Of the mean square of the outputs, in all parameters that have one."""
    module.zero_grad()
    with context:
        loss = (module if call is None else call)(y).square().mean()
    loss.backward()
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


def distance(one: list[Tensor], other: list[Tensor]) -> float:
    """Largest difference over the largest entry."""
    largest = max(float(a.abs().max()) for a in one)
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True)) / largest


class Functional(nn.Module):
    """Functions, methods, keyword arguments and in-place forms, all in one forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(7))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(input=self.layers[0](x))
        x = self.layers[1](x).tanh()
        x = F.leaky_relu(self.layers[2](x), 0.2)
        x = torch.relu_(self.layers[3](x))
        x = F.elu(self.layers[4](x), inplace=True)
        x = self.layers[5](x)
        x.sigmoid_()
        return F.softmax(self.layers[6](x), dim=-1) + F.softplus(x)


class Shared(nn.Module):
    """One layer in three places."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(F.relu(self.layer(F.relu(self.layer(x)))))


class Learned(nn.Module):
    """Learned thresholds of our own activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 3)
        self.log = nn.Parameter(torch.tensor([-1.0, -2.0, -1.5, -0.5]))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(tl.SoftThreshold(self.log.exp(), validate=False)(self.first(x)))


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "functions and methods": (Functional, (6,)),
    "shared weights": (Shared, (5,)),
    "learned thresholds": (Learned, (5,)),
    "batch norm, in-place ReLU, skips": (lambda: residual_18(width=4), (3, 16, 16)),
    "U-Net with max-pooling": (lambda: UNet(4), (1, 8, 8)),
    "transformer": (lambda: Transformer(8), (28, 28)),
    "depthwise, ReLU6": (lambda: Depthwise(4, 1), (3, 8, 8)),
    "GELU, layer norm": (lambda: GatedMLP(8), (784,)),
    "PReLU": (lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU(4), nn.Linear(4, 2)), (4,)),
    "one dimension": (lambda: nn.Sequential(nn.Conv1d(1, 3, 3), nn.Hardtanh(), nn.Flatten(), nn.Linear(12, 2)), (1, 6)),
}


@pytest.mark.parametrize("name", MODULES)
def test_tends_to_back_propagation(name: str) -> None:
    torch.manual_seed(0)
    build, shape = MODULES[name]
    module, y = build().double(), randn(1, 5, *shape)
    assert distance(gradients(module, nullcontext(), y), gradients(module, tiny(), y)) < 1e-6


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tends_to_back_propagation_in_every_network(case: Any) -> None:
    network = case.build().double()
    y, context = randn(2, 4, *network.in_shape), case.context(4)

    def call(inputs: Tensor) -> Tensor:
        return network(inputs, context)

    assert distance(gradients(network, nullcontext(), y, call), gradients(network, tiny(), y, call)) < 1e-6


@pytest.mark.parametrize("activation", [a for kind in ACTIVATIONS.values() for a in kind.examples()], ids=repr)
def test_response_of_every_activation(activation: tl.prox.ProximalActivation) -> None:
    """The node gives exactly the two-sided difference, and the forward pass is σ itself."""
    v, g, s = randn(3, 6, 3), randn(4, 6, 3), 0.3
    leaf = v.clone().requires_grad_()
    value = perturbed(activation, leaf, Perturbation(fixed=s))
    assert torch.equal(value, activation(v))
    (residual,) = torch.autograd.grad(value, leaf, g)
    expected = g if isinstance(activation, tl.Identity) else (activation(v + s * g) - activation(v - s * g)) / (2 * s)
    assert torch.allclose(residual, expected, atol=1e-12)


def test_a_signal_passes_where_the_activation_is_flat() -> None:
    dead = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        dead[0].bias.fill_(-50)  # type: ignore[union-attr]
    y = randn(5, 8, 3)
    silent, heard = gradients(dead, nullcontext(), y), gradients(dead, sweeping(), y)
    assert not silent[0].any() and heard[0].any()


def test_dead_layers_are_probed_just_far_enough() -> None:
    """m is the least power of two for which a tenth of the entries respond."""
    v, g = -1 - randn(6, 50, 20).abs(), randn(7, 50, 20)
    relu = Activation(torch.relu, torch.relu_, True)
    residual, size = Perturbation().response(relu, v, g)
    base = 0.1 * float(v.square().mean().sqrt() / g.square().mean().sqrt())
    power = size / base

    def share(s: float) -> float:
        return float((torch.relu(v + s * g) != torch.relu(v - s * g)).double().mean())

    assert power == pytest.approx(2 ** round(torch.log2(torch.tensor(power)).item()))
    assert share(base * power) >= 0.1 > share(base * power / 2)
    assert torch.allclose(residual, (torch.relu(v + size * g) - torch.relu(v - size * g)) / (2 * size))


def test_layers_that_cannot_be_revived_stay_where_they_are() -> None:
    flat = Activation(torch.zeros_like, torch.zeros_like, True)
    residual, size = Perturbation().response(flat, randn(8, 5, 4), randn(9, 5, 4))
    assert not residual.any() and size < 1


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_size_of_the_signal_does_not_matter(scale: float) -> None:
    v, g, sigma = randn(10, 30, 8), randn(11, 30, 8), Activation(torch.tanh, torch.tanh_, True)
    plain, _ = Perturbation().response(sigma, v, g)
    scaled, _ = Perturbation().response(sigma, v, scale * g)
    assert torch.allclose(scaled / scale, plain, rtol=1e-9)


@pytest.mark.parametrize("shape", [(30, 8), (12, 5, 6), (20, 3, 20, 30)])
@pytest.mark.parametrize("function", [torch.relu, torch.tanh, F.softshrink])
def test_samples_that_hold_most_of_the_signal_are_moved_three_times_as_far_as_others_at_most(
    function: Callable[[Tensor], Tensor], shape: tuple[int, ...]
) -> None:
    """s_i = s min(1, 3 rms g / rms g_i), whatever the shape; R is the difference with these sizes."""
    v, g, sigma = randn(35, *shape), randn(36, *shape), as_called(function, (), {})
    g[1] *= 1000
    residual, size = Perturbation().response(sigma, v, g)
    assert isinstance(size, Tensor) and size.shape == (shape[0], *[1] * (len(shape) - 1))
    assert torch.allclose(residual, (function(v + size * g) - function(v - size * g)) / (2 * size))
    others = torch.cat([size[:1], size[2:]])
    assert bool((others == others[0]).all())
    statistics = 0.3 if v[0].numel() >= 1024 else 1e-12  # of large samples only some entries are looked at
    moved = float((size[1] * g[1]).square().mean().sqrt() / v.square().mean().sqrt())
    assert moved == pytest.approx(0.3, rel=statistics)
    assert float(others[0]) == pytest.approx(0.1 * float(v.square().mean().sqrt() / g.square().mean().sqrt()), rel=0.3)
    _, alike = Perturbation(outlier=1e9).response(sigma, v, g)
    assert alike == pytest.approx(float(others[0]))


def test_functions_that_treat_entries_together_have_one_size() -> None:
    """Along whichever axis: with many sizes the difference would not tend to the derivative."""
    v, g = randn(37, 30, 8), randn(38, 30, 8)
    g[0] *= 1000
    _, size = Perturbation().response(as_called(F.softmax, (), {"dim": 0}), v, g)
    assert isinstance(size, float)


def test_the_last_samples_that_are_not_fitted_lead_deep_networks_the_right_way() -> None:
    """Two of 200 samples hold the signal: moved like all others, they go so far that ten layers lose the gradient."""
    y = tl.data.load_digits("train").images[:200].flatten(1).double()
    torch.manual_seed(0)
    layers = [m for n in (784, *[64] * 8) for m in (nn.Linear(n, 64), nn.ReLU())]
    network = nn.Sequential(*layers, nn.Linear(64, 10)).double()
    tl.initialise_weights(network, "lsuv", y)
    signals = randn(39, 200, 10)
    signals[2:] *= 1e-3

    def first_gradient(context: Any) -> Tensor:
        with context:
            loss = (network(y) * signals).sum()
        return torch.autograd.grad(loss, network[0].weight)[0].flatten()  # type: ignore[arg-type]

    expected = first_gradient(nullcontext())
    ours, alike = (
        float(torch.cosine_similarity(expected, first_gradient(sweeping(Perturbation(outlier=most))), dim=0))
        for most in (3.0, 1e9)
    )
    assert ours > 0.75 and ours > alike + 0.2


def test_no_signal_gives_no_response() -> None:
    residual, _ = Perturbation().response(
        Activation(torch.relu, torch.relu_, True), randn(12, 4, 3), torch.zeros(4, 3).double()
    )
    assert not residual.any()


def test_statistics_of_shards_are_those_of_the_batch() -> None:
    """Halves that exchange means find the size of the whole."""
    v, g, sigma = randn(13, 40, 3, 20, 30) - 1.5, randn(14, 40, 3, 20, 30), Activation(torch.relu, torch.relu_, True)
    whole, size = Perturbation().response(sigma, v, g)

    def means_of_the_whole() -> Callable[[Tensor], Tensor]:
        record: list[Tensor] = []
        Perturbation().response(sigma, v, g, lambda t: record.append(t.clone()) or t)  # type: ignore[func-returns-value]
        exchanged = iter(record)
        return lambda _: next(exchanged)

    half, own = Perturbation().response(sigma, v[:20], g[:20], means_of_the_whole())
    assert own == pytest.approx(size, rel=1e-12) and torch.allclose(half, whole[:20], atol=1e-12)


def test_numbers_need_not_be_read() -> None:
    """The way without the host, for other devices and transforms, finds the same size where the layer responds."""
    v, g, sigma = randn(15, 40, 20), randn(16, 40, 20), Activation(torch.relu, torch.relu_, True)
    host, size = Perturbation().response(sigma, v, g)
    device, other = Perturbation().response(sigma, v, g, host=False)
    assert torch.allclose(other.flatten(), torch.tensor(size).double()) and torch.allclose(device, host)
    few = g * torch.where(torch.arange(40) < 3, 100.0, 1.0)[:, None]
    host, size = Perturbation().response(sigma, v, few)
    device, other = Perturbation().response(sigma, v, few, host=False)
    assert torch.allclose(other, size) and torch.allclose(device, host)
    dead = -5 - v.abs()
    residual, _ = Perturbation().response(sigma, dead, g, host=False)
    assert 0.1 <= float((residual != 0).double().mean()) < 0.9


@pytest.mark.parametrize(
    "network", [case for case in CASES if case.name.startswith(("mlp", "perceptron"))], ids=lambda c: c.name
)
def test_closed_form_is_the_same(network: Any) -> None:
    """Chains of dense layers are one node; their plain module has a node per layer."""
    chain = network.build().double()
    plain, y = chain.to_sequential(), randn(17, 6, *chain.in_shape)
    own = chain.scatter(
        dict(zip([n for n, _ in chain.named_parameters()], gradients(chain, sweeping(), y), strict=True))
    )
    assert (
        distance(gradients(plain, sweeping(), y), [own[name].reshape(p.shape) for name, p in plain.named_parameters()])
        < 1e-12
    )


def test_closed_form_gives_the_gradient_of_the_inputs() -> None:
    chain = tl.networks.MLP([4, 5, 3], tl.Tanh()).double()
    plain = chain.to_sequential()
    found = []
    for module in (chain, plain):
        y = randn(18, 6, 4).requires_grad_()
        with sweeping():
            module(y).square().mean().backward()
        found.append(y.grad)
    assert torch.allclose(found[0], found[1], atol=1e-14)


# -- what PyTorch offers ----------------------------------------------------------------------------------------------


def test_gradients_accumulate() -> None:
    module, y = Functional().double(), randn(19, 8, 6)
    with tiny():
        module(y).square().mean().backward()
        once = [p.grad.clone() for p in module.parameters() if p.grad is not None]
        module(y).square().mean().backward()
    assert distance([2 * g for g in once], [p.grad for p in module.parameters() if p.grad is not None]) < 1e-12


def test_checkpointed_blocks() -> None:
    module, y = Shared().double(), randn(20, 8, 5).requires_grad_()

    def again(x: Tensor) -> Tensor:
        return checkpoint(module, x, use_reentrant=False, context_fn=checkpoint_contexts)  # type: ignore[return-value]

    assert distance(gradients(module, sweeping(), y), gradients(module, sweeping(), y, again)) < 1e-14
    plain = gradients(module, nullcontext(), y)
    assert distance(plain, gradients(module, nullcontext(), y, again)) < 1e-14
    with pytest.raises(Exception, match="different number of tensors"):
        gradients(module, sweeping(), y, lambda x: checkpoint(module, x, use_reentrant=False))  # type: ignore[arg-type,return-value]


def test_functional_transforms() -> None:
    module, y = Shared().double(), randn(21, 6, 5)
    parameters = {name: p.detach() for name, p in module.named_parameters()}

    def loss(values: dict[str, Tensor], sample: Tensor) -> Tensor:
        return torch.func.functional_call(module, values, (sample,)).square().mean()

    expected = gradients(module, nullcontext(), y)
    with tiny():
        whole = torch.func.grad(loss)(parameters, y)
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, y)
    assert distance(expected, list(whole.values())) < 1e-6
    assert distance(expected, [g.mean(0) for g in each.values()]) < 1e-6
    with sweeping():
        assert all(
            g.isfinite().all()
            for g in torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, y).values()
        )


@pytest.mark.filterwarnings("ignore")
def test_compiled_modules() -> None:
    module, y = Shared().double(), randn(22, 6, 5)
    compiled = torch.compile(module, backend="aot_eager")
    assert distance(gradients(module, nullcontext(), y), gradients(module, tiny(), y, compiled)) < 1e-6


def test_autocast() -> None:
    torch.manual_seed(0)
    module, y = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2)), randn(23, 64, 6).float()
    exact = gradients(module, sweeping(), y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = gradients(module, sweeping(), y)
    assert distance(exact, rounded) < 0.05


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [torch.relu, F.softshrink])
def test_closed_forms_in_half_precision_round_no_more_than_their_result(
    function: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    v, g = randn(31, 400).to(dtype), randn(32, 400).to(dtype)
    for size in (0.1, 1.0, 10.0):
        difference = as_called(function, (), {}).difference
        assert difference is not None
        residual = difference(v, g, size)
        high, low = (function(v.double() + sign * size * g.double()) for sign in (1, -1))
        assert residual.dtype is dtype
        error = (residual.double() - (high - low) / (2 * size)).abs()
        assert bool((error <= 2 * torch.finfo(dtype).eps * g.double().abs()).all())


def test_sizes_do_not_depend_on_the_order_of_memory() -> None:
    """Statistics look at some entries of every sample, of all channels and columns, in either order."""
    v, g, sigma = randn(33, 20, 16, 24, 24), randn(34, 20, 16, 24, 24), Activation(torch.tanh, torch.tanh_, True)
    v[:, ::2] *= 5
    v[..., 0] = 0
    every = 0.1 * float(v.square().mean().sqrt() / g.square().mean().sqrt())
    for order in (torch.contiguous_format, torch.channels_last):
        _, size = Perturbation().response(sigma, v.contiguous(memory_format=order), g.contiguous(memory_format=order))
        assert size == pytest.approx(every, rel=0.1)


def test_mean_inputs_in_half_precision_are_those_of_single() -> None:
    layer, u = nn.Conv2d(3, 4, 3, padding=1), torch.rand(50, 3, 64, 64)
    means = []
    for inputs in (u.bfloat16(), u.bfloat16().float()):
        centring = Centring(layer)
        with torch.autocast("cpu", torch.bfloat16):
            layer(inputs).float().sum().backward()
        means.append(centring.take()[0].inputs)
    assert means[0].dtype is torch.float32
    assert torch.allclose(*means, rtol=1e-5)


def test_no_other_device_waits() -> None:
    """On the meta device there are no numbers to read."""
    module = Functional().to("meta")
    optimiser = tl.RelativeStep(module)
    for _ in range(3):
        with sweeping():
            loss = module(torch.empty(4, 6, device="meta")).square().mean()
        loss.backward()
        optimiser.step()


# -- manners ----------------------------------------------------------------------------------------------------------


def test_nothing_is_left_behind() -> None:
    module = residual_18(width=4)
    before = copy.deepcopy(module)
    state, attributes = module.state_dict().keys(), {name: set(vars(part)) for name, part in module.named_modules()}
    y = torch.rand(4, 3, 8, 8)
    gradients(module, sweeping(), y)
    assert module.state_dict().keys() == state
    assert {name: set(vars(part)) for name, part in module.named_modules()} == attributes
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    plain = gradients(before, nullcontext(), y)
    before.load_state_dict(module.state_dict())
    again = gradients(before, nullcontext(), y)
    assert len(plain) == len(again)


def test_outputs_and_in_place_effects_are_those_of_torch() -> None:
    module, y = Functional(), torch.rand(5, 6)
    with sweeping():
        inside = module(y)
    assert torch.equal(inside, module(y))
    x = torch.tensor([-1.0, 2.0], requires_grad=True)
    with sweeping():
        v = x * 1
        returned = F.relu(v, inplace=True)
    assert returned is v and v.tolist() == [0.0, 2.0]


def test_only_proximal_functions_are_perturbed_unless_asked() -> None:
    x = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)

    def slope(context: sweeping, function: Callable[[Tensor], Tensor]) -> float:
        with context:
            return float(torch.autograd.grad(function(x), x)[0])

    coarse = Perturbation(fixed=0.5)
    exact = slope(tiny(), F.gelu)
    assert slope(sweeping(coarse), F.gelu) == pytest.approx(exact, abs=1e-9)
    difference = float((F.gelu(x + 0.5) - F.gelu(x - 0.5)).detach())
    assert slope(sweeping(coarse, also=(F.gelu,)), F.gelu) == pytest.approx(difference)
    stretched = slope(sweeping(coarse), lambda v: F.elu(v, 3.0))
    assert stretched == pytest.approx(1.0)  # alpha > 1 stretches, so it is no proximal map


def test_bad_settings_are_refused() -> None:
    for settings, word in (
        ({"gamma": 0}, "gamma"),
        ({"share": 2}, "share"),
        ({"limit": 0.5}, "limit"),
        ({"fixed": -1.0}, "fixed"),
    ):
        with pytest.raises(ValueError, match=word):
            Perturbation(**settings)
    with pytest.raises(TypeError, match="a Perturbation"):
        sweeping(0.1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="functions such as"):
        sweeping(also=("gelu",))  # type: ignore[arg-type]


@pytest.mark.parametrize("activation", [torch.relu, torch.tanh, torch.sigmoid])
def test_an_infinite_signal_is_no_error_of_ours(activation: Any) -> None:
    """It makes parameters and loss infinite or huge, which training reports; the sweep itself does not divide by 0."""
    v = torch.randn(4, 5, requires_grad=True)
    with tl.sweeping():
        z = activation(v)
    (z * torch.inf).sum().backward()
    assert v.grad is not None and float(v.grad.nan_to_num().abs().max()) > 1e30
