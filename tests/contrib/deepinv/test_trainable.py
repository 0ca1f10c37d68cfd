"""Unfolded networks of deepinv in `train`."""

from __future__ import annotations

import pytest
import torch

import torchlift as tl
from torchlift.core.errors import InvalidTypeError

deepinv = pytest.importorskip("deepinv", reason="needs deepinv: pip install torchlift[deepinv]")
physics = pytest.importorskip("deepinv.physics", reason="needs deepinv: pip install torchlift[deepinv]")


def test_an_unfolded_network_is_trained_in_place() -> None:
    torch.manual_seed(0)
    blur = physics.Blur(tl.operators.gaussian_kernel(5, 1.0).reshape(1, 1, 5, 5), padding="circular")
    x = tl.data.load_digits("train").images[:40].reshape(-1, 1, 28, 28)
    model = deepinv.optim.PGD(
        data_fidelity=deepinv.optim.L2(), prior=deepinv.optim.L1Prior(), stepsize=[0.2] * 3, lambda_reg=[0.3] * 3,
        max_iter=3, unfold=True, trainable_params=["stepsize", "lambda"],
    )  # fmt: skip
    with torch.no_grad():
        y = blur(x)
        before = float((model(y, blur) - x).square().sum())
    module = tl.contrib.deepinv.with_physics(model, blur)
    names = [name for name, _ in module.named_parameters()]
    assert names and all(name.startswith("model.") for name in names)  # nothing of the physics is trained
    tl.train(module, (y, x), batch_size=8, steps=40, progress=False)
    with torch.no_grad():
        assert float((model(y, blur) - x).square().sum()) < 0.9 * before


def test_a_physics_is_asked_for() -> None:
    with pytest.raises(InvalidTypeError, match="with_physics physics"):
        tl.contrib.deepinv.with_physics(torch.nn.ReLU(), None)
    with pytest.raises(InvalidTypeError, match="with_physics model"):
        tl.contrib.deepinv.with_physics(None, physics.Denoising())
