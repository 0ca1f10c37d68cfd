"""Regularisers against other implementations and by hand, and bad input."""

from __future__ import annotations

import math

import numpy as np
import pyproximal
import pytest
import torch

from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.functions.regularisers import L1, Decay, ElasticNet, Interval, NonNegative, NuclearNorm, Ridge

ORACLES = [
    (L1(0.4), pyproximal.L1(sigma=0.4)),
    (Ridge(1.7), pyproximal.L2(sigma=1.7)),
    (NuclearNorm(0.6), pyproximal.Nuclear((5, 3), sigma=0.6)),
    (Interval(-0.5, 1.0), pyproximal.Box(-0.5, 1.0)),
    (NonNegative(), pyproximal.Box(lower=0.0)),
]


@pytest.mark.parametrize(("regulariser", "oracle"), ORACLES, ids=[type(r).__name__ for r, _ in ORACLES])
@pytest.mark.parametrize("step", [0.3, 1.0, 3.0])
def test_against_pyproximal(regulariser, oracle, step: float) -> None:
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=(5, 3)) * 2
        wanted = np.asarray(oracle.prox(x.ravel().copy(), step)).reshape(5, 3)
        torch.testing.assert_close(
            regulariser.prox(torch.from_numpy(x), step), torch.from_numpy(wanted), rtol=1e-12, atol=1e-12
        )
        if not regulariser.constraint:
            value = float(regulariser.value(torch.from_numpy(x)).sum())
            assert value == pytest.approx(float(oracle(x.ravel())), rel=1e-12)


def test_by_hand() -> None:
    x = torch.tensor([[3.0, -0.5], [0.0, -2.0]])
    assert float(L1(2.0).value(x).sum()) == 11.0
    assert L1(2.0).prox(x, 0.5).tolist() == [[2.0, 0.0], [0.0, -1.0]]
    assert float(Ridge(2.0).value(x).sum()) == 13.25
    assert Ridge(2.0).prox(x, 0.5).tolist() == [[1.5, -0.25], [0.0, -1.0]]
    assert float(ElasticNet(2.0, 2.0).value(x).sum()) == 24.25
    assert ElasticNet(2.0, 2.0).prox(x, 0.5).tolist() == [[1.0, 0.0], [0.0, -0.5]]
    assert float(NuclearNorm(2.0).value(torch.diag(torch.tensor([3.0, 4.0]))).sum()) == pytest.approx(14.0)
    assert float(Decay(torch.ones(2, 2), 2.0).value(x).sum()) == 4 + 2.25 + 1 + 9
    assert Decay(torch.ones(2, 2), 2.0).prox(x, 0.5).tolist() == [[2.0, 0.25], [0.5, -0.5]]


def test_constraints_are_zero_or_infinite() -> None:
    assert float(NonNegative().value(torch.tensor([0.0, 1.0])).sum()) == 0.0
    assert float(NonNegative().value(torch.tensor([-1e-30, 1.0])).sum()) == math.inf
    assert float(Interval(0, 1).value(torch.tensor([0.0, 1.0])).sum()) == 0.0
    assert float(Interval(0, 1).value(torch.tensor([0.5, 1.1])).sum()) == math.inf
    assert float(Interval(-math.inf, 1).value(torch.tensor([-1e30])).sum()) == 0.0
    for regulariser in (NonNegative(), Interval(0, 1)):
        assert float(regulariser.value(torch.tensor([math.nan])).sum()) == math.inf


def test_nuclear_norm_lowers_the_rank_of_each_matrix() -> None:
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    values = torch.linalg.svdvals(x)
    step = float((values[:, 1].max() + values[:, 0].min()) / 2)
    p = NuclearNorm(1.0).prox(x, step)
    assert torch.linalg.matrix_rank(p).tolist() == (values > step).sum(1).tolist()
    torch.testing.assert_close(p[1], NuclearNorm(1.0).prox(x[1], step))
    assert float(NuclearNorm().value(x).sum()) == pytest.approx(float(values.sum()))


def test_decay_to_a_point_of_full_shape_and_its_limits() -> None:
    x, point = torch.randn(3, 2, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)
    decay = Decay(point, 2.0)
    torch.testing.assert_close(decay.prox(x, 1e12), point)
    torch.testing.assert_close(decay.prox(x, 1e-12), x)
    assert torch.equal(decay.grad(point), torch.zeros(3, 2))
    assert decay.prox(x.float(), 0.5).dtype == torch.float32


CASES = [
    (lambda: L1(0.0), InvalidValueError, ["L1 weight", "> 0", "0.0"]),
    (lambda: L1(-1.0), InvalidValueError, ["L1 weight", "> 0", "-1.0"]),
    (lambda: Ridge(math.nan), InvalidValueError, ["Ridge weight", "finite", "nan"]),
    (lambda: Ridge(math.inf), InvalidValueError, ["Ridge weight", "finite", "inf"]),
    (lambda: NuclearNorm("1"), InvalidTypeError, ["NuclearNorm weight", "real number", "str"]),
    (lambda: L1(True), InvalidTypeError, ["L1 weight", "real number", "bool"]),
    (lambda: ElasticNet(1.0, 0.0), InvalidValueError, ["ElasticNet ridge", "> 0"]),
    (lambda: ElasticNet(0.0, 1.0), InvalidValueError, ["ElasticNet l1", "> 0"]),
    (lambda: Decay(0.3), InvalidTypeError, ["SquaredDistance centre", "torch.Tensor", "float"]),
    (lambda: Decay(torch.tensor([1])), InvalidValueError, ["SquaredDistance centre", "floating-point"]),
    (lambda: Decay(torch.tensor([1.0, math.nan])), InvalidValueError, ["SquaredDistance centre", "finite", "(1,)"]),
    (lambda: Decay(torch.zeros(2), -1.0), InvalidValueError, ["SquaredDistance weight", "> 0"]),
    (
        lambda: Decay(torch.zeros(2)).prox(torch.zeros(3)),
        InvalidValueError,
        ["SquaredDistance argument", "(2,)", "(3,)"],
    ),
    (
        lambda: Decay(torch.zeros(2)).value(torch.zeros(3, 2)),
        InvalidValueError,
        ["SquaredDistance argument", "(2,)", "(3, 2)"],
    ),
    (lambda: Interval(1.0, 0.0), InvalidValueError, ["lo < hi", "lo=1.0", "Swap"]),
    (lambda: Interval(1.0, 1.0), InvalidValueError, ["lo < hi"]),
    (lambda: Interval(math.nan, 1.0), InvalidValueError, ["Box lo", "nan"]),
    (lambda: Interval(0.0, "1"), InvalidTypeError, ["Box hi", "real number", "str"]),
    (lambda: NuclearNorm().value(torch.zeros(3)), InvalidValueError, ["NuclearNorm argument", "matrix", "(3,)"]),
    (lambda: NuclearNorm().prox(torch.zeros(3)), InvalidValueError, ["NuclearNorm argument", "matrix", "(3,)"]),
    (lambda: NuclearNorm().prox(torch.zeros(3, 3), torch.ones(3, 1)), InvalidValueError, ["step", "(…, 1, 1)"]),
    (lambda: L1().prox(torch.zeros(3), "1"), InvalidTypeError, ["prox step", "str"]),
]


@pytest.mark.parametrize(("call", "error", "words"), CASES)
def test_bad_input_is_refused_with_help(call, error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    for word in words:
        assert word in str(caught.value)
