"""The ends of domains to the last bit, and the edges of what arguments may be."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.prox import ISRU, Box, GroupSoftThreshold, L2Ball, ProximalActivation, Simplex, Softmax, SoftThreshold
from torchlift.prox.base import at_least_single, check_group_step, group_norm
from torchlift.prox.simplex import on_simplex

EPS = torch.finfo(torch.float64).eps


def point(*entries: float) -> Tensor:
    return torch.tensor(entries, dtype=torch.float64)


def test_the_ball_forgives_eight_and_n_units_of_rounding() -> None:
    """One entry: 9 eps. Three: 11 eps; the norm of (r, 0, 0) is r to the bit."""
    for others in ((), (0.0, 0.0)):
        units = 9 + len(others)
        assert float(L2Ball().psi(point(1 + units * EPS, *others))) == 0
        assert float(L2Ball().psi(point(1 + (units + 1) * EPS, *others))) == math.inf
        assert float(L2Ball(4.0).psi(point(4 * (1 + units * EPS), *others))) == 0
        assert float(L2Ball(4.0).psi(point(4 * (1 + (units + 1) * EPS), *others))) == math.inf


def test_the_simplex_forgives_eight_and_n_units_of_rounding() -> None:
    inside = point(1 + 10 * EPS, 0), point(1 - 10 * EPS, 0), point(1 + 10 * EPS, -10 * EPS), point(1, 0)
    outside = point(1 + 11 * EPS, 0), point(1 - 11 * EPS, 0), point(1 + 11 * EPS, -11 * EPS), point(0.5, 0.4)
    assert [bool(on_simplex(u, -1)) for u in (*inside, *outside)] == [True] * 4 + [False] * 4
    for activation in (Simplex(), Softmax()):
        assert all(activation.psi(u).isfinite() for u in inside)
        assert all(activation.psi(u) == math.inf for u in outside)


@pytest.mark.parametrize("alpha", [1.0, 0.25, 16.0])
def test_isru_forgives_four_units_of_rounding(alpha: float) -> None:
    end = 1 / math.sqrt(alpha)
    for sign in (1, -1):
        assert float(ISRU(alpha).psi(point(sign * end * (1 + 4 * EPS)))) == pytest.approx(0.5 / alpha)
        assert float(ISRU(alpha).psi(point(sign * end * (1 + 5 * EPS)))) == math.inf


def test_group_norms_neither_overflow_nor_vanish() -> None:
    for size in (1e-300, 1.0, 1e300):
        rows = size * point(3, -4, 0).repeat(2, 1)
        assert group_norm(rows, 1).tolist() == [[pytest.approx(5 * size)]] * 2
        assert group_norm(rows, 0).shape == (1, 3)
    zero = point(0, 0).requires_grad_()
    (slope,) = torch.autograd.grad(group_norm(zero, 0).sum(), zero)
    assert slope.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("activation", "shape"),
    [(Softmax(), (4, 1)), (Softmax(dim=0), (1, 3)), (Softmax(dim=0), (3,)), (GroupSoftThreshold(0.3), (1,))],
)
def test_a_step_per_group_broadcasts(activation: ProximalActivation, shape: tuple[int, ...]) -> None:
    u = torch.randn(4, 3, dtype=torch.float64)
    steps = torch.linspace(0.5, 2.0, math.prod(shape), dtype=torch.float64).view(shape)
    found = activation.prox(u, steps)
    everywhere = steps.broadcast_to([1 if axis == activation.dim % 2 else n for axis, n in enumerate(u.shape)])
    for row in range(4) if activation.dim == -1 else range(3):
        step = float(everywhere.flatten()[row])
        select = (row, slice(None)) if activation.dim == -1 else (slice(None), row)
        alone = type(activation)(0.3) if isinstance(activation, GroupSoftThreshold) else Softmax()
        torch.testing.assert_close(found[select], alone.prox(u[select], step), rtol=1e-12, atol=1e-12)


def test_a_step_without_axes_serves_every_group() -> None:
    u = point(1, 2, 3)
    step = check_group_step(torch.tensor(0.5), u, 0)
    assert isinstance(step, Tensor) and step.dtype == torch.float64 and step.ndim == 0
    with pytest.raises(InvalidValueError, match=r"size 1 along dim 0"):
        check_group_step(torch.ones(3), u, 0)


def test_only_half_precision_is_widened() -> None:
    wanted = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert at_least_single(torch.ones(1, dtype=dtype)).dtype == wanted.get(dtype, dtype)


@pytest.mark.parametrize("make", [lambda: Softmax(True), lambda: L2Ball(1.0, dim=False), lambda: Simplex(True)])
def test_truth_is_no_axis(make) -> None:
    with pytest.raises(InvalidTypeError, match=r"dim: expected a whole number, got bool"):
        make()


@pytest.mark.parametrize("make", [lambda: Box(False, 2.0), lambda: Box(0.0, True)])
def test_truth_is_no_end_of_an_interval(make) -> None:
    with pytest.raises(InvalidTypeError, match=r"Box (lo|hi): expected a real number"):
        make()


def test_learned_ends_are_trusted_only_when_asked() -> None:
    one, two = torch.tensor(1.0), torch.tensor(2.0)
    for lo, hi in ((two, one), (2.0, one), (two, 1.0)):
        with pytest.raises(InvalidValueError, match="lo < hi"):
            Box(lo, hi)
        assert Box(lo, hi, validate=False).lo is lo


def test_channels_are_counted_along_their_axis() -> None:
    three = SoftThreshold(torch.ones(3), channel_dim=-2)
    assert three(torch.zeros(3, 5)).shape == (3, 5)
    for shape, dim in (((5, 3), -2), ((3,), -2), ((3,), 1), ((3, 5), 2)):
        with pytest.raises(InvalidValueError, match=rf"3 channels along axis {dim}"):
            SoftThreshold(torch.ones(3), channel_dim=dim)(torch.zeros(shape))


def test_only_learned_tensors_have_slopes() -> None:
    v, fixed = point(-2, 0.1, 2), torch.tensor(0.5, dtype=torch.float64)
    for activation in (SoftThreshold(0.5), SoftThreshold(fixed), Box(0.0, 1.0), Box(-fixed, fixed), ISRU()):
        assert activation.conjugate_slopes(v) == {}
