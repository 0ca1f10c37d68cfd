"""Norm bounds against singular values, and the matrix of an operator."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from torchlift.core.errors import InvalidValueError
from torchlift.operators import (
    Blur,
    Conv2d,
    Dense,
    Identity,
    LinearOperator,
    Mask,
    adjoint_error,
    gaussian_kernel,
    norms,
)

SIZE = 530  # just beyond the exact method


def with_singular_values(values: Tensor, seed: int) -> Dense:
    generator = torch.Generator().manual_seed(seed)
    count = len(values)
    left, right = (
        torch.linalg.qr(torch.randn(count, count, generator=generator, dtype=torch.float64))[0] for _ in range(2)
    )
    return Dense(left * values @ right)


def line(low: float, high: float) -> Tensor:
    return torch.linspace(low, high, SIZE, dtype=torch.float64)


def one_above(rest: float) -> Tensor:
    values = torch.full((SIZE,), rest, dtype=torch.float64)
    values[0] = 1
    return values


SPECTRA = {
    "all equal": torch.ones(SIZE, dtype=torch.float64),
    "tiny gap": one_above(1 - 1e-9),
    "gap of half a percent": one_above(0.995),
    "gap of two percent": one_above(0.98),
    "one outlier": one_above(1e-6),
    "rank one": one_above(0.0),
    "even in value": line(0, 1),
    "even in square": line(0, 1).sqrt(),
    "crowded at the top": 1 - line(0, 1) ** 3,
    "crowded as Chebyshev points": (0.5 + 0.5 * torch.cos(math.pi * line(0, 1))).sqrt(),
    "geometric": 10 ** line(-12, 0),
    "two clusters": torch.cat([line(0, 1e-8)[: SIZE // 2], 1 - line(0, 1e-8)[SIZE // 2 :]]),
    "huge": 1e120 * line(0, 1),
    "small": 1e-120 * line(0, 1),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_lanczos_bounds_every_spectrum(name):
    operator = with_singular_values(SPECTRA[name], seed=3)
    truth = float(SPECTRA[name].max())
    assert truth <= operator.norm_bound() <= 1.01 * truth


def test_lanczos_bounds_many_small_operators(monkeypatch):
    """More steps than dimensions: the Krylov space runs out and the recurrence goes on with rounding errors."""
    monkeypatch.setattr(norms, "EXACT_UP_TO", 0)
    generator = torch.Generator().manual_seed(5)
    for trial in range(150):
        rows, columns = torch.randint(1, 60, (2,), generator=generator).tolist()
        weight = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
        if trial % 3 == 1:
            weight = weight.exp()
        if trial % 3 == 2:
            weight = weight.round()
        truth = float(torch.linalg.matrix_norm(weight, 2))
        assert truth * (1 - 1e-12) <= Dense(weight).norm_bound() <= 1.01 * truth + 1e-300


@pytest.mark.parametrize("shape", [(3, 800), (800, 3), (600, 900), (900, 600)])
def test_both_orientations(shape):
    operator = Dense(torch.randn(shape))
    truth = float(torch.linalg.matrix_norm(operator.weight.double(), 2))
    assert truth <= operator.norm_bound() <= 1.01 * truth
    assert truth <= operator.T.norm_bound() <= 1.01 * truth


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bound_of_low_precision_operators_is_computed_in_double(dtype):
    conv = Conv2d(torch.randn(4, 1, 3, 3, dtype=dtype), (1, 24, 24), stride=2, padding=1)
    exact = conv.map_tensors(lambda _, t: t.double())
    truth = float(torch.linalg.matrix_norm(exact.to_dense(), 2))
    assert truth <= conv.norm_bound() <= 1.01 * truth


def test_bound_is_repeatable_and_leaves_the_global_generator_alone():
    operator = Dense(torch.randn(600, 600))
    before = torch.random.get_rng_state()
    assert operator.norm_bound() == operator.norm_bound()
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_normalised_blur_has_norm_at_most_one():
    blur = Blur(gaussian_kernel(5, 1.0), (1, 28, 28), "zero")
    assert 0.97 < blur.norm_bound() < 1.01


def test_context_bound_holds_for_every_sample(monkeypatch):
    masks = torch.rand(7, 30, dtype=torch.float64) * torch.linspace(0.1, 3, 7, dtype=torch.float64)[:, None]
    operator = Dense(torch.randn(30, 30, dtype=torch.float64)) @ Mask(shape=30)
    single = [operator.norm_bound(masks[i : i + 1]) for i in range(7)]
    assert max(single) * (1 - 1e-9) <= operator.norm_bound(masks) <= 1.01 * max(single)
    monkeypatch.setattr(norms, "CHUNK", 60)  # two samples at a time
    assert max(single) * (1 - 1e-9) <= operator.norm_bound(masks) <= 1.01 * max(single)


def test_boolean_masks_in_the_context():
    masks = torch.rand(3, 30) > 0.5
    operator = Identity(30) - Mask(shape=30)
    assert operator.norm_bound(masks) == pytest.approx(1, rel=0.01)
    assert Mask(shape=30).norm_bound(masks) == 1
    assert operator.to_dense(masks[:1]).diagonal().tolist() == (~masks[0]).double().tolist()


def test_zero_operator():
    assert Dense(torch.zeros(3, 4)).norm_bound() == 0
    assert Dense(torch.zeros(600, 600)).norm_bound() == 0


@pytest.mark.parametrize("size", [4, 600])
def test_not_a_number_is_refused(size):
    weight = torch.randn(size, size)
    weight[1, 1] = math.nan
    with pytest.raises(InvalidValueError, match="finite"):
        Dense(weight).norm_bound()


def test_dense_matrix_in_chunks(monkeypatch):
    operator = Conv2d(torch.randn(2, 1, 3, 3), (1, 5, 6))
    whole = operator.to_dense()
    monkeypatch.setattr(norms, "CHUNK", 1)
    torch.testing.assert_close(operator.to_dense(), whole)
    assert whole.shape == (24, 30)


def test_dense_matrix_is_differentiable():
    weight = torch.randn(1, 1, 2, 2, requires_grad=True)
    Conv2d(weight, (1, 3, 3)).to_dense().sum().backward()
    assert torch.equal(weight.grad, torch.full((1, 1, 2, 2), 4.0))


def test_dense_matrix_belongs_to_one_sample():
    with pytest.raises(InvalidValueError, match="expected one sample, got 2 samples"):
        Mask(shape=3).to_dense(torch.ones(2, 3))


def test_adjoint_error_finds_a_wrong_adjoint():
    @dataclass(frozen=True, eq=False)
    class Wrong(LinearOperator):
        weight: Tensor
        in_shape = (4,)
        out_shape = (4,)

        def forward(self, x, context=None):
            return x @ self.weight

        def adjoint(self, y, context=None):
            return y @ self.weight

    assert adjoint_error(Wrong(torch.randn(4, 4))) > 1e-3
    assert adjoint_error(Dense(torch.randn(4, 4))) < 1e-14
    assert adjoint_error(Dense(torch.zeros(4, 4))) == 0
