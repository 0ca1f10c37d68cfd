"""Every solver with problems that it can solve, for its contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchlift.core.problem import CompositeProblem, Problem
from torchlift.core.tensors import Point
from torchlift.functions import L1, Equals
from torchlift.operators import Dense
from torchlift.solvers import (
    ADMM,
    FISTA,
    PDHG,
    Backtracking,
    BlockCoordinateDescent,
    Constant,
    Cosine,
    Diagonal,
    Diminishing,
    GaussNewton,
    GradientDescent,
    HeavyBall,
    ImplicitStochasticGradient,
    LinearisedBCD,
    Matrix,
    Nesterov,
    NonlinearLeastSquares,
    ProximalAdam,
    ProximalGradient,
    SaddleProblem,
    Solver,
    StochasticProblem,
    Term,
)
from torchlift.solvers.examples import lasso, normal, regression, ridge, total_variation


@dataclass(frozen=True, eq=False)
class Example:
    """A solver with a problem it can solve and a start."""

    solver: Solver[Any, Any]
    problem: Any
    start: Point

    def __repr__(self) -> str:
        return f"{self.solver}"


def basis_pursuit(rows: int = 5, columns: int = 9, seed: int = 0) -> SaddleProblem:
    """min ‖x‖₁ with Ax = b."""
    matrix = normal((rows, columns), seed)
    return SaddleProblem((Term(Equals(normal((1, rows), seed + 1)), Dense(matrix)),), g=L1(1.0))


def curve_fit(points: int = 20, seed: int = 0) -> NonlinearLeastSquares:
    """Fit a exp(−bt) + c to samples of 2 exp(−1.3t) + 0.5 with little noise."""
    t = torch.linspace(0, 3, points, dtype=torch.float64)
    samples = 2.0 * torch.exp(-1.3 * t) + 0.5 + 0.01 * normal((points,), seed)
    return NonlinearLeastSquares(lambda x: x[0] * torch.exp(-x[1] * t) + x[2] - samples)


def _proximal_gradient() -> list[Example]:
    start = Point({"x": normal((8,), 5)})
    weights = 1 + normal((8,), 6).square()
    gram = torch.diag(weights) * 40
    parts: list[ProximalGradient] = [
        ProximalGradient(),
        FISTA(),
        FISTA(Backtracking()),
        FISTA(restart=False),
        ProximalGradient(Backtracking(start=1e-4), HeavyBall(0.5)),
        ProximalGradient(Constant(0.01), Nesterov(beta=0.7)),
        ProximalGradient(Diminishing(0.02)),
        ProximalGradient(Cosine(0.02, 30, 1e-3)),
        ProximalGradient(Backtracking(), scaling=Diagonal(weights)),
        ProximalAdam(0.05),
        ProximalAdam(0.05, matched=True),
    ]
    smooth = [GradientDescent(), GradientDescent(momentum=HeavyBall(0.8)), ProximalGradient(1.0, scaling=Matrix(gram))]
    return [Example(solver, lasso(), start) for solver in parts] + [Example(s, ridge(), start) for s in smooth]


def two_blocks(seed: int = 0) -> CompositeProblem:
    """½‖Aa + Bb − c‖² + 0.2‖b‖₁ over the blocks "a" and "b"."""
    A, B, c = normal((12, 3), seed), normal((12, 4), seed + 1), normal((12,), seed + 2)

    def gradient(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        residual = A @ a + B @ b - c
        return A.T @ residual, B.T @ residual

    bounds = {name: float(torch.linalg.matrix_norm(matrix, 2)) ** 2 for name, matrix in (("a", A), ("b", B))}
    return CompositeProblem(
        lambda a, b: 0.5 * (A @ a + B @ b - c).square().sum(),
        gradient,
        {"b": L1(0.2)},
        bounds,
        blocks=("a", "b"),
        elementwise=True,
    )


class Regression(StochasticProblem):
    """Least squares with an exact solution, in batches of four samples."""

    def __init__(self, seed: int = 0) -> None:
        self.matrix = normal((40, 5), seed)
        self.target = self.matrix @ normal((5,), seed + 1)

    @property
    def blocks(self) -> tuple[str, ...]:
        return ("x",)

    def batch(self, count: int, parameters: Point) -> tuple[Problem, Point]:
        chosen = torch.randint(40, (4,), generator=torch.Generator().manual_seed(count))
        return regression(self.matrix[chosen], self.target[chosen], None), parameters

    def value(self, parameters: Point) -> float:
        return 0.5 * float((self.matrix @ parameters["x"][0] - self.target).square().sum())


def _blocks(solvers: list[Solver[Any, Any]]) -> list[Example]:
    start = Point({"a": normal((3,), 7), "b": normal((4,), 8)})
    return [Example(solver, two_blocks(), start) for solver in solvers]


def _stochastic() -> list[Example]:
    solvers = [ImplicitStochasticGradient(0.05), ImplicitStochasticGradient(Diminishing(0.2), FISTA(), 5)]
    return [Example(solver, Regression(), Point({"x": normal((5,), 9)})) for solver in solvers]


def _saddle(solvers: list[Solver[Any, Any]]) -> list[Example]:
    image, vector = Point({"x": torch.zeros(1, 1, 6, 6, dtype=torch.float64)}), Point({"x": normal((1, 9), 3)})
    examples: list[Example] = []
    for solver in solvers:
        examples.append(Example(solver, total_variation(), image))
        examples.append(Example(solver, total_variation(smooth=True), image))
        examples.append(Example(solver, basis_pursuit(), vector))
    return examples


def _gauss_newton() -> list[Example]:
    start = Point({"x": torch.ones(3, dtype=torch.float64)})
    return [Example(solver, curve_fit(), start) for solver in (GaussNewton(), GaussNewton(dense_up_to=0))]


#: Name of a solver → what to run it on. A new solver adds its line and inherits all contract tests.
EXAMPLES: dict[str, Callable[[], list[Example]]] = {
    "admm": lambda: _saddle([ADMM(), ADMM(cholesky_up_to=0)]),
    "block-coordinate-descent": lambda: _blocks([BlockCoordinateDescent(), BlockCoordinateDescent(1e-2, 3)]),
    "gauss-newton": _gauss_newton,
    "implicit-stochastic-gradient": _stochastic,
    "linearised-bcd": lambda: _blocks(
        [
            LinearisedBCD(),
            LinearisedBCD(FISTA(), "backward", steps=2),
            LinearisedBCD({"a": ProximalGradient(0.02, HeavyBall(0.3)), "b": ProximalAdam(0.05)}, "jacobi"),
        ]
    ),
    "pdhg": lambda: _saddle([PDHG(), PDHG(tau=0.1, sigma=0.1)]),
    "proximal-gradient": _proximal_gradient,
}
