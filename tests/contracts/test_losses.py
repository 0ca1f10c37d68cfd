"""What every loss promises. A newcomer in `LOSSES` inherits all of it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.losses import LOSSES, Loss

every = pytest.mark.parametrize("name", LOSSES)
smooth = pytest.mark.parametrize("name", [name for name, cls in LOSSES.items() if cls.smooth])
differentiable = pytest.mark.parametrize("name", [name for name in LOSSES if name != "target"])
quick = settings(max_examples=15, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31 - 1)
scales = st.sampled_from([0.1, 1.0, 5.0])
B, C = 6, 4


def normal(seed: int, scale: float = 1.0, shape: tuple[int, ...] = (B, C)) -> Tensor:
    return scale * torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def target_for(name: str, seed: int) -> Tensor:
    if name == "cross-entropy":
        return torch.randint(C, (B,), generator=torch.Generator().manual_seed(seed))
    return normal(seed)


def total(loss: Loss, prediction: Tensor, target: Tensor) -> float:
    return float(loss.value(prediction, target).sum())


@every
def test_example_and_shapes(name: str) -> None:
    loss, p, x = LOSSES[name].example(), normal(0), target_for(name, 1)
    assert type(loss) is LOSSES[name]
    assert loss.value(p, x).shape == (B,)
    assert loss.prox(p, x, 0.5).shape == p.shape
    loss.check(tuple(p.shape), x)
    loss.check(tuple(p.shape), x, values=False)
    assert hash(loss) == hash(LOSSES[name].example()) and loss == LOSSES[name].example()
    assert loss.smooth == math.isfinite(loss.curvature())


@every
def test_samples_do_not_see_each_other(name: str) -> None:
    loss, p, x = LOSSES[name].example(), normal(0), target_for(name, 1)
    for i in range(B):
        one = slice(i, i + 1)
        torch.testing.assert_close(loss.value(p[one], x[one]), loss.value(p, x)[one])
        torch.testing.assert_close(loss.prox(p[one], x[one], 0.7), loss.prox(p, x, 0.7)[one])
        if name != "target":
            torch.testing.assert_close(loss.grad(p[one], x[one]), loss.grad(p, x)[one])


ORACLES = {
    "absolute": lambda p, x: C * F.l1_loss(p, x, reduction="none").mean(1),
    "cross-entropy": lambda p, x: F.nll_loss(F.log_softmax(p, 1), x, reduction="none"),
    "huber": lambda p, x: C * F.smooth_l1_loss(p, x, reduction="none", beta=1.0).mean(1),
    "squared-error": lambda p, x: C / 2 * F.mse_loss(p, x, reduction="none").mean(1),
}


@pytest.mark.parametrize("name", ORACLES)
@quick
@given(seed=seeds, scale=scales)
def test_value_is_that_of_torch_with_the_right_factor(name: str, seed: int, scale: float) -> None:
    p, x = normal(seed, scale), target_for(name, seed + 1)
    torch.testing.assert_close(LOSSES[name].example().value(p, x), ORACLES[name](p, x), rtol=1e-13, atol=1e-13)


@differentiable
@quick
@given(seed=seeds, scale=scales)
def test_gradient_against_autograd(name: str, seed: int, scale: float) -> None:
    loss, p, x = LOSSES[name].example(), normal(seed, scale).requires_grad_(), target_for(name, seed + 1)
    (wanted,) = torch.autograd.grad(ORACLES[name](p, x).sum(), p)
    (of_value,) = torch.autograd.grad(loss.value(p, x).sum(), p)
    with torch.no_grad():
        gradient = loss.grad(p, x)
    torch.testing.assert_close(gradient, wanted, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(gradient, of_value, rtol=1e-13, atol=1e-13)


@smooth
@quick
@given(seed=seeds, scale=scales)
def test_gradient_against_finite_differences(name: str, seed: int, scale: float) -> None:
    loss, p, x, h = LOSSES[name].example(), normal(seed, scale), target_for(name, seed + 1), 1e-5
    direction = normal(seed + 2)
    slope = (total(loss, p + h * direction, x) - total(loss, p - h * direction, x)) / (2 * h)
    bound = 1e-6 + h * loss.curvature() * float(direction.square().sum())
    assert abs(slope - float((loss.grad(p, x) * direction).sum())) <= bound


@differentiable
@quick
@given(seed=seeds, scale=scales)
def test_gradients_support_the_loss_from_below(name: str, seed: int, scale: float) -> None:
    """Convexity, which also makes the sign of `Absolute` a subgradient; at agreement too."""
    loss, x, q = LOSSES[name].example(), target_for(name, seed + 1), normal(seed + 2, scale)
    for p in (normal(seed, scale), *([x] if x.is_floating_point() else [])):
        support = loss.value(p, x) + (loss.grad(p, x) * (q - p)).sum(1)
        assert (loss.value(q, x) >= support - 1e-12).all()


@differentiable
@quick
@given(seed=seeds, scale=scales)
def test_curvature_bounds_the_gradient(name: str, seed: int, scale: float) -> None:
    loss, x, p = LOSSES[name].example(), target_for(name, seed), normal(seed + 1, scale)
    for shift in (normal(seed + 2, 1e-3), normal(seed + 2, scale)):
        change = (loss.grad(p + shift, x) - loss.grad(p, x)).norm(dim=1)
        assert (change <= loss.curvature() * shift.norm(dim=1) + 1e-12).all()


TIGHT = {
    "cross-entropy": (torch.zeros(1, 2).double(), torch.zeros(1, dtype=torch.long), [[1.0, -1.0]]),
    "huber": (torch.zeros(1, 2).double(), torch.zeros(1, 2).double(), [[1.0, -1.0]]),
    "squared-error": (torch.zeros(1, 2).double(), torch.zeros(1, 2).double(), [[1.0, -1.0]]),
}


@smooth
def test_the_curvature_is_attained(name: str) -> None:
    loss, (p, x, direction) = LOSSES[name].example(), TIGHT[name]
    shift = 1e-4 * torch.tensor(direction, dtype=torch.float64)
    change = (loss.grad(p + shift, x) - loss.grad(p, x)).norm() / shift.norm()
    assert float(change) == pytest.approx(loss.curvature(), rel=1e-6)


@every
@quick
@given(seed=seeds, scale=scales, step=st.sampled_from([1e-3, 0.3, 1.0, 3.0, 100.0]))
def test_prox_minimises_its_objective(name: str, seed: int, scale: float, step: float) -> None:
    loss, p, x = LOSSES[name].example(), normal(seed, scale), target_for(name, seed + 1)
    q = loss.prox(p, x, step)

    def objective(c: Tensor) -> Tensor:
        return 0.5 * (c - p).square().sum(1) + step * loss.value(c, x)

    least = objective(q)
    assert least.isfinite().all()
    for rival in (p, q + normal(seed + 2, 1e-4), q + normal(seed + 2, 1e-2), q + normal(seed + 2), normal(seed + 3)):
        margin = objective(rival) - least - 0.5 * (rival - q).square().sum(1)
        assert (margin >= -1e-12 * (100 + least.abs() + 10 * step)).all()
    if loss.smooth:
        torch.testing.assert_close(q, p - step * loss.grad(q, x), rtol=1e-11, atol=1e-11 * (1 + step))


@every
def test_prox_with_tensor_steps_equals_prox_with_numbers(name: str) -> None:
    loss, p, x = LOSSES[name].example(), normal(0), target_for(name, 1)
    steps = torch.linspace(0.1, 3.0, B, dtype=torch.float64)
    several = loss.prox(p, x, steps.view(B, 1))
    for i, step in enumerate(steps):
        torch.testing.assert_close(several[i], loss.prox(p, x, float(step))[i])
        torch.testing.assert_close(several[i], loss.prox(p, x, step)[i])


@every
def test_nothing_is_modified_or_shared(name: str) -> None:
    loss, p, x = LOSSES[name].example(), normal(0), target_for(name, 1)
    before = p.clone(), x.clone()
    results = [loss.value(p, x), loss.prox(p, x, 0.5)] + ([loss.grad(p, x)] if name != "target" else [])
    for result in results:
        result.add_(1)
    assert torch.equal(p, before[0]) and torch.equal(x, before[1])


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_and_extreme_arguments(name: str, dtype: torch.dtype) -> None:
    loss, x = LOSSES[name].example(), target_for(name, 1)
    x = x.to(dtype) if x.is_floating_point() else x
    for size in (0.0, 1e-30, 1.0, 1e4):
        p = size * normal(0).sign().to(dtype)
        results = [loss.prox(p, x, 0.5)] + ([loss.value(p, x), loss.grad(p, x)] if name != "target" else [])
        for result in results:
            assert result.dtype == dtype
            assert result.isfinite().all()


@every
def test_the_target_is_checked(name: str) -> None:
    loss, x = LOSSES[name].example(), target_for(name, 1)
    for shape, target in (((B + 1, C), x), ((B, C), x[:-1]), ((B, C), x.unsqueeze(-1))):
        with pytest.raises(InvalidValueError, match=r"target: expected shape .*, got \("):
            loss.check(shape, target)
    with pytest.raises(InvalidTypeError, match=r"target: expected a torch\.Tensor, got list"):
        loss.check((B, C), x.tolist())
    with pytest.raises(InvalidValueError, match=r"prediction: expected .*at least one sample"):
        loss.check((0, C), x[:0])


@every
@pytest.mark.parametrize("step", [0.0, -1.0, math.nan, math.inf])
def test_bad_steps_are_refused(name: str, step: float) -> None:
    with pytest.raises(InvalidValueError, match=r"prox step: expected .*number"):
        LOSSES[name].example().prox(normal(0), target_for(name, 1), step)
