"""What every convex function promises. A newcomer in `FUNCTIONS` or `PRIORS` inherits all of it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.kept import assert_all_kept
from torchlift.core.errors import InvalidValueError
from torchlift.functions import FUNCTIONS, Function
from torchlift.functions.priors import PRIORS, Prior
from torchlift.testing.functions import ON_ITSELF, ON_VALUES, SCALES, normal, operator_and_bound

SHAPE = (3, 4)
FUNCTION_EXAMPLES = {f"{name}-{i}": f for name, cls in FUNCTIONS.items() for i, f in enumerate(cls.examples())}
IMAGE = (2, 4, 4)
every = pytest.mark.parametrize("name", FUNCTION_EXAMPLES)
prior = pytest.mark.parametrize("name", PRIORS)
quick = settings(max_examples=15, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31 - 1)


@every
@quick
@given(seed=seeds, scale=st.sampled_from(SCALES))
def test_promises_on_values(name: str, seed: int, scale: float) -> None:
    assert_all_kept(ON_VALUES, FUNCTION_EXAMPLES[name], SHAPE, seed, scale)


@every
def test_promises(name: str) -> None:
    assert_all_kept(ON_ITSELF, FUNCTION_EXAMPLES[name], SHAPE)


@every
def test_what_is_not_differentiable_says_so(name: str) -> None:
    function = FUNCTION_EXAMPLES[name]
    if type(function).grad is Function.grad:
        cls = type(function).__name__
        with pytest.raises(InvalidValueError, match=rf"{cls}\.grad: expected a smooth function.*{cls}\.prox"):
            function.grad(torch.zeros(2, 3, 4))


def example(name: str) -> Prior:
    if name == "wavelet":
        pytest.importorskip("pywt")
    return PRIORS[name].example()


@prior
def test_promises_of_the_parts_of_priors(name: str) -> None:
    (part,) = example(name).parts(IMAGE)
    shape = IMAGE if part.operator is None else part.operator.out_shape
    for seed, scale in enumerate(SCALES):
        assert_all_kept(ON_VALUES, part.function, shape, seed, scale)
    assert_all_kept(ON_ITSELF, part.function, shape)
    if part.operator is not None:
        assert_all_kept((operator_and_bound,), part.operator)


@prior
@quick
@given(seed=seeds)
def test_values_are_non_negative_and_those_of_the_split(name: str, seed: int) -> None:
    x = normal(IMAGE, seed)
    value, split = example(name).value(x), example(name).split(IMAGE)
    assert value.shape == (len(x),) and bool((value >= 0).all())
    torch.testing.assert_close(split.value(x, split.products(x)), value)
    norms = [term.operator.norm_bound() for term in split.terms if term.operator is not None]
    assert split.square_norm() == pytest.approx(sum(norm**2 for norm in norms))


@prior
def test_multiples_and_sums(name: str) -> None:
    prior, x = example(name), normal(IMAGE, 5).abs().clamp(0.1, 0.9)
    torch.testing.assert_close((3 * prior).value(x), 3 * prior.value(x))
    torch.testing.assert_close((prior + 0.5 * prior).value(x), 1.5 * prior.value(x))
    assert bool(((0 * prior).value(x) == 0).all())


@prior
@pytest.mark.parametrize("factor", [0.0, 0.7])
def test_weights_per_image(name: str, factor: float) -> None:
    """A part takes one weight per image, and 0 switches it off, in the prox, the dual and the conjugate."""
    (part,) = (factor * example(name)).parts(IMAGE)
    w = part.product(normal(IMAGE, 0))
    weights = torch.tensor([0.2, 3.0, 0.0, 0.7, 1.0], dtype=torch.float64)
    proxes, duals, feasible = part.prox(w, weights), part.dual_prox(w, 0.5, weights), part.feasible(w, weights)
    for i, weight in enumerate(weights.tolist()):
        torch.testing.assert_close(proxes[i], part.prox(w, weight)[i])
        if weight or part.function.constraint:
            torch.testing.assert_close(duals[i], part.dual_prox(w, 0.5, weight)[i])
            torch.testing.assert_close(feasible[i], part.feasible(w, weight)[i])
        if (weight == 0 or factor == 0) and not part.function.constraint:
            assert torch.equal(part.prox(w, weight)[i], w[i])
            torch.testing.assert_close(duals[i], torch.zeros_like(w[i]))
            assert bool((feasible[i] == 0).all())
    if part.function.has_conjugate:
        assert bool(part.conjugate(feasible, weights).isfinite().all())
