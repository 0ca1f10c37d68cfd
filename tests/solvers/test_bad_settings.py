"""Bad settings are refused when problem and solver first meet, with the alternatives named."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from torchlift.core.errors import TorchliftError
from torchlift.core.tensors import Point
from torchlift.functions.regularisers import L1, NuclearNorm
from torchlift.operators import Dense, FiniteDifference, Identity
from torchlift.solvers import (
    ADMM,
    FISTA,
    PDHG,
    AdamScaling,
    Backtracking,
    CompositeProblem,
    Constant,
    Cosine,
    Diagonal,
    Diminishing,
    Equals,
    FromBound,
    GaussNewton,
    GradientDescent,
    GroupNorm,
    HeavyBall,
    LeastSquares,
    Matrix,
    Nesterov,
    ProximalAdam,
    ProximalGradient,
    SaddleProblem,
    SquaredDistance,
    Stopping,
    Term,
    conjugate_gradient,
    power_iteration,
    ridge_least_squares,
    solve,
    state_from_parts,
    state_to_parts,
)
from torchlift.solvers.examples import lasso, normal, ridge, total_variation

X = torch.ones(8, dtype=torch.float64)
IMAGE = torch.zeros(1, 1, 6, 6, dtype=torch.float64)
EYE = torch.eye(3, dtype=torch.float64)


class WithoutProx:
    def value(self, x: torch.Tensor) -> torch.Tensor:
        return x.abs().sum()


def unbounded() -> CompositeProblem:
    return CompositeProblem(lambda x: x.square().sum(), lambda x: 2 * x)


def matrices() -> CompositeProblem:
    return CompositeProblem(lambda x: x.square().sum(), None, NuclearNorm(1.0), 2.0)


SETTINGS: dict[str, tuple[Callable[[], object], str]] = {
    "negative step": (lambda: Constant(-0.1), r"Constant step: expected a number > 0, got -0.1"),
    "zero step": (lambda: ProximalGradient(0.0), r"Constant step: expected a number > 0"),
    "NaN step": (lambda: Constant(math.nan), r"Constant step: expected a finite number"),
    "infinite step of a block": (lambda: Constant({"u": math.inf}), r"step of 'u': expected a finite number"),
    "a step in words": (lambda: ProximalGradient("auto"), r"expected a step rule or a number.*Backtracking"),  # type: ignore[arg-type]
    "negative learning rate": (lambda: ProximalAdam(-1e-3), r"Constant step: expected a number > 0"),
    "beta of one": (lambda: HeavyBall(1.0), r"HeavyBall beta: expected a number in \[0, 1\), got 1.0"),
    "negative beta": (lambda: HeavyBall(-0.1), r"HeavyBall beta: expected a number in \[0, 1\)"),
    "NaN beta": (lambda: HeavyBall(math.nan), r"HeavyBall beta: expected a finite number"),
    "Nesterov beta above one": (lambda: Nesterov(beta=1.5), r"Nesterov beta"),
    "Adam beta1": (lambda: AdamScaling(beta1=1.0), r"AdamScaling beta1"),
    "Adam beta2": (lambda: AdamScaling(beta2=-0.5), r"AdamScaling beta2"),
    "Adam eps": (lambda: AdamScaling(eps=0.0), r"AdamScaling eps: expected a number > 0"),
    "momentum in words": (lambda: ProximalGradient(momentum="nesterov"), r"momentum: expected a Momentum, got str"),  # type: ignore[arg-type]
    "scaling in words": (lambda: ProximalGradient(scaling="adam"), r"scaling: expected a Scaling, got str"),  # type: ignore[arg-type]
    "blocks as one word": (lambda: ProximalGradient(blocks="x"), r"blocks: expected a non-empty tuple"),  # type: ignore[arg-type]
    "no blocks": (lambda: ProximalGradient(blocks=()), r"blocks: expected a non-empty tuple"),
    "factor of two": (lambda: FromBound(2.0), r"FromBound factor: expected a number in \(0, 2\)"),
    "bound never": (lambda: FromBound(every=0), r"FromBound every: expected a whole number >= 1"),
    "shrink of one": (lambda: Backtracking(shrink=1.0), r"Backtracking shrink: expected a number in \(0, 1\)"),
    "shrinking growth": (lambda: Backtracking(growth=0.9), r"Backtracking growth: expected a number >= 1"),
    "no start": (lambda: Backtracking(start=0), r"Backtracking start: expected a number > 0"),
    "no trials": (lambda: Backtracking(trials=0), r"Backtracking trials: expected a whole number >= 1"),
    "power of two": (lambda: Diminishing(1.0, 2.0), r"Diminishing power: expected a number in \(0, 1\]"),
    "cosine that rises": (lambda: Cosine(0.1, 10, 0.2), r"Cosine end: expected at most start"),
    "cosine to zero": (lambda: Cosine(0.1, 10, 0.0), r"Cosine end: expected a number > 0"),
    "half a step": (lambda: Cosine(0.1, 1.5, 0.01), r"Cosine steps: expected a whole number"),  # type: ignore[arg-type]
    "negative diagonal": (lambda: Diagonal(-X), r"Diagonal weights of 'x': expected numbers > 0, got -1.0"),
    "indefinite matrix": (lambda: Matrix(-EYE), r"Matrix matrix: expected a symmetric positive definite"),
    "unsymmetric matrix": (lambda: Matrix(EYE + torch.triu(torch.ones_like(EYE), 1)), r"symmetric positive definite"),
    "flat matrix": (lambda: Matrix(X), r"Matrix matrix: expected a square matrix"),
    "zero max_steps": (lambda: Stopping(max_steps=0), r"max_steps: expected a whole number >= 1, got 0"),
    "half max_steps": (lambda: Stopping(max_steps=1.5), r"max_steps: expected a whole number"),  # type: ignore[arg-type]
    "negative change": (lambda: Stopping(change=-1e-3), r"Stopping change: expected a number > 0"),
    "change of all": (lambda: Stopping(change=1.0), r"Stopping change: expected a relative tolerance < 1"),
    "change in words": (lambda: Stopping(change="small"), r"Stopping change: expected a number, 'auto' or None"),  # type: ignore[arg-type]
    "NaN residual": (lambda: Stopping(residual=math.nan), r"Stopping residual: expected a finite number"),
    "zero gap": (lambda: Stopping(gap=0.0), r"Stopping gap: expected a number > 0"),
    "no time": (lambda: Stopping(time_limit=-1.0), r"Stopping time_limit: expected a number > 0"),
    "divergence at once": (lambda: Stopping(divergence=0.5), r"Stopping divergence: expected a number > 1"),
    "tau alone": (lambda: PDHG(tau=0.1), r"PDHG: expected both tau and sigma, or neither"),
    "negative sigma": (lambda: PDHG(tau=0.1, sigma=-0.1), r"PDHG sigma: expected a number > 0"),
    "negative ratio": (lambda: PDHG(ratio=-1.0), r"PDHG ratio"),
    "negative penalty": (lambda: ADMM(penalty=-1.0), r"ADMM penalty"),
    "relaxation of two": (lambda: ADMM(relaxation=2.0), r"ADMM relaxation: expected a number in \(0, 2\)"),
    "ADMM tolerance": (lambda: ADMM(tolerance=1.0), r"ADMM tolerance: expected a number in \(0, 1\)"),
    "no damping": (lambda: GaussNewton(damping=0.0), r"GaussNewton damping"),
    "GaussNewton tolerance": (lambda: GaussNewton(tolerance=2.0), r"GaussNewton tolerance"),
    "CG tolerance": (lambda: conjugate_gradient(lambda v: v, X, tolerance=0.0), r"tolerance: expected a number in"),
    "CG steps": (lambda: conjugate_gradient(lambda v: v, X, max_steps=0), r"max_steps: expected a whole number >= 1"),
    "CG batch": (lambda: conjugate_gradient(lambda v: v, X[0], batched=True), r"b: expected a batch"),
    "zero vector": (lambda: power_iteration(lambda v: v, 0 * X), r"start: expected a finite vector that is not 0"),
    "negative ridge": (lambda: ridge_least_squares(EYE, EYE, -1.0), r"ridge: expected a number >= 0"),
    "ridge method": (lambda: ridge_least_squares(EYE, EYE, method="qr"), r"method: expected one of 'auto', 'cholesky'"),  # type: ignore[arg-type]
    "ridge rows": (lambda: ridge_least_squares(EYE, X), r"targets: expected 3 rows"),
    "function without prox": (lambda: Term(WithoutProx(), Identity((3,))), r"`value` and `prox` \(prox is missing\)"),  # type: ignore[arg-type]
    "matrix as operator": (lambda: Term(L1(1.0), EYE), r"Term operator: expected a LinearOperator.*Dense"),  # type: ignore[arg-type]
    "no terms": (lambda: SaddleProblem(()), r"expected at least one term.*ProximalGradient"),
    "terms of two shapes": (
        lambda: SaddleProblem((Term(L1(1.0), Identity((3,))), Term(L1(1.0), Identity((4,))))),
        r"terms: expected operators on \(3,\), got \(4,\)",
    ),
    "nonsmooth f": (lambda: SaddleProblem(total_variation().terms, f=GroupNorm()), r"SaddleProblem f.*Give it as g"),  # type: ignore[arg-type]
    "weight of a function": (lambda: SquaredDistance(X, 0.0), r"SquaredDistance weight"),
    "target of a constraint": (lambda: Equals(X * math.nan), r"Equals target: expected finite values"),
    "regulariser of a stranger": (
        lambda: CompositeProblem(lambda x: x.sum(), None, {"y": L1(1.0)}),
        r"regulariser of 'y': expected one of the blocks \['x'\]",
    ),
    "regulariser that is a number": (lambda: CompositeProblem(lambda x: x.sum(), None, 3.0), r"`value` and `prox`"),  # type: ignore[arg-type]
}

MEETINGS: dict[str, tuple[Callable[[], object], str]] = {
    "not a solver": (lambda: solve(lasso(), "fista", X), r"solver: expected a Solver, got str"),  # type: ignore[arg-type]
    "no start": (lambda: solve(lasso(), FISTA()), r"solve: expected a start or a state, got neither"),
    "start of NaN": (lambda: solve(lasso(), FISTA(), X * math.nan), r"start block 'x': expected finite values"),
    "start of integers": (lambda: solve(lasso(), FISTA(), torch.ones(8).long()), r"expected a floating-point tensor"),
    "other blocks": (lambda: solve(lasso(), FISTA(), {"y": X}), r"start: expected the blocks \['x'\], got \['y'\]"),
    "negative record_every": (lambda: solve(lasso(), FISTA(), X, record_every=-1), r"record_every: expected a whole"),
    "gap without records": (
        lambda: solve(total_variation(), PDHG(), IMAGE, stopping=Stopping(gap=1e-3), record_every=0),
        r"record_every: expected >= 1 when a gap is asked for",
    ),
    "finer than single precision": (
        lambda: solve(unbounded(), ProximalGradient(0.1), X.float(), stopping=Stopping(change=1e-9)),
        r"change: expected at least 1.2e-07, the precision of torch.float32.*double precision",
    ),
    "no bound": (lambda: solve(unbounded(), ProximalGradient(), X), r"block 'x'.*finite Lipschitz.*Backtracking"),
    "no prox": (
        lambda: solve(CompositeProblem(lambda x: x.sum(), None, WithoutProx(), 1.0), FISTA(), X),  # type: ignore[arg-type]
        r"ProximalGradient on block 'x': expected a proximal map, got none. Use PDHG or ADMM",
    ),
    "nonsmooth block for gradient descent": (
        lambda: solve(lasso(), GradientDescent(), X),
        r"GradientDescent on block 'x': expected a smooth block.*Use ProximalGradient or FISTA",
    ),
    "unknown block": (lambda: solve(lasso(), ProximalGradient(blocks=("y",)), X), r"some of \['x'\], got 'y'"),
    "no step for a block": (
        lambda: solve(lasso(), ProximalGradient(Constant({"y": 1.0})), X),
        r"Constant step: expected a step for each of \['x'\]",
    ),
    "backtracking with Adam": (
        lambda: solve(lasso(), ProximalGradient(Backtracking(), scaling=AdamScaling()), X),
        r"direction decreases f, got AdamScaling. Use Constant",
    ),
    "bounds with a diagonal": (
        lambda: solve(lasso(), ProximalGradient(scaling=Diagonal(X)), X),
        r"FromBound: expected no scaling.*got Diagonal. Use Backtracking",
    ),
    "matched Adam on a matrix prox": (
        lambda: solve(matrices(), ProximalAdam(matched=True), normal((3, 3), 0)),
        r"matched=True on block 'x': expected a prox that acts by entries",
    ),
    "diagonal on a matrix prox": (
        lambda: solve(matrices(), ProximalGradient(0.1, scaling=Diagonal(EYE + 1)), normal((3, 3), 0)),
        r"Diagonal on block 'x': expected a prox that acts by entries",
    ),
    "diagonal of another shape": (
        lambda: solve(lasso(), ProximalGradient(0.1, scaling=Diagonal(X[:3])), X),
        r"Diagonal weights of 'x': expected shapes \[\(8,\)\]",
    ),
    "matrix on a nonsmooth block": (
        lambda: solve(lasso(), ProximalGradient(0.1, scaling=Matrix(EYE)), X),
        r"Matrix on block 'x': expected a smooth block.*Diagonal",
    ),
    "matrix of another size": (
        lambda: solve(ridge(), ProximalGradient(0.1, scaling=Matrix(EYE)), X),
        r"Matrix on block 'x': expected a last axis of 3, got shape \(8,\)",
    ),
    "saddle problem for FISTA": (lambda: solve(total_variation(), FISTA(), IMAGE), r"a Problem.*for PDHG and ADMM"),
    "lasso for PDHG": (lambda: solve(lasso(), PDHG(), X), r"PDHG: expected a SaddleProblem.*ProximalGradient"),
    "lasso for ADMM": (lambda: solve(lasso(), ADMM(), X), r"ADMM: expected a SaddleProblem"),
    "lasso for Gauss–Newton": (lambda: solve(lasso(), GaussNewton(), X), r"NonlinearLeastSquares.*GradientDescent"),
    "steps too long": (
        lambda: solve(total_variation(), PDHG(tau=1.0, sigma=1.0), IMAGE),
        r"PDHG: expected τσ‖K‖² <= 1, got τσ‖K‖² = 7.464",
    ),
    "steps too long with f": (
        lambda: solve(total_variation(smooth=True), PDHG(tau=0.36, sigma=0.36), IMAGE),
        r"PDHG: expected 1/τ − σ‖K‖² >= L/2, got .* L = 1",
    ),
    "image of another size": (lambda: solve(total_variation(), PDHG(), IMAGE[..., :5]), r"\(batch, 1, 6, 6\)"),
    "duals of another shape": (
        lambda: solve(total_variation(), ADMM(), {"x": IMAGE, "dual": IMAGE}),
        r"start: expected duals of shapes \[\(1, 2, 1, 6, 6\)\]",
    ),
    "ADMM with a general f": (
        lambda: solve(SaddleProblem(total_variation().terms, f=GroupNorm(delta=0.1)), ADMM(), IMAGE),
        r"ADMM f: expected a quadratic function.*PDHG",
    ),
    "state of another problem": (
        lambda: state_from_parts(FISTA().init(lasso(), Point({"x": X})), *state_to_parts(
            PDHG().init(total_variation(), Point({"x": IMAGE})))),
        r"saved tensors: expected the names .*solver and the problem",
    ),
}  # fmt: skip

ALL = SETTINGS | MEETINGS


@pytest.mark.parametrize("case", ALL)
def test_refused(case: str) -> None:
    attempt, message = ALL[case]
    with pytest.raises(TorchliftError, match=message):
        attempt()


def test_there_are_no_false_alarms() -> None:
    """The edges of what is allowed."""
    assert solve(total_variation(), PDHG(tau=0.36, sigma=0.36), IMAGE, stopping=Stopping(2)).state.count == 2
    fine = PDHG(tau=0.3, sigma=0.3)
    assert solve(total_variation(smooth=True), fine, IMAGE, stopping=Stopping(2)).state.count == 2
    data = LeastSquares(Dense(normal((4, 3), 0)), normal((1, 4), 1))
    free = SaddleProblem((Term(L1(1.0), FiniteDifference((1, 1, 1)).T @ FiniteDifference((1, 1, 1))),))
    assert free.norm_bound() == 0 and data.curvature() > 0
    assert solve(free, PDHG(), torch.ones(1, 1, 1, 1)).converged
    assert HeavyBall(0.0).beta == 0 and Stopping(change=None, max_steps=1).change is None
