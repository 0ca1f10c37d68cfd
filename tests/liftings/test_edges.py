"""Where liftings end: the last bit of tolerances, the ends of domains, weights of fewer axes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from torchlift.core.errors import InvalidValueError
from torchlift.liftings import MACQP, Bregman, Classical, Contrastive, Conventional, Fenchel, Lifting
from torchlift.prox import Box, Identity, ProximalActivation, ReLU, Sigmoid, Softmax, Softsign, Tanh

EPS = torch.finfo(torch.float64).eps


def point(*entries: float) -> Tensor:
    return torch.tensor(entries, dtype=torch.float64)


@pytest.mark.parametrize(("v", "units"), [(0.0, 256), (1.0, 512), (-3.0, 1024)])
def test_the_hard_constraint_forgives_256_units_of_rounding(v: float, units: int) -> None:
    for sign in (1, -1):
        inside, outside = (point(v + sign * n * EPS) for n in (units, units + 4))
        assert float(Conventional().value(Identity(), inside, point(v), 1.0)) == 0
        assert float(Conventional().value(Identity(), outside, point(v), 1.0)) == math.inf
    if v == 0:  # where single units of rounding can be told apart
        assert float(Conventional().value(Identity(), point(257 * EPS), point(v), 1.0)) == math.inf


# (activation, end of the domain, which way out, B at that end for v = 0)
ENDS = [
    (ReLU(), 0.0, -1, 0.0),
    (Box(-1.0, 3.0), -1.0, -1, 0.5),
    (Box(-1.0, 3.0), 3.0, 1, 4.5),
    (Sigmoid(), 0.0, -1, math.log(2)),
    (Sigmoid(), 1.0, 1, math.log(2)),
    (Tanh(), -1.0, -1, math.log(2)),
    (Tanh(), 1.0, 1, math.log(2)),
]


@pytest.mark.parametrize(("activation", "end", "way", "value"), ENDS)
@pytest.mark.parametrize("lifting", [Fenchel(), Bregman()])
def test_domains_are_closed(
    lifting: Lifting, activation: ProximalActivation, end: float, way: int, value: float
) -> None:
    assert float(lifting.value(activation, point(end), point(0.0), 1.0)) == pytest.approx(value, abs=1e-15)
    for beyond in (torch.nextafter(point(end), point(way * math.inf)), point(end + 20 * way)):
        assert float(lifting.value(activation, beyond, point(0.0), 1.0)) == math.inf


def test_where_rounding_would_sink_bregman_it_is_the_squared_distance() -> None:
    v = torch.logspace(7.5, 12, 400)
    z = torch.nextafter(torch.ones_like(v), torch.zeros_like(v))
    value, least = Bregman().value(Softsign(), z, v, 1.0), 0.5 * (z - Softsign()(v)).square()
    assert (value == least).any()
    assert torch.equal(Bregman().value(Softsign(), z, v, 3.0), 3.0 * value)


@pytest.mark.parametrize("lifting", [Bregman(), MACQP(), Classical(), Contrastive()])
def test_weights_of_fewer_axes_count_from_the_last(lifting: Lifting) -> None:
    """One weight per column of the last axis, for groups along the middle one."""
    activation, weights = Softmax(dim=1), point(0.5, 2.0, 3.0)
    v = torch.randn(2, 4, 3, dtype=torch.float64)
    z = activation(torch.randn(2, 4, 3, dtype=torch.float64))
    for shape in ((1, 3), (1, 1, 3)):
        found = lifting.value(activation, z, v, weights.view(shape))
        assert found.shape == (2, 3)
        for column, weight in enumerate(weights.tolist()):
            alone = lifting.value(activation, z, v, weight)[:, column]
            torch.testing.assert_close(found[:, column], alone, rtol=1e-13, atol=1e-13)
    with pytest.raises(InvalidValueError, match=r"weight: expected a tensor of size 1 along dim 1"):
        lifting.value(activation, z, v, torch.ones(4, 1, dtype=torch.float64))


def test_one_weight_per_channel_needs_no_groups() -> None:
    z, v, weights = torch.rand(2, 3), torch.randn(2, 3), torch.tensor([1.0, 2.0, 3.0])
    found = Bregman().value(ReLU(), z, v, weights)
    torch.testing.assert_close(found, weights * Bregman().value(ReLU(), z, v, 1.0))


def test_the_hard_constraint_has_weight_one() -> None:
    assert Conventional().weights(2) == (1.0, 1.0)
