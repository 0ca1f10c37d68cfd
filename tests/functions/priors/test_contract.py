"""What every prior promises. A newcomer in `PRIORS` inherits all of it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchlift.functions.priors import PRIORS, Part, Prior
from torchlift.operators import adjoint_error

SHAPE = (2, 4, 4)
quick = settings(max_examples=15, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31 - 1)
amounts = st.sampled_from([1e-3, 0.3, 1.0, 30.0])


def example(name: str) -> Prior:
    if name == "wavelet":
        pytest.importorskip("pywt")
    return PRIORS[name].example()


every = pytest.mark.parametrize("name", PRIORS)


def normal(shape: tuple[int, ...], seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def part_and_points(name: str, seed: int) -> tuple[Part, Tensor, Tensor]:
    (part,) = example(name).parts(SHAPE)
    w = part.product(normal((3, *SHAPE), seed, 2.0))
    return part, w, part.product(normal((3, *SHAPE), seed + 1, 2.0))


@every
@quick
@given(seed=seeds)
def test_values_are_non_negative_and_one_per_image(name: str, seed: int) -> None:
    prior, x = example(name), normal((3, *SHAPE), seed)
    value = prior.value(x)
    assert value.shape == (3,) and bool((value >= 0).all())
    torch.testing.assert_close(value[1:2], prior.value(x[1:2]))
    split = prior.split(SHAPE)
    torch.testing.assert_close(split.value(x, split.products(x)), value)


@every
@quick
@given(seed=seeds, step=amounts)
def test_prox_minimises_its_objective(name: str, seed: int, step: float) -> None:
    """½‖p − w‖² + step·g(p) is least at p, with the margin ½‖c − p‖² that strong convexity demands."""
    part, w, other = part_and_points(name, seed)
    p = part.prox(w, step)

    def objective(c: Tensor) -> Tensor:
        return 0.5 * (c - w).flatten(1).square().sum(1) + step * part.value(c)

    least = objective(p)
    assert bool(least.isfinite().all())
    inside = part.prox(other, 0.1)
    rivals = [w, torch.zeros_like(w), inside, p + 1e-3 * (inside - p), p + normal(tuple(w.shape), seed, 1e-2)]
    for c in rivals:
        margin = objective(c) - least - 0.5 * (c - p).flatten(1).square().sum(1)
        assert float(margin.min()) >= -1e-11 * (10 + float(least.abs().max()) + step)


@every
@quick
@given(seed=seeds, step=amounts, weight=amounts)
def test_dual_prox_is_moreaus(name: str, seed: int, step: float, weight: float) -> None:
    """prox of step·(weight·g)* and of (weight/step)·g add up to the point."""
    part, p, _ = part_and_points(name, seed)
    found = part.dual_prox(p, step, weight)
    torch.testing.assert_close(found + step * part.prox(p / step, weight / step), p, rtol=1e-12, atol=1e-12)


@every
@quick
@given(seed=seeds, weight=amounts)
def test_fenchel_young(name: str, seed: int, weight: float) -> None:
    """weight·g(w) + (weight·g)*(p) ≥ ⟨w, p⟩, with equality where p is a subgradient, such as w − prox(w)."""
    if name == "plug-and-play":
        pytest.skip("it has no conjugate")
    part, w, other = part_and_points(name, seed)
    p = part.dual_prox(w, 1.0, weight)
    near = w - p  # = prox of weight·g, so that p is a subgradient there
    inner = (near * p).flatten(1).sum(1)
    scaled = part.value(near) if part.function.constraint else weight * part.value(near)
    torch.testing.assert_close(scaled + part.conjugate(p, weight), inner, rtol=1e-9, atol=1e-9)
    far = part.prox(other, 0.1)
    bound = (far * p).flatten(1).sum(1)
    above = (part.value(far) if part.function.constraint else weight * part.value(far)) + part.conjugate(p, weight)
    assert bool((above >= bound - 1e-9 * (1 + bound.abs())).all())


@every
def test_amounts_per_image(name: str) -> None:
    """A tensor (B,) of steps and weights treats each image as its own number would; 0 switches a prior off."""
    part, w, _ = part_and_points(name, 0)
    amounts = torch.tensor([0.2, 3.0, 0.7], dtype=torch.float64)
    together, dual = part.prox(w, amounts), part.dual_prox(w, amounts, amounts.flip(0))
    for i, (step, weight) in enumerate(zip(amounts.tolist(), amounts.flip(0).tolist(), strict=True)):
        torch.testing.assert_close(together[i : i + 1], part.prox(w[i : i + 1], step))
        torch.testing.assert_close(dual[i : i + 1], part.dual_prox(w[i : i + 1], step, weight))
    off = torch.zeros(3, dtype=torch.float64)
    if not part.function.constraint:
        torch.testing.assert_close(part.prox(w, off), w)
        torch.testing.assert_close(part.dual_prox(w, 0.5, off), torch.zeros_like(w))
        assert bool(part.dual_prox(torch.zeros_like(w), 0.5, off).isfinite().all())


@every
def test_operators_are_adjoint_and_bounded(name: str) -> None:
    split = example(name).split(SHAPE)
    for term in split.terms:
        assert term.operator is not None
        assert adjoint_error(term.operator) < 1e-14
        exact = float(torch.linalg.matrix_norm(term.operator.to_dense(), 2))
        assert exact * (1 - 1e-12) <= term.operator.norm_bound() <= 1.011 * exact
    assert split.square_norm() == pytest.approx(sum(t.operator.norm_bound() ** 2 for t in split.terms if t.operator))


@every
def test_multiples_and_sums(name: str) -> None:
    prior, x = example(name), normal((3, *SHAPE), 5).abs().clamp(0.1, 0.9)
    torch.testing.assert_close((3 * prior).value(x), 3 * prior.value(x))
    torch.testing.assert_close((prior + 0.5 * prior).value(x), 1.5 * prior.value(x))
    assert bool(((0 * prior).value(x) == 0).all())


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtypes_stay_and_nothing_is_overwritten(name: str, dtype: torch.dtype) -> None:
    split, x = example(name).split(SHAPE), normal((3, *SHAPE), 1).to(dtype)
    before = x.clone()
    for product, term in zip(split.products(x), split.terms, strict=True):
        copy = product.clone()
        assert term.dual_prox(product, 0.3, 0.2).dtype == dtype
        assert torch.equal(product, copy)
    assert split.prox(x, 0.3).dtype == dtype
    assert split.value(x, split.products(x)).dtype == dtype
    assert torch.equal(x, before)
    assert math.isfinite(split.square_norm())
