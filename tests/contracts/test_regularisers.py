"""What every regulariser promises. A newcomer in `REGULARISERS` inherits all of it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchlift.core.errors import InvalidValueError
from torchlift.functions.regularisers import REGULARISERS

every = pytest.mark.parametrize("name", REGULARISERS)
smooth = pytest.mark.parametrize("name", [name for name, cls in REGULARISERS.items() if cls.smooth])
quick = settings(max_examples=15, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31 - 1)
shapes = st.sampled_from([(4, 3), (3, 4), (2, 3, 3)])
steps = st.sampled_from([1e-3, 0.3, 1.0, 3.0, 100.0])


def normal(shape: tuple[int, ...], seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@every
@quick
@given(shape=shapes, seed=seeds, step=steps)
def test_prox_minimises_its_objective(name: str, shape: tuple[int, ...], seed: int, step: float) -> None:
    """½‖p − x‖² + step·R(p) is least at p, with the margin ½‖c − p‖² that strong convexity demands."""
    regulariser, x = REGULARISERS[name].example(), normal(shape, seed, 2.0)
    p = regulariser.prox(x, step)
    assert p.shape == x.shape

    def objective(c: Tensor) -> float:
        return float(0.5 * (c - x).square().sum() + step * regulariser.value(c))

    least = objective(p)
    assert math.isfinite(least)
    inside = regulariser.prox(normal(shape, seed + 1, 2.0), 0.1)
    rivals = [x, torch.zeros_like(x), *(p + normal(shape, seed + 2, scale) for scale in (1e-4, 1e-2, 1.0))]
    rivals += [p + share * (inside - p) for share in (1e-3, 0.1, 1.0)]
    for c in rivals:
        margin = objective(c) - least - 0.5 * float((c - p).square().sum())
        assert margin >= -1e-11 * (10 + abs(least) + step)


@every
@quick
@given(shape=shapes, seed=seeds, step=steps)
def test_prox_is_firmly_nonexpansive(name: str, shape: tuple[int, ...], seed: int, step: float) -> None:
    regulariser, x, y = REGULARISERS[name].example(), normal(shape, seed, 2.0), normal(shape, seed + 1, 2.0)
    change = regulariser.prox(x, step) - regulariser.prox(y, step)
    assert float(change.square().sum()) <= float((change * (x - y)).sum()) + 1e-12


@every
@quick
@given(shape=shapes, seed=seeds)
def test_moreau_envelope(name: str, shape: tuple[int, ...], seed: int) -> None:
    """The gradient of min_p ½‖p − x‖² + R(p) is x − prox(x)."""
    regulariser, x, direction, h = REGULARISERS[name].example(), normal(shape, seed), normal(shape, seed + 1), 1e-5

    def envelope(at: Tensor) -> float:
        p = regulariser.prox(at, 1.0)
        return float(0.5 * (p - at).square().sum() + regulariser.value(p))

    slope = (envelope(x + h * direction) - envelope(x - h * direction)) / (2 * h)
    bound = 1e-7 + h * float(direction.square().sum())
    assert abs(slope - float(((x - regulariser.prox(x, 1.0)) * direction).sum())) <= bound


@every
@quick
@given(shape=shapes, seed=seeds, share=st.floats(0.05, 0.95))
def test_convex_along_segments(name: str, shape: tuple[int, ...], seed: int, share: float) -> None:
    regulariser = REGULARISERS[name].example()
    x, y = (regulariser.prox(normal(shape, seed + i, 2.0), 0.01) for i in range(2))
    chord = share * regulariser.value(x) + (1 - share) * regulariser.value(y)
    assert float(regulariser.value(share * x + (1 - share) * y)) <= float(chord) + 1e-12


@smooth
@quick
@given(shape=shapes, seed=seeds)
def test_gradients(name: str, shape: tuple[int, ...], seed: int) -> None:
    regulariser, x, y = REGULARISERS[name].example(), normal(shape, seed).requires_grad_(), normal(shape, seed + 1)
    (wanted,) = torch.autograd.grad(regulariser.value(x), x)
    x = x.detach()
    torch.testing.assert_close(regulariser.grad(x), wanted, rtol=1e-13, atol=1e-13)
    h = 1e-5
    slope = (regulariser.value(x + h * y) - regulariser.value(x - h * y)) / (2 * h)
    torch.testing.assert_close(slope, (wanted * y).sum(), rtol=1e-6, atol=1e-6)
    change = (regulariser.grad(x) - regulariser.grad(y)).norm() / (x - y).norm()
    assert float(change) == pytest.approx(regulariser.curvature(), rel=1e-12)  # quadratic: the bound is attained


@every
def test_what_is_not_smooth_says_so(name: str) -> None:
    regulariser = REGULARISERS[name].example()
    assert regulariser.smooth == math.isfinite(regulariser.curvature())
    if not regulariser.smooth:
        with pytest.raises(
            InvalidValueError, match=rf"\.grad: expected a smooth regulariser.*{type(regulariser).__name__}\.prox"
        ):
            regulariser.grad(torch.zeros(2, 2))


@every
def test_tensor_steps_dtypes_and_inputs(name: str) -> None:
    regulariser, x = REGULARISERS[name].example(), normal((2, 4, 3), 0)
    before = x.clone()
    steps = torch.tensor([0.2, 3.0], dtype=torch.float64).view(2, 1, 1)
    several = regulariser.prox(x, steps)
    for i, step in enumerate(steps.flatten()):
        torch.testing.assert_close(several[i], regulariser.prox(x[i], float(step)))
        torch.testing.assert_close(several[i], regulariser.prox(x, step)[i])
    assert torch.equal(x, before)
    for dtype in (torch.float32, torch.float64):
        assert regulariser.prox(x.to(dtype), 0.5).dtype == dtype
        value = regulariser.value(x.to(dtype))
        assert value.dtype == dtype and value.shape == ()
        torch.testing.assert_close(value.double(), regulariser.value(x), rtol=1e-5, atol=1e-5)


@every
def test_sums_over_entries_take_one_step_per_entry(name: str) -> None:
    regulariser, x = REGULARISERS[name].example(), normal((4, 3), 0, 2.0)
    steps = normal((4, 3), 1).exp()
    if not regulariser.elementwise:
        whole, rows = regulariser.value(x), sum(regulariser.value(row[None]) for row in x)
        assert not torch.isclose(whole, rows), "a sum over rows: is it one over entries?"
        return
    found = regulariser.prox(x, steps)
    for entry, step, p in zip(x.flatten(), steps.flatten(), found.flatten(), strict=True):
        torch.testing.assert_close(p, regulariser.prox(entry[None], float(step))[0])


@every
@pytest.mark.parametrize("step", [0.0, -1.0, math.nan, math.inf])
def test_bad_steps_are_refused(name: str, step: float) -> None:
    with pytest.raises(InvalidValueError, match=r"prox step: expected .*number"):
        REGULARISERS[name].example().prox(torch.ones(2, 2), step)
