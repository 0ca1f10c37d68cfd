"""The public checks of contracts: broken classes are caught, and the report says how."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchlift as tl
from torchlift.core.checks import check_positive
from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.functions.losses import Huber, Loss
from torchlift.networks import MLP, Network
from torchlift.networks.form import UnifiedForm, assemble
from torchlift.operators import Dense, LinearOperator
from torchlift.prox import ProximalActivation, ReLU
from torchlift.solvers import FISTA, ProximalGradient
from torchlift.solvers.examples import lasso, ridge
from torchlift.testing import ContractError, Report


def broken(report: Report, check: str) -> str:
    """The finding of one check, as text, after what holds for every failed report."""
    found = {finding.check: finding for finding in report.findings}
    assert check in found, f"{check} was not caught:\n{report}"
    assert not report.ok
    assert found[check].promise in report.checked
    with pytest.raises(ContractError, match=r"promises are kept") as error:
        report.raise_if_failed()
    assert str(found[check]) in str(error.value) == str(report)
    return str(found[check])


@dataclass(frozen=True)
class Ramp(ProximalActivation):
    """A ReLU of one's own, with places to break."""

    slope: float = 1.0
    weight: float = 0.0
    own_conjugate: bool = False

    def __call__(self, v: Tensor) -> Tensor:
        return self.slope * v.clamp(min=0)

    def psi(self, u: Tensor) -> Tensor:
        return (self.weight * u).masked_fill(~(u >= 0), torch.inf)

    def prox(self, u: Tensor, step: float | Tensor = 1.0) -> Tensor:
        if not isinstance(step, Tensor):
            check_positive("prox step", step)
        return self(u)

    def conjugate(self, v: Tensor) -> Tensor:
        return v.clamp(min=0).square() if self.own_conjugate else super().conjugate(v)


@dataclass(frozen=True)
class OverwritingRamp(Ramp):
    def __call__(self, v: Tensor) -> Tensor:
        return v.clamp_(min=0) if not v.requires_grad else v.clamp(min=0)


@dataclass(frozen=True)
class CarelessRamp(Ramp):
    def prox(self, u: Tensor, step: float | Tensor = 1.0) -> Tensor:
        return self(u)


@dataclass(frozen=True)
class UnfinishedRamp(Ramp):
    def psi(self, u: Tensor) -> Tensor:
        raise RuntimeError("to be written")


def test_an_activation_of_ones_own_passes() -> None:
    report = tl.check_activation(Ramp(), examples=6)
    assert report.ok and report.raise_if_failed() is report
    assert len(report.checked) >= 17
    assert str(report).startswith("Ramp(slope=1.0, weight=0.0, own_conjugate=False): ")
    assert ("there is no CUDA device" in str(report)) != torch.cuda.is_available()


ACTIVATIONS = {
    "expansive": (Ramp(slope=1.5), "firmly_nonexpansive", r"firmly nonexpansive.*found: .* is \d.*v\["),
    "Ψ that does not fit": (Ramp(weight=0.3), "sigma_minimises", r"σ\(v\) is the minimiser.*less its value at a rival"),
    "prox without its step": (Ramp(weight=0.3), "prox_minimises", r"step = "),
    "wrong conjugate": (Ramp(own_conjugate=True), "conjugate_has_slope_sigma", r"of `conjugate` is .* instead"),
    "overwrites": (OverwritingRamp(), "arguments_are_left_alone", r"do not change.*found: the argument after"),
    "any step": (CarelessRamp(), "steps_are_checked", r"prox took the step 0\.0"),
    "raises": (UnfinishedRamp(), "fenchel_young", r"RuntimeError: to be written"),
}  # fmt: skip


@pytest.mark.parametrize("case", ACTIVATIONS)
def test_broken_activations_are_caught(case: str) -> None:
    activation, check, words = ACTIVATIONS[case]
    text = broken(tl.check_activation(activation, examples=6), check)
    assert_matches(words, text)


def assert_matches(words: str, text: str) -> None:
    assert re.search(words, text, re.DOTALL), text


@dataclass(frozen=True, eq=False)
class Matrix(LinearOperator):
    """A dense matrix of one's own, with places to break."""

    weight: Tensor

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.weight.shape[1],)

    @property
    def out_shape(self) -> tuple[int, ...]:
        return (self.weight.shape[0],)

    def forward(self, x: Tensor, context: Any = None) -> Tensor:
        return x @ self.weight.T

    def adjoint(self, y: Tensor, context: Any = None) -> Tensor:
        return y @ self.weight


class WrongAdjoint(Matrix):
    def adjoint(self, y: Tensor, context: Any = None) -> Tensor:
        return 1.001 * (y @ self.weight)


class Shifted(Matrix):
    def forward(self, x: Tensor, context: Any = None) -> Tensor:
        return x @ self.weight.T + 1


class LowBound(Matrix):
    def norm_bound(self, context: Any = None) -> float:
        return 0.9 * float(torch.linalg.matrix_norm(self.weight, 2))


class Mixing(Matrix):
    def forward(self, x: Tensor, context: Any = None) -> Tensor:
        return (x + x.mean(0)) @ self.weight.T


class Detached(Matrix):
    def forward(self, x: Tensor, context: Any = None) -> Tensor:
        return x @ self.weight.detach().T


class Unchecked(Matrix):
    def __call__(self, x: Tensor, context: Any = None) -> Tensor:
        return x.double().reshape(-1, self.in_shape[0]) @ self.weight.T


def matrix(kind: type[Matrix], dtype: torch.dtype = torch.float64) -> Matrix:
    return kind(torch.randn(4, 3, dtype=dtype, generator=torch.Generator().manual_seed(0)))


def test_an_operator_of_ones_own_passes() -> None:
    assert tl.check_operator(matrix(Matrix, torch.float32)).ok
    mask = (torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    assert tl.check_operator(tl.operators.Mask(shape=(1, 4, 4)), mask).ok


OPERATORS = {
    WrongAdjoint: ("adjoint", r"⟨A x, y⟩ = ⟨x, Aᵀ y⟩.*relative to the norms is 0\.000\d+, and at most 1e-12"),
    Shifted: ("linear", r"forward\(2\.5a − b\) is .* instead of"),
    LowBound: ("norm_bound", r"‖A‖₂ is .*for example: norm_bound = "),
    Mixing: ("samples_are_independent", r"one sample at a time"),
    Detached: ("gradients", r"GradcheckError"),
    Unchecked: ("calls_are_checked", r"a call with no batch axis went through"),
}


@pytest.mark.parametrize("kind", OPERATORS)
def test_broken_operators_are_caught(kind: type[Matrix]) -> None:
    check, words = OPERATORS[kind]
    assert_matches(words, broken(tl.check_operator(matrix(kind)), check))


def test_large_operators_are_checked_without_their_matrix() -> None:
    report = tl.check_operator(tl.operators.FiniteDifference((1, 64, 64)))
    assert report.ok
    assert len(report.left_out) == 2 and all("smaller instance" in reason for _, reason in report.left_out)
    assert "not tried: to_dense()" in str(report)


class WrongGradient(tl.liftings.Bregman):
    def grad_v(self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor) -> Tensor:
        return activation(v) - z  # without the weight


class WrongSlope(tl.liftings.Bregman):
    def grad_z(self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor) -> Tensor:
        return weight * (v - z)


class WrongProx(tl.liftings.Bregman):
    def prox_z(self, activation: ProximalActivation, z: Tensor, step: float | Tensor, weight: float | Tensor) -> Tensor:
        return activation.prox(z, step)  # without the weight


class WrongCurvature(tl.liftings.Bregman):
    def curvature_v(self, activation: ProximalActivation) -> float:
        return 0.5


class WrongValue(tl.liftings.Bregman):
    def value(self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor) -> Tensor:
        return super().value(activation, z, v, weight) + 1e-6


class Overwriting(tl.liftings.Bregman):
    def gradients(
        self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        grad_z = self.grad_z(activation, z, v, weight)
        return grad_z, v.copy_(self.grad_v(activation, z, v, weight))


LIFTINGS = {
    WrongGradient: ("gradients_by_autograd", r"grad_v is .* instead of .*weight = 0\.3.*SoftThreshold"),
    WrongSlope: ("gradients_by_differences", r"difference quotient of smooth_value in z"),
    WrongProx: ("prox_minimises", r"less its value at a rival"),
    WrongCurvature: ("curvature_bounds", r"change of grad_v is"),
    WrongValue: ("value_is_its_parts", r"\|value − smooth_value − nonsmooth_value\| is 1e-06"),
    Overwriting: ("gradients_in_one_call", r"grad_v overwrites v"),
}


@pytest.mark.parametrize("kind", LIFTINGS)
def test_broken_liftings_are_caught(kind: type[tl.liftings.Lifting]) -> None:
    check, words = LIFTINGS[kind]
    assert_matches(words, broken(tl.check_lifting(kind(), [tl.SoftThreshold(0.2)]), check))


def test_liftings_are_tried_on_what_they_accept() -> None:
    assert tl.check_lifting(tl.liftings.Fenchel(), examples=1).ok  # on seven activations
    with pytest.raises(InvalidValueError, match="at least one that the lifting accepts, got none"):
        tl.check_lifting(tl.liftings.Bregman(), [])


class Small(Network):
    """A network of one's own, N(y) = K σ(W y), with places to break."""

    def __init__(self) -> None:
        super().__init__((3,), (2,))
        generator = torch.Generator().manual_seed(0)
        self.first = nn.Parameter(torch.randn(4, 3, generator=generator))
        self.last = nn.Parameter(torch.randn(2, 4, generator=generator))

    def operators(self) -> UnifiedForm:
        W, K = {(0, 0): Dense(self.first)}, {1: Dense(self.last)}
        return assemble((3,), W, [None], [ReLU()], K, like=self.first)


class OtherForward(Small):
    def forward(self, y: Tensor, context: Any = None) -> Tensor:
        return super().forward(y, context) + 1e-3


class Forgotten(Small):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Parameter(torch.zeros(2))


class Unsaved(Small):
    def __init__(self) -> None:
        super().__init__()
        self.single = torch.randn(2, 4)

    def operators(self) -> UnifiedForm:
        W, K = {(0, 0): Dense(self.first)}, {1: Dense(self.single)}
        return assemble((3,), W, [None], [ReLU()], K, like=self.first)


def test_a_network_of_ones_own_passes() -> None:
    network = Small()
    before = network.first.clone()
    report = tl.check_network(network)
    assert report.ok, report
    assert torch.equal(network.first, before) and network.first.grad is None and network.first.dtype == torch.float32


NETWORKS = {
    OtherForward: ("unified_form", r"forward and the output of states: the difference is 0\.001"),
    Forgotten: ("parameters_are_seen_once", r"no gradient reaches \['spare'\]"),
    Unsaved: ("unified_form", r"RuntimeError: .*dtype"),
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_broken_networks_are_caught(kind: type[Network]) -> None:
    check, words = NETWORKS[kind]
    assert_matches(words, broken(tl.check_network(kind()), check))


@dataclass(frozen=True)
class HalfGradient(Huber):
    def grad(self, prediction: Tensor, target: Tensor) -> Tensor:
        return 0.5 * super().grad(prediction, target)


@dataclass(frozen=True)
class Concave(Huber):
    def value(self, prediction: Tensor, target: Tensor) -> Tensor:
        return -super().value(prediction, target)

    def grad(self, prediction: Tensor, target: Tensor) -> Tensor:
        return -super().grad(prediction, target)


@dataclass(frozen=True)
class BoldCurvature(Huber):
    def curvature(self) -> float:
        return 0.25


@dataclass(frozen=True)
class OtherProx(Huber):
    def prox(self, prediction: Tensor, target: Tensor, step: float | Tensor = 1.0) -> Tensor:
        return super().prox(prediction, target, 2 * step)


LOSSES = {
    HalfGradient: ("gradient_by_autograd", r"grad is .* instead of"),
    Concave: ("convex", r"value\(p\) \+ ⟨grad\(p\), q − p⟩ − value\(q\) is"),
    BoldCurvature: ("curvature_bounds", r"change of grad is"),
    OtherProx: ("prox_minimises", r"less its value at a rival"),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_broken_losses_are_caught(kind: type[Loss]) -> None:
    check, words = LOSSES[kind]
    assert_matches(words, broken(tl.check_loss(kind()), check))


def start() -> Tensor:
    return torch.zeros(8, dtype=torch.float64)


@dataclass(frozen=True)
class Forgetful(ProximalGradient):
    """Counts in itself instead of in its state."""

    def step(self, problem: Any, state: Any) -> Any:
        return dataclasses.replace(super().step(problem, state), count=1)


@dataclass(frozen=True)
class Lazy(ProximalGradient):
    def step(self, problem: Any, state: Any) -> Any:
        new = super().step(problem, state)
        return dataclasses.replace(new, point=state.point)


@dataclass(frozen=True)
class InPlace(ProximalGradient):
    def step(self, problem: Any, state: Any) -> Any:
        new = super().step(problem, state)
        for old, tensor in zip(state.point.tensors, new.point.tensors, strict=True):
            old.copy_(tensor)
        return new


SOLVERS = {
    Forgetful: ("steps_are_recorded", r"steps are recorded as \[1, 1, 1, 1, 1\]"),
    Lazy: ("makes_progress", r"the residual went from"),
    InPlace: ("states_are_left_alone", r"the old state after a step"),
}


@pytest.mark.parametrize("kind", SOLVERS)
def test_broken_solvers_are_caught(kind: type[ProximalGradient]) -> None:
    check, words = SOLVERS[kind]
    assert_matches(words, broken(tl.check_solver(kind(), ridge(), start()), check))


def test_a_solver_passes() -> None:
    assert tl.check_solver(FISTA(), lasso(), start()).ok


@pytest.mark.parametrize(
    ("check", "wanted"),
    [
        (tl.check_activation, "a proximal activation, got function.*ProximalActivation"),
        (tl.check_operator, "a linear operator, got function.*LinearOperator"),
        (tl.check_lifting, "a lifting, got function.*Lifting"),
        (tl.check_network, "a network, got function.*lift"),
        (tl.check_loss, "a loss, got function.*Loss"),
    ],
)
def test_strangers_are_refused(check: Any, wanted: str) -> None:
    with pytest.raises(InvalidTypeError, match=rf"{check.__name__}: expected {wanted}"):
        check(lambda v: v)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InvalidTypeError, match="check_solver: expected a solver, got function"):
        tl.check_solver(lambda x: x, ridge(), start())  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="check_activation examples: expected a whole number >= 1, got 0"):
        tl.check_activation(tl.ReLU(), examples=0)
    with pytest.raises(InvalidValueError, match="check_network context: expected at least 3 samples, got 2"):
        tl.check_network(MLP([2, 2]), torch.zeros(2, 1))
