"""Which method a lifting and a solver mean."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch

from torchlift.core.errors import invalid_type, invalid_value
from torchlift.liftings import Bregman, Lifting
from torchlift.solvers import Backtracking, LinearisedBCD, ProximalGradient, Solver
from torchlift.sweeps import RelativeStep
from torchlift.training.gradient_step import BackPropagation, GradientMethod, SweepDescent
from torchlift.training.lifted_step import ContrastiveDescent, LiftedDescent
from torchlift.training.step import TrainMethod

SolverLike: TypeAlias = Solver[Any, Any] | TrainMethod | Callable[[Any], torch.optim.Optimizer]
"""What `solver=` takes."""

#: Methods without lifted variables of their own, by the kind of lifting that means them.
_METHODS: dict[str, type[GradientMethod]] = {
    "none": SweepDescent,
    "hard": BackPropagation,
    "contrastive": ContrastiveDescent,
}
_SPELT = {"none": "none", "hard": "lifting=Conventional()", "contrastive": "lifting=Contrastive()"}

#: The first relative step from weights that were fitted layer by layer: longer ones would leave the fit again.
FITTED = 0.004


def as_method(
    lifting: Lifting | None, solver: SolverLike | None, *, fitted: bool = False
) -> tuple[TrainMethod, Lifting | None]:
    """The method, and the lifting of its lifted variables.

    | lifting | solver | method |
    |---|---|---|
    | none | none, an optimiser of torch | `SweepDescent` |
    | `Conventional()` | none, an optimiser of torch | `BackPropagation` |
    | `Contrastive(μ)` | none, an optimiser of torch | `ContrastiveDescent` |
    | any other, or none | a solver | `LiftedDescent`, Bregman where there is no lifting |
    | any other | none | `LiftedDescent` by linearised block-coordinate descent |
    | any | a method | that method |

    Arguments:
        lifting, solver: as given to `train`.
        fitted: whether weights start at a layer-wise fit.
    """
    if solver is not None and not callable(solver) and not isinstance(solver, Solver | TrainMethod):
        hint = f"Try torch.optim.{type(solver).__name__}." if isinstance(solver, torch.optim.Optimizer) else ""
        expected = "a solver, or a torch optimiser by its class or a partial"
        invalid_type("train solver", expected, solver, hint or "Try LinearisedBCD().")
    if isinstance(solver, type) and issubclass(solver, Solver | TrainMethod):
        expected = "a solver, or a torch optimiser by its class or a partial"
        invalid_value("train solver", expected, f"the class {solver.__name__}", f"Try {solver.__name__}().")
    gradient = _METHODS.get(_kind(lifting))
    if isinstance(solver, TrainMethod):
        _check_lifting(lifting, solver)
        return solver, lifting
    if isinstance(solver, Solver):
        if lifting is not None and gradient is not None:
            hint = "Leave the solver out, or give an optimiser of torch such as torch.optim.Adam."
            where = f"train solver with {type(lifting).__name__}"
            invalid_value(where, "one without lifted variables", type(solver).__name__, hint)
        return LiftedDescent(solver), Bregman() if lifting is None else lifting
    if gradient is None:
        if solver is not None:
            hint = "Leave the lifting out for sweeps, use lifting=Conventional(), or a solver such as LinearisedBCD()."
            invalid_value("train with a torch optimiser", "no lifted variables", type(lifting).__name__, hint)
        usual = LinearisedBCD(ProximalGradient(Backtracking()))
        return LiftedDescent(usual), lifting
    if solver is not None:
        return gradient(solver), lifting
    return gradient(partial(RelativeStep, start=FITTED)) if fitted else gradient(), lifting


def _kind(lifting: Lifting | None) -> str:
    if lifting is None:
        return "none"
    return "hard" if lifting.hard else "contrastive" if lifting.contrastive else "free"


def _check_lifting(lifting: Lifting | None, method: TrainMethod) -> None:
    expected, kind = method.needs.lifting, _kind(lifting)
    if expected not in (None, kind):
        given = "none" if lifting is None else type(lifting).__name__
        hint = "Or use LinearisedBCD() with it." if kind == "free" else ""
        invalid_value(f"train lifting with {type(method).__name__}", _SPELT[expected], given, hint)
