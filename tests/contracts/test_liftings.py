"""What every lifting promises, on every activation. A newcomer in `LIFTINGS` inherits all of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from contracts.kept import assert_all_kept
from torchlift.core.errors import InvalidValueError
from torchlift.liftings import LIFTINGS, Bregman, Classical, Contrastive, Fenchel, Lifting
from torchlift.liftings.bregman import WRITTEN
from torchlift.prox import ACTIVATIONS, ProximalActivation
from torchlift.testing.activations import squared
from torchlift.testing.liftings import HARD, ON_ITSELF, ON_VALUES, inside, normal, rounding

EXAMPLES = {
    f"{name}-{index}": activation
    for name, cls in ACTIVATIONS.items()
    for index, activation in enumerate(cls.examples())
}


def defined(name: str, activation: ProximalActivation) -> bool:
    """The full matrix has two kinds of holes: B_σ that is not written out, and the hard constraint."""
    return name != "fenchel" or type(activation) in WRITTEN


def pairs(*names: str):
    """All (lifting, activation) of the named liftings, each on all activations it is defined for."""
    cases = [
        pytest.param(name, activation, id=f"{name}-{label}")
        for name in names
        for label, activation in EXAMPLES.items()
        if defined(name, activation)
    ]
    return pytest.mark.parametrize(("name", "activation"), cases)


# A newcomer appears here by itself, and fails until its smooth and nonsmooth parts are written down below.
# Contrastive is left out: all that it computes for a layer is code of Classical, as its own test says.
PENALTIES = tuple(name for name, cls in LIFTINGS.items() if not cls.hard and not cls.contrastive)
BICONVEX = ("bregman", "fenchel")
ZERO_AT_AGREEMENT = (*BICONVEX, "mac-qp")
CONVEX = tuple(name for name in PENALTIES if name != "mac-qp")

every = pairs(*PENALTIES)
quick = settings(max_examples=4, deadline=None, derandomize=True)
shapes = st.sampled_from([(1, 3), (4, 3), (2, 4, 3)])  # three channels, for the per-channel thresholds
values = shapes.flatmap(lambda shape: arrays(np.float64, shape, elements=st.floats(-6, 6)).map(torch.from_numpy))
seeds = st.integers(0, 2**31 - 1)
weights = st.sampled_from([1.0, 0.3, 7.0])


def smooth_part(name: str, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float) -> Tensor:
    """The part of D that is smooth in z, up to a function of v alone, from the textbook."""
    if name in BICONVEX:
        return weight * activation.reduce(0.5 * z * z - z * v)
    if name == "mac-qp":
        return 0.5 * weight * squared(activation, z - activation(v))
    return 0.5 * weight * squared(activation, z - v)


def nonsmooth_part(name: str, activation: ProximalActivation, z: Tensor, weight: float) -> Tensor:
    if name in BICONVEX:
        return weight * activation.psi(z)
    if name == "mac-qp":
        return torch.zeros_like(activation.reduce(z))
    return activation.psi(z)


def textbook(name: str, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float) -> Tensor:
    """D from its definition."""
    if name in BICONVEX:
        return weight * (activation.phi(z) + activation.conjugate(v) - activation.reduce(z * v))
    return smooth_part(name, activation, z, v, weight) + nonsmooth_part(name, activation, z, weight)


def test_every_penalty_has_its_textbook() -> None:
    assert set(PENALTIES) == {"bregman", "classical", "fenchel", "mac-qp"}


def test_a_layer_of_the_contrastive_energy_is_classical() -> None:
    methods = [name for name, value in vars(Lifting).items() if callable(value) and not name.startswith("__")]
    assert len(methods) > 8
    for name in methods:
        assert getattr(Contrastive, name) is getattr(Classical, name), name
    assert Contrastive.smooth_in_z is Classical.smooth_in_z


@every
@quick
@given(v=values, seed=seeds, weight=weights)
def test_value_is_the_textbook(name: str, activation: ProximalActivation, v: Tensor, seed: int, weight: float) -> None:
    z = inside(activation, v, seed)
    value = LIFTINGS[name]().value(activation, z, v, weight)
    assert value.shape == activation.reduce(v).shape
    error = (value - textbook(name, activation, z, v, weight)).abs()
    assert (error <= rounding(activation, z, v, weight)).all()


@pairs(*ZERO_AT_AGREEMENT)
@quick
@given(v=values, seed=seeds)
def test_zero_at_agreement_and_not_below(name: str, activation: ProximalActivation, v: Tensor, seed: int) -> None:
    lifting = LIFTINGS[name]()
    p, z = activation(v), inside(activation, v, seed)
    at_agreement = lifting.value(activation, p, v, 2.0)
    # Fenchel adds and subtracts the written terms, so it vanishes to rounding; the other two exactly.
    tolerance = rounding(activation, p, v) if name == "fenchel" else 0.0
    assert (at_agreement.abs() <= tolerance).all()
    assert (lifting.value(activation, z, v, 2.0) >= -rounding(activation, z, v)).all()
    for near in (p + 0.1 * (z - p), p + 1e-3 * (z - p)):
        assert (lifting.value(activation, near, v, 2.0) >= -rounding(activation, near, v)).all()


@pairs(*ZERO_AT_AGREEMENT)
@quick
@given(v=values, seed=seeds, weight=weights)
def test_at_least_the_squared_distance(
    name: str, activation: ProximalActivation, v: Tensor, seed: int, weight: float
) -> None:
    z = inside(activation, v, seed)
    bound = 0.5 * weight * squared(activation, z - activation(v))
    value = LIFTINGS[name]().value(activation, z, v, weight)
    assert (value >= bound - rounding(activation, z, v, weight)).all()


@every
@quick
@given(v=values, seed=seeds, weight=weights)
def test_the_declared_minimiser_over_z(
    name: str, activation: ProximalActivation, v: Tensor, seed: int, weight: float
) -> None:
    """σ(v), and for the classical energy prox_{Ψ/μ}(v), which is σ(v) for μ = 1."""
    lifting = LIFTINGS[name]()
    p = activation(v) if name in ZERO_AT_AGREEMENT or weight == 1.0 else activation.prox(v, 1 / weight)
    least = lifting.value(activation, p, v, weight)
    for share in (1.0, 0.3, 1e-2):
        c = p + share * (inside(activation, v, seed) - p)
        margin = lifting.value(activation, c, v, weight) - least - 0.5 * weight * squared(activation, c - p)
        assert (margin >= -10 * rounding(activation, c, v, max(weight, 1))).all()


@pairs("fenchel")
@quick
@given(v=values, seed=seeds, weight=weights)
def test_fenchel_is_bregman(name: str, activation: ProximalActivation, v: Tensor, seed: int, weight: float) -> None:
    z = inside(activation, v, seed)
    fenchel, bregman = Fenchel(), Bregman()
    torch.testing.assert_close(
        fenchel.value(activation, z, v, weight), bregman.value(activation, z, v, weight), rtol=1e-12, atol=1e-12
    )
    outside = z - 20 * torch.ones_like(z)
    assert torch.equal(
        fenchel.value(activation, outside, v, weight).isinf(), bregman.value(activation, outside, v, weight).isinf()
    )
    for ours, theirs in zip(
        fenchel.gradients(activation, z, v.clone(), weight),
        bregman.gradients(activation, z, v.clone(), weight),
        strict=True,
    ):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", PENALTIES)
def test_check_refuses_exactly_the_undefined(name: str) -> None:
    lifting, x = LIFTINGS[name](), torch.zeros(2, 3)
    for activation in EXAMPLES.values():
        if defined(name, activation):
            lifting.check(activation)
            continue
        for call in (lambda a: lifting.check(a), lambda a: lifting.value(a, x, x, 1.0)):
            with pytest.raises(InvalidValueError, match=r"Fenchel: expected .*SoftThreshold.* Try Bregman\(mu\)"):
                call(activation)


@every
@quick
@given(v=values, seed=seeds, weight=weights)
def test_gradients_against_autograd(
    name: str, activation: ProximalActivation, v: Tensor, seed: int, weight: float
) -> None:
    lifting = LIFTINGS[name]()
    z, v = inside(activation, v, seed).requires_grad_(), v.clone().requires_grad_()
    (wanted_z,) = torch.autograd.grad(smooth_part(name, activation, z, v.detach(), weight).sum(), z)
    (wanted_v,) = torch.autograd.grad(textbook(name, activation, z.detach(), v, weight).sum(), v)
    (of_value,) = torch.autograd.grad(lifting.value(activation, z.detach(), v, weight).sum(), v)
    with torch.no_grad():
        grad_z, grad_v = lifting.grad_z(activation, z, v, weight), lifting.grad_v(activation, z, v, weight)
    close = {"rtol": 1e-10, "atol": 1e-10 * weight}
    torch.testing.assert_close(grad_z, wanted_z, **close)
    torch.testing.assert_close(grad_v, wanted_v, **close)
    if name != "fenchel":  # whose written terms have kinks of their own, where autograd must choose a side
        torch.testing.assert_close(grad_v, of_value, **close)


@pairs(*CONVEX)
@quick
@given(v=values, seed=seeds, share=st.floats(0.05, 0.95))
def test_convex_along_segments(name: str, activation: ProximalActivation, v: Tensor, seed: int, share: float) -> None:
    lifting = LIFTINGS[name]()
    z, other_z, other_v = inside(activation, v, seed), inside(activation, v, seed + 1), normal(v, seed + 2, 3.0)

    def value(z: Tensor, v: Tensor) -> Tensor:
        return lifting.value(activation, z, v, 1.0)

    tolerance = rounding(activation, z, v) + rounding(activation, other_z, other_v)
    chord = share * value(z, v) + (1 - share) * value(other_z, v)
    assert (value(share * z + (1 - share) * other_z, v) <= chord + tolerance).all()
    chord = share * value(z, v) + (1 - share) * value(z, other_v)
    assert (value(z, share * v + (1 - share) * other_v) <= chord + tolerance).all()


@every
@quick
@given(v=values, seed=seeds, weight=weights)
def test_promises_on_values(name: str, activation: ProximalActivation, v: Tensor, seed: int, weight: float) -> None:
    assert_all_kept(ON_VALUES, LIFTINGS[name](), activation, v, seed, weight)


@every
def test_promises(name: str, activation: ProximalActivation) -> None:
    lifting = LIFTINGS[name]()
    assert_all_kept(ON_ITSELF, lifting, activation)
    assert lifting.curvature_z(activation) == 1.0
    assert lifting.curvature_v(activation) == 1.0 or name == "mac-qp"


OFF_DOMAIN = {"box-0", "elu-0", "l2-ball-0", "relu-0", "sigmoid-0", "simplex-0", "softmax-0", "softsign-0", "tanh-0"}


@pytest.mark.parametrize("name", CONVEX)
def test_the_domain_of_known_activations(name: str) -> None:
    for activation in (EXAMPLES[label] for label in OFF_DOMAIN if defined(name, EXAMPLES[label])):
        assert LIFTINGS[name]().nonsmooth_value(activation, torch.full((4, 3), -50.0), 2.0).isinf().all()


@pairs(*ZERO_AT_AGREEMENT)
def test_extreme_arguments_stay_above_zero(name: str, activation: ProximalActivation) -> None:
    signs = torch.tensor([[1.0, -1.0, 0.5], [-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]])
    for size in (1e-30, 1.0, 88.0, 1e4):
        v = size * signs
        for z in (activation(v), activation(-v), activation(torch.zeros_like(v))):
            bound = -1e-6 * (1 + squared(activation, v) + squared(activation, z))
            assert (LIFTINGS[name]().value(activation, z, v, 2.0) >= bound).all()


@pairs("conventional")
def test_the_hard_constraint(name: str, activation: ProximalActivation) -> None:
    lifting = LIFTINGS[name]()
    assert_all_kept(HARD, lifting, activation)
    v = normal(torch.empty(4, 3, dtype=torch.float64), 6, 3.0)
    p = activation(v)
    one_entry = p.clone()
    one_entry[1, 1] += 1e-3
    assert int(lifting.value(activation, one_entry, v, 1.0).isinf().sum()) == 1
    for call in (
        lambda: lifting.grad_z(activation, p, v, 1.0),
        lambda: lifting.grad_v(activation, p, v, 1.0),
        lambda: lifting.gradients(activation, p, v, 1.0),
        lambda: lifting.prox_z(activation, p, 1.0, 1.0),
    ):
        with pytest.raises(InvalidValueError, match=r"Conventional\.\w+: .*hard constraint.*Bregman"):
            call()


@pytest.mark.parametrize("name", LIFTINGS)
def test_flags_and_weights(name: str) -> None:
    lifting = LIFTINGS[name]()
    assert isinstance(lifting, Lifting)
    assert lifting.hard == (name == "conventional")
    assert lifting.contrastive == (name == "contrastive")
    assert lifting.weights(3) == (1.0, 1.0, 1.0)
    assert hash(lifting) == hash(LIFTINGS[name]()) and lifting == LIFTINGS[name]()
