"""`check_function` finds what is wrong with a function of one's own, and says so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import torchlift as tl
from torchlift.core.checks import Shape
from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.functions import L1, Function, GroupNorm, Part, Prior, Ridge
from torchlift.operators import Context, Identity, LinearOperator


class WrongStep(Ridge):
    def prox(self, x: Tensor, step: float | Tensor = 1.0) -> Tensor:
        return super().prox(x, 2 * step)


class WrongGradient(Ridge):
    def grad(self, x: Tensor) -> Tensor:
        return 2 * super().grad(x)


class Flat(Ridge):
    def curvature(self) -> float:
        return 0.5


class WrongConjugate(Ridge):
    def conjugate(self, p: Tensor) -> Tensor:
        return 0.5 * super().conjugate(p)


class Cubic(Ridge):
    def value(self, x: Tensor) -> Tensor:
        return x.pow(3).flatten(1).sum(1)

    def grad(self, x: Tensor) -> Tensor:
        return 3 * x.square()


class Total(L1):
    def value(self, x: Tensor) -> Tensor:
        return super().value(x).sum()


class WholeBatch(GroupNorm):
    def value(self, x: Tensor) -> Tensor:
        return super().value(x) + x.abs().max()


class Greedy(L1):
    def prox_conjugate(self, p: Tensor, step: float | Tensor = 1.0, weight: float | Tensor = 1.0) -> Tensor:
        return p.clamp(-2, 2)


class AnyStep(L1):
    def prox(self, x: Tensor, step: float | Tensor = 1.0) -> Tensor:
        return super().prox(x, step if isinstance(step, Tensor) else torch.tensor(step))


class NoConstraint(L1):
    constraint: ClassVar[bool] = True


BROKEN = {
    WrongStep: ("prox_minimises", r"less its value at a rival c, is"),
    WrongGradient: ("gradient_by_autograd", r"grad is .* instead of"),
    Flat: ("curvature_bounds", r"change of grad is"),
    WrongConjugate: ("fenchel_young", r"value\(x\) \+ conjugate\(p\) − ⟨x, p⟩"),
    Cubic: ("convex", r"value\(p\) \+ ⟨grad\(p\), q − p⟩ − value\(q\) is"),
    Total: ("shapes_and_flags", r"value has shape \(\), not \(5,\)"),
    WholeBatch: ("samples_do_not_see_each_other", r"value of one sample is"),
    Greedy: ("moreau_identity", r"prox_conjugate\(p\) \+ step·prox\(p/step\) is"),
    AnyStep: ("steps_are_checked", r"prox took the step 0\.0; `check_step`"),
    NoConstraint: ("shapes_and_flags", r"constraint is True, and value\(prox\(x\)\) is not 0"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_functions_are_caught(kind: type[Function]) -> None:
    check, words = BROKEN[kind]
    report = tl.check_function(kind(), examples=6)
    findings = {finding.check: finding.observed for finding in report.findings}
    assert re.search(words, findings[check]), report


@dataclass(frozen=True)
class WrongAdjoint(LinearOperator):
    @property
    def in_shape(self) -> Shape:
        return (4,)

    @property
    def out_shape(self) -> Shape:
        return (4,)

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        return 2 * x

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        return y

    def norm_bound(self, context: Context = None) -> float:
        return 2.0


@dataclass(frozen=True)
class Composed(Prior):
    operator: LinearOperator

    def parts(self, shape: Shape) -> tuple[Part, ...]:
        return Part(L1(), self.operator), Part(Ridge())


def test_priors_are_checked_with_their_operators() -> None:
    assert tl.check_function(Composed(2.0 * Identity((4,))), (4,)).ok
    report = tl.check_function(Composed(WrongAdjoint()), (4,), examples=1)
    assert [finding.check for finding in report.findings] == ["operator_and_bound"]
    with pytest.raises(InvalidTypeError, match=r"check_function: expected a function, got .*Derive it from"):
        tl.check_function(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match=r"check_function examples: expected a whole number >= 1"):
        tl.check_function(L1(), examples=0)
