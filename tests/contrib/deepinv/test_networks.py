"""Networks with forward models of deepinv, and as reconstructors in its training and tests."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

import torchlift as tl
from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.networks import LISTA, MLP, PrimalDual
from torchlift.operators import Blur, Dense, FiniteDifference, Mask, gaussian_kernel

deepinv = pytest.importorskip("deepinv", reason="needs deepinv: pip install torchlift[deepinv]")
physics = pytest.importorskip("deepinv.physics", reason="needs deepinv: pip install torchlift[deepinv]")

SHAPE = (1, 12, 12)


def digits(count: int) -> Tensor:
    """Digits of 12 × 12 pixels."""
    images = tl.data.load_digits("train").images[:count]
    return torch.nn.functional.interpolate(images, size=SHAPE[1:], mode="area")


def blur_physics(noise: float = 0.0) -> Any:
    """A Gaussian blur, the same as `blur_operator`."""
    kernel = gaussian_kernel(5, 1.0).reshape(1, 1, 5, 5)
    model = physics.GaussianNoise(noise) if noise else physics.ZeroNoise()
    return physics.Blur(kernel, padding="circular", noise_model=model)


def blur_operator() -> Blur:
    return Blur(gaussian_kernel(5, 1.0), SHAPE, "circular")


def primal_dual(H: Any) -> PrimalDual:
    return PrimalDual(H, FiniteDifference(SHAPE), 4, threshold=0.02)


def test_unrolled_networks_take_a_physics_as_forward_model() -> None:
    y = blur_physics()(digits(3))
    ours, theirs = primal_dual(blur_operator()), primal_dual(blur_physics())
    torch.testing.assert_close(theirs(y), ours(y))
    dictionary = torch.eye(144)
    sparse = [
        LISTA(H, L, 3)
        for H, L in (
            (blur_operator(), dictionary),
            (tl.contrib.deepinv.from_physics(blur_physics(), SHAPE), dictionary),
            (blur_physics(), tl.operators.Reshape((144,), SHAPE) @ Dense(dictionary)),
        )
    ]
    for network in sparse[1:]:
        torch.testing.assert_close(network(y), sparse[0](y))
    assert theirs.convergence()[0].satisfied


def test_lifted_training_with_a_physics_as_forward_model() -> None:
    x = digits(60)
    y = blur_physics(0.02)(x)
    result = tl.train(primal_dual(blur_physics()), (y, x), epochs=2, batch_size=20, seed=0).raise_if_failed()
    before, after = (tl.data.psnr(net(y), x).mean() for net in (primal_dual(blur_physics()), result.network))
    assert after > before


def test_masks_of_a_physics_are_the_context_of_a_network() -> None:
    masks = (torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0)) > 0.3).float()
    inpainting = physics.Inpainting(SHAPE, mask=None)
    ours, theirs = (  # one step: the norm of a physics is known to 1 % only
        PrimalDual(H, FiniteDifference(SHAPE), 3, step=0.5, context={"mask": masks})
        for H in (Mask(shape=SHAPE), inpainting)
    )
    y = masks * digits(2)
    torch.testing.assert_close(theirs(y, {"mask": masks}), ours(y, {"mask": masks}))


def test_a_reconstructor_takes_the_physics_it_is_called_with() -> None:
    x = digits(4)
    network = primal_dual(tl.operators.Identity(SHAPE))
    reconstructor = tl.contrib.deepinv.as_reconstructor(network)
    assert isinstance(reconstructor, deepinv.models.Reconstructor)
    blur = blur_physics()
    y = blur(x)
    expected = network.with_operator(blur_operator())
    torch.testing.assert_close(reconstructor(y, blur), expected(y))
    assert not torch.allclose(reconstructor(y, blur), network(y), atol=1e-3)
    torch.testing.assert_close(reconstructor(y), network(y))  # without a physics, its own
    blur.update(filter=torch.flip(torch.eye(5), (0,)).reshape(1, 1, 5, 5) / 5)
    assert not torch.allclose(reconstructor(y, blur), expected(y), atol=1e-3), "new parameters are seen"
    masks = (torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0)) > 0.3).float()
    inpainting = physics.Inpainting(SHAPE, mask=masks)
    ours = network.with_operator(Mask(shape=SHAPE))
    torch.testing.assert_close(reconstructor(masks * x, inpainting), ours(masks * x, masks))
    assert set(reconstructor.state_dict()) == {f"network.{name}" for name in network.state_dict()}


def test_a_reconstructor_for_measurements_of_another_shape() -> None:
    sensing = physics.CompressedSensing(m=60, img_size=SHAPE)
    network = primal_dual(tl.operators.Identity(SHAPE))
    reconstructor = tl.contrib.deepinv.as_reconstructor(network)
    x = reconstructor(sensing(digits(2)), sensing)
    assert torch.equal(copy.deepcopy(reconstructor)(sensing(digits(2)), sensing), x)
    assert x.shape == (2, *SHAPE)
    expected = primal_dual(tl.contrib.deepinv.from_physics(sensing))
    step = network.state_dict()["step.log"]
    expected.load_state_dict({"step.log": step, "dual_step.log": network.dual_step.log}, strict=False)
    torch.testing.assert_close(x, expected(sensing(digits(2))))


def test_a_dense_network_gets_vectors_and_gives_images() -> None:
    network = MLP([144, 20, 144], tl.ReLU())
    reconstructor = tl.contrib.deepinv.as_reconstructor(network, SHAPE)
    y = digits(3)
    assert torch.equal(reconstructor(y, physics.Denoising()), network(y.flatten(1)).reshape(3, *SHAPE))


QUIET: dict[str, Any] = {
    "device": "cpu",
    "non_blocking_transfers": False,
    "show_progress_bar": False,
    "verbose": False,
}


def loader(x: Tensor, y: Tensor) -> DataLoader[Any]:
    pairs: Any = [{"x": image, "y": measured} for image, measured in zip(x, y, strict=True)]
    return DataLoader(pairs, batch_size=20)


@pytest.mark.parametrize("kind", ["dense", "unrolled"])
def test_the_trainer_of_deepinv_trains_a_network(kind: str, tmp_path: Path) -> None:
    model = blur_physics(0.03)
    x = digits(120)
    y = model(x)
    network = MLP([144, 144, 144], tl.ReLU()) if kind == "dense" else primal_dual(blur_physics())
    reconstructor = tl.contrib.deepinv.as_reconstructor(network, SHAPE)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    held = loader(x[100:], y[100:])
    start = deepinv.test(reconstructor, held, model, **QUIET)["PSNR"]
    trainer = deepinv.Trainer(
        reconstructor,
        physics=model,
        optimizer=torch.optim.Adam(reconstructor.parameters(), 1e-3 if kind == "dense" else 3e-2),
        train_dataloader=loader(x[:100], y[:100]),
        epochs=2,
        save_path=str(tmp_path),
        **QUIET,
    )
    trained = trainer.train()
    end = trainer.test(held)["PSNR"]
    assert trained.network is network
    assert end > start + 0.3
    assert any(not torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    with torch.no_grad():
        found = tl.data.psnr(reconstructor(y[100:], model), x[100:])
    assert float(found.mean()) == pytest.approx(end, abs=0.05), "the measure of deepinv is ours"


def test_a_network_trained_by_lifting_in_the_test_of_deepinv() -> None:
    model = physics.Denoising(physics.GaussianNoise(0.2))
    x = digits(300)
    y = model(x)
    network = MLP([144, 144, 144], tl.ReLU(), generator=torch.Generator().manual_seed(0))
    result = tl.train(network, (y[:260].flatten(1), x[:260].flatten(1)), epochs=15, batch_size=20, seed=0)
    reconstructor = tl.contrib.deepinv.as_reconstructor(result.network, SHAPE)
    measured = deepinv.test(reconstructor, loader(x[260:], y[260:]), model, **QUIET)
    assert measured["PSNR"] > measured["PSNR no learning"] + 1


def test_deblurring_with_forward_model_and_prior_in_an_algorithm_of_deepinv() -> None:
    x = digits(5)
    model = tl.contrib.deepinv.as_physics(blur_operator(), noise_model=physics.GaussianNoise(0.02))
    y = model(x)
    prior = tl.contrib.deepinv.as_prior(tl.priors.TotalVariation() + tl.priors.Box(0, 1), tolerance=1e-3)
    algorithm = deepinv.optim.PGD(
        prior=prior, data_fidelity=deepinv.optim.L2(), stepsize=1.0, lambda_reg=0.003, max_iter=60
    )
    found = algorithm(y, model)
    assert float((tl.data.psnr(found, x) - tl.data.psnr(y, x)).min()) > 1
    assert float(found.min()) >= 0 and float(found.max()) <= 1


def test_what_does_not_fit_is_refused_with_words() -> None:
    reconstructor = tl.contrib.deepinv.as_reconstructor(primal_dual(blur_operator()))
    y = digits(2)
    with pytest.raises(InvalidTypeError, match="as_reconstructor: expected a torchlift network, got Linear"):
        tl.contrib.deepinv.as_reconstructor(torch.nn.Linear(2, 2))
    with pytest.raises(InvalidValueError, match=r"image_shape: expected as many entries as outputs \(1, 12, 12\)"):
        tl.contrib.deepinv.as_reconstructor(primal_dual(blur_operator()), (1, 28, 28))
    with pytest.raises(InvalidTypeError, match=r"reconstructor physics: expected a deepinv.*LinearPhysics, got Haze"):
        reconstructor(y, physics.Haze())
    with pytest.raises(InvalidValueError, match=r"reconstructor physics: expected a physics for images of shape"):
        reconstructor(y, physics.Inpainting((1, 5, 5), mask=0.5))
    with pytest.raises(
        InvalidValueError, match=r"PrimalDual input: expected shape \(batch, 1, 12, 12\), got \(2, 1, 9"
    ):
        reconstructor(y[:, :, :9], blur_physics())
    with pytest.raises(InvalidTypeError, match=r"reconstructor measurements: expected a torch\.Tensor, got list"):
        reconstructor([y], blur_physics())
    with pytest.raises(InvalidTypeError, match="LISTA H: expected a LinearOperator or a matrix, got Physics"):
        LISTA(physics.Physics(), torch.eye(4), 2)
    with pytest.raises(InvalidValueError, match="LISTA H: expected a physics with an img_size, got a Blur without one"):
        LISTA(blur_physics(), torch.eye(144), 2)
    with pytest.raises(InvalidValueError, match=r"with_operator: expected input shape \(1, 12, 12\), got \(1, 9, 9\)"):
        primal_dual(blur_operator()).with_operator(tl.operators.Identity((1, 9, 9)))
