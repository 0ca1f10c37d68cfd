"""Solvers that see only a `Problem`, the parts they are made of, and the one loop that drives them.

| solver             | problem                                   | step size            |
|--------------------|-------------------------------------------|----------------------|
| `ProximalGradient` | f + g, f smooth, g with a prox            | a rule of your choice |
| `BlockCoordinateDescent` | f + g, convex in each block         | none                 |
| `LinearisedBCD`    | f + g in blocks                           | a rule for each block |
| `ImplicitStochasticGradient` | a mean over samples, in batches | stable for any       |
| `PDHG`             | f + g + Σ h_i(A_i x)                      | from norm bounds     |
| `ADMM`             | f + g + Σ h_i(A_i x), f quadratic         | none (a penalty)     |
| `GaussNewton`      | ½‖r(x)‖²                                  | none (a damping)     |
"""

from __future__ import annotations

from typing import Any

from torchlift.core.problem import CompositeProblem, Problem
from torchlift.core.signatures import check_calls
from torchlift.core.solution import Record, Result, Solution, SolverError
from torchlift.core.tensors import Point
from torchlift.functions import Equals, GroupNorm, LeastSquares, SquaredDistance
from torchlift.solvers.admm import ADMM
from torchlift.solvers.base import Measure, Solver, State
from torchlift.solvers.bcd import BlockCoordinateDescent, LinearisedBCD
from torchlift.solvers.conjugate_gradient import (
    LinearSolution,
    conjugate_gradient,
    power_iteration,
    ridge_least_squares,
)
from torchlift.solvers.drive import Stopping, solve
from torchlift.solvers.gauss_newton import GaussNewton, NonlinearLeastSquares
from torchlift.solvers.implicit_sgd import Anchored, ImplicitStochasticGradient, StochasticProblem
from torchlift.solvers.momentum import HeavyBall, Momentum, Nesterov, NoMomentum
from torchlift.solvers.pdhg import PDHG
from torchlift.solvers.proximal_gradient import (
    FISTA,
    GradientDescent,
    ProximalAdam,
    ProximalGradient,
    check_problem,
)
from torchlift.solvers.saddle import SaddleProblem, Term
from torchlift.solvers.scaling import AdamScaling, Diagonal, Matrix, NoScaling, Scaling
from torchlift.solvers.state import state_from_parts, state_to_parts
from torchlift.solvers.step_size import Backtracking, Constant, Cosine, Diminishing, FromBound, StepRule

#: Every solver by name. A new one adds its line here and cases to the contract tests, which it inherits.
SOLVERS: dict[str, type[Solver[Any, Any]]] = {
    "admm": ADMM,
    "block-coordinate-descent": BlockCoordinateDescent,
    "gauss-newton": GaussNewton,
    "implicit-stochastic-gradient": ImplicitStochasticGradient,
    "linearised-bcd": LinearisedBCD,
    "pdhg": PDHG,
    "proximal-gradient": ProximalGradient,
}

__all__ = [
    "ADMM",
    "FISTA",
    "PDHG",
    "SOLVERS",
    "AdamScaling",
    "Anchored",
    "Backtracking",
    "BlockCoordinateDescent",
    "CompositeProblem",
    "Constant",
    "Cosine",
    "Diagonal",
    "Diminishing",
    "Equals",
    "FromBound",
    "GaussNewton",
    "GradientDescent",
    "GroupNorm",
    "HeavyBall",
    "ImplicitStochasticGradient",
    "LeastSquares",
    "LinearSolution",
    "LinearisedBCD",
    "Matrix",
    "Measure",
    "Momentum",
    "Nesterov",
    "NoMomentum",
    "NoScaling",
    "NonlinearLeastSquares",
    "Point",
    "Problem",
    "ProximalAdam",
    "ProximalGradient",
    "Record",
    "Result",
    "SaddleProblem",
    "Scaling",
    "Solution",
    "Solver",
    "SolverError",
    "SquaredDistance",
    "State",
    "StepRule",
    "StochasticProblem",
    "Stopping",
    "Term",
    "check_problem",
    "conjugate_gradient",
    "power_iteration",
    "ridge_least_squares",
    "solve",
    "state_from_parts",
    "state_to_parts",
]

check_calls(__name__)
