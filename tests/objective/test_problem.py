"""Training objectives as problems: exact and linearised block-coordinate descent, implicit stochastic gradient."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from torchlift import liftings, losses, networks, prox, regularisers
from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.core.tensors import norm, subtract
from torchlift.data import as_batches
from torchlift.networks import MLP
from torchlift.objective import Objective, TrainingBatches, TrainingProblem
from torchlift.solvers import (
    Backtracking,
    BlockCoordinateDescent,
    Diminishing,
    FromBound,
    HeavyBall,
    ImplicitStochasticGradient,
    LinearisedBCD,
    Nesterov,
    ProximalAdam,
    ProximalGradient,
    Result,
    Stopping,
    solve,
)

LIFTINGS = [liftings.MACQP(0.7), liftings.Classical(0.7), liftings.Fenchel(0.7), liftings.Bregman((0.7, 0.4))]
BATCH = 20


def _randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _network(activation: prox.ProximalActivation | None = None, widths: tuple[int, ...] = (3, 4, 4, 2)) -> MLP:
    generator = torch.Generator().manual_seed(0)
    return MLP(list(widths), activation or prox.SoftThreshold(0.1), dtype=torch.float64, generator=generator)


def _problem(
    lifting: liftings.Lifting,
    split: str = "whole",
    activation: prox.ProximalActivation | None = None,
    **options: object,
) -> TrainingProblem:
    objective = Objective(_network(activation), lifting, **options)
    return TrainingProblem(objective, _randn(1, BATCH, 3), _randn(2, BATCH, 2), split=split)


@pytest.mark.parametrize("split", ["whole", "odd-even", "layers"])
@pytest.mark.parametrize("lifting", LIFTINGS, ids=lambda each: type(each).__name__)
def test_problem_is_the_objective(lifting: liftings.Lifting, split: str) -> None:
    problem = _problem(lifting, split, states=regularisers.L1(0.1), parameters={"*weight": regularisers.Ridge(0.2)})
    point = problem.start("input")
    z, objective = problem.states(point), problem.objective
    assert problem.value(point) == pytest.approx(float(objective.value(problem.y, problem.x, z)), rel=1e-12)
    total = problem.smooth_value(point) + problem.nonsmooth_value(point)
    assert total == pytest.approx(problem.value(point), rel=1e-10)
    gradient = problem.gradient(point)
    found = objective.gradients(problem.y, problem.x, z)
    for name, ours in zip(problem.names, gradient["parameters"], strict=True):
        torch.testing.assert_close(ours, found.parameters[name], rtol=0, atol=1e-14)
    layers = torch.cat([g.reshape(-1) for block in problem.rows for g in gradient[block]])
    assert layers.numel() == found.z.numel()
    steps = dict.fromkeys(problem.blocks, 0.6)
    moved = problem.states(problem.prox(point, steps))
    for ours, theirs in zip(moved, objective.prox_states(z, 0.6), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)


@pytest.mark.parametrize("split", ["odd-even", "layers"])
@pytest.mark.parametrize("lifting", [each for each in LIFTINGS if not isinstance(each, liftings.MACQP)], ids=repr)
def test_bounds_hold(lifting: liftings.Lifting, split: str) -> None:
    """‖∇_b f(x) − ∇_b f(x')‖ ≤ L_b ‖x_b − x'_b‖ for points that differ in block b only."""
    problem = _problem(lifting, split)
    start = problem.start("input")
    for block in problem.blocks:
        bound = problem.bound(start, block)
        assert bound is not None
        worst = 0.0
        for seed in range(30):
            part = start.select((block,))
            other = part.like(t + 0.3 * _randn(seed * 7 + k, *t.shape) for k, t in enumerate(part.tensors))
            change = norm(subtract(problem.gradient(start.merge(other), (block,)), problem.gradient(start, (block,))))
            worst = max(worst, change / norm(subtract(other, part)))
        assert worst <= bound * (1 + 1e-9)
        assert worst > 0.02 * bound, "not absurdly loose"


def test_joint_bound_of_all_states_holds() -> None:
    problem = _problem(liftings.Bregman(0.7), "whole")
    start = problem.start("input")
    bound = problem.bound(start, "states")
    part = start.select(("states",))
    for seed in range(30):
        other = part.like(t + 0.3 * _randn(seed, *t.shape) for t in part.tensors)
        change = subtract(problem.gradient(start.merge(other), ("states",)), problem.gradient(start, ("states",)))
        assert norm(change) <= bound * norm(subtract(other, part)) * (1 + 1e-9)


class TestExactParameters:
    """The parameter block, minimised with the states fixed."""

    @pytest.mark.parametrize("loss", [losses.SquaredError(), losses.Huber(0.5)], ids=repr)
    @pytest.mark.parametrize("lifting", LIFTINGS, ids=lambda each: type(each).__name__)
    def test_gradient_vanishes(self, lifting: liftings.Lifting, loss: losses.Loss) -> None:
        activation = prox.LeakyReLU(0.3)  # a strictly increasing σ gives every layer a unique minimiser
        problem = _problem(lifting, activation=activation, loss=loss)
        start = problem.start("input")
        before = norm(problem.gradient(start, ("parameters",)))
        found = problem.minimise(start, "parameters", 1e-9)
        assert found is not None
        after = norm(problem.gradient(found, ("parameters",)))
        assert after < (1e-3 if isinstance(lifting, liftings.MACQP) else 1e-7) * before
        assert problem.value(found) < problem.value(start)

    def test_classical_layers_are_least_squares(self) -> None:
        problem = _problem(liftings.Classical(0.7))
        start = problem.start("input")
        z = problem.states(start)
        found = problem.minimise(start, "parameters", 1e-12)
        assert found is not None
        values = dict(zip(problem.names, found["parameters"], strict=True))
        X = torch.cat([problem.y, torch.ones(BATCH, 1, dtype=torch.float64)], dim=1)
        exact = torch.linalg.lstsq(X, z[0]).solution.T
        torch.testing.assert_close(values["hidden.0.linear.weight"][0], exact[:, :-1], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(values["hidden.0.bias"][0], exact[:, -1], rtol=1e-8, atol=1e-8)

    def test_sigmoid_layer_is_logistic_regression(self) -> None:
        """With z in {0, 1} the Bregman penalty of a sigmoid is the logistic loss."""
        network = _network(prox.Sigmoid(), (3, 1, 1))
        y = _randn(3, 200, 3)
        labels = (y @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + _randn(4, 200) > 0.3).double()
        ridge = regularisers.Ridge(0.01)
        problem = TrainingProblem(Objective(network, parameters={"*": ridge}), y, _randn(5, 200, 1))
        start = problem.start()
        states = problem.states(start)
        with torch.no_grad():
            states[0].copy_(labels[:, None])
        found = problem.minimise(problem.point(start["parameters"], states), "parameters", 1e-12)
        assert found is not None
        values = dict(zip(problem.names, found["parameters"], strict=True))
        # scikit-learn does not penalise the intercept, so ours becomes a feature without one
        oracle = LogisticRegression(C=1 / (0.01 * 200), fit_intercept=False, tol=1e-12, max_iter=10_000)
        oracle.fit(np.c_[y.numpy(), np.ones(200)], labels.numpy())
        ours = torch.cat([values["hidden.0.linear.weight"].flatten(), values["hidden.0.bias"].flatten()])
        np.testing.assert_allclose(ours.numpy(), oracle.coef_[0], atol=1e-6)

    def test_what_is_not_dense_or_not_a_ridge_is_left_to_first_order_steps(self) -> None:
        problem = _problem(liftings.Bregman(), parameters={"*weight": regularisers.Ridge(0.1)})
        assert problem.minimise(problem.start(), "parameters", 1e-6) is None
        resnet = networks.ResNet(3, [4, 4], 2, dtype=torch.float64)
        other = TrainingProblem(Objective(resnet), _randn(1, 5, 3), _randn(2, 5, 2))
        assert other.minimise(other.start(), "parameters", 1e-6) is None


def _never_increases(values: list[float]) -> bool:
    return all(b <= a + 1e-11 * (1 + abs(a)) for a, b in pairwise(values))


@pytest.mark.parametrize("split", ["odd-even", "layers"])
@pytest.mark.parametrize("lifting", LIFTINGS, ids=lambda each: type(each).__name__)
def test_exact_descent_is_monotone(lifting: liftings.Lifting, split: str) -> None:
    problem = _problem(lifting, split)
    start = problem.start("input")
    solver = BlockCoordinateDescent(tolerance=1e-6, inner_steps=100)
    solution = solve(problem, solver, start, stopping=Stopping(3, change=None))
    values = [problem.value(start), *(record.value for record in solution.history)]
    assert _never_increases(values)
    assert values[-1] < 0.5 * values[0]
    assert not solution.failed


@pytest.mark.parametrize("kind", ["resnet", "lista", "convolution"])
def test_exact_descent_on_other_architectures(kind: str) -> None:
    generator = torch.Generator().manual_seed(1)
    if kind == "resnet":
        network = networks.ResNet(3, [4, 4], 2, prox.ReLU(), dtype=torch.float64, generator=generator)
    elif kind == "lista":
        from torchlift.operators import Dense

        network = networks.LISTA(Dense(_randn(8, 3, 2)), _randn(9, 2, 5), 2)
    else:
        torch.manual_seed(0)
        modules = torch.nn.Sequential(
            torch.nn.Unflatten(1, (1, 1, 3)), torch.nn.Conv2d(1, 2, (1, 2)), torch.nn.ReLU(), torch.nn.Flatten(),
            torch.nn.Linear(4, 2),
        )  # fmt: skip
        network = networks.lift(modules.double(), (3,))
    problem = TrainingProblem(
        Objective(network, liftings.Bregman(0.5)), _randn(1, 8, 3), _randn(2, 8, 2), split="layers"
    )
    start = problem.start()
    solution = solve(problem, BlockCoordinateDescent(1e-3, inner_steps=20), start, stopping=Stopping(2, change=None))
    values = [problem.value(start), *(record.value for record in solution.history)]
    assert _never_increases(values)
    assert values[-1] < values[0]


@pytest.mark.parametrize("sweep", ["forward", "backward", "odd-even"])
@pytest.mark.parametrize(
    "lifting", [each for each in LIFTINGS if not isinstance(each, liftings.MACQP)], ids=lambda each: type(each).__name__
)
def test_linearised_descent_with_bound_steps_is_monotone(lifting: liftings.Lifting, sweep: str) -> None:
    problem = _problem(lifting, "layers")
    start = problem.start("input")
    solver = LinearisedBCD(ProximalGradient(FromBound()), sweep=sweep)
    solution = solve(problem, solver, start, stopping=Stopping(60, change=None))
    values = [problem.value(start), *(record.value for record in solution.history)]
    assert _never_increases(values)
    assert values[-1] < values[0]


@pytest.mark.parametrize(
    "parts",
    [
        ProximalGradient(Backtracking()),
        {"parameters": ProximalGradient(FromBound(), Nesterov()), "states": ProximalGradient(FromBound(0.5))},
        {"parameters": ProximalGradient(FromBound(0.5), HeavyBall(0.5)), "states": ProximalGradient(Backtracking())},
        {"parameters": ProximalAdam(2e-2), "states": ProximalAdam(2e-2)},
    ],
    ids=["backtracking", "nesterov", "heavy-ball", "adam"],
)
@pytest.mark.parametrize("sweep", ["forward", "jacobi"])
def test_linearised_descent_takes_any_parts(parts: object, sweep: str) -> None:
    problem = _problem(liftings.Bregman(0.7), "whole")
    start = problem.start("input")
    solution = solve(problem, LinearisedBCD(parts, sweep=sweep), start, stopping=Stopping(80, change=None))
    assert solution.result is Result.MAX_STEPS
    assert solution.history[-1].value < 0.6 * problem.value(start)
    assert set(solution.history[-1].step_sizes) == {"parameters", "states"}


def test_sweep_orders_by_name() -> None:
    problem = _problem(liftings.Bregman(), "layers")
    groups = {
        sweep: LinearisedBCD(sweep=sweep)._groups(problem) for sweep in ("forward", "backward", "odd-even", "jacobi")
    }
    assert groups["forward"] == [("parameters",), ("states 1",), ("states 2",)]
    assert groups["backward"] == [("parameters",), ("states 2",), ("states 1",)]
    assert groups["odd-even"] == [("parameters",), ("states 1",), ("states 2",)]
    assert groups["jacobi"] == [("parameters", "states 1", "states 2")]


def test_linearised_descent_resumes_to_the_same_iterates() -> None:
    solver = LinearisedBCD({"parameters": ProximalGradient(FromBound(), Nesterov()), "states": ProximalAdam(1e-2)})
    problem = _problem(liftings.Bregman(0.7))
    start = problem.start("input")
    whole = solve(problem, solver, start, stopping=Stopping(12, change=None))
    half = solve(problem, solver, start, stopping=Stopping(5, change=None))
    rest = solve(problem, solver, state=half.state, stopping=Stopping(7, change=None))
    assert all(torch.equal(a, b) for a, b in zip(whole.point.tensors, rest.point.tensors, strict=True))


class TestImplicit:
    def _batches(self, seed: int = 0) -> TrainingBatches:
        y = _randn(1, 60, 3)
        x = torch.relu(y @ _randn(2, 3, 4)) @ _randn(3, 4, 2)
        return TrainingBatches(Objective(_network(prox.ReLU())), as_batches((y, x), batch_size=16, seed=seed))

    def test_every_sample_once_per_epoch(self) -> None:
        batches = self._batches()
        start = batches.start()
        assert batches.per_epoch == 4
        everything = next(batches.batches.ordered(60)).y.sort(0).values
        for epoch in (0, 1):
            seen = torch.cat([batches.batch(4 * epoch + k, start)[0].y for k in range(4)])
            assert torch.equal(seen.sort(0).values, everything)
        first, second = batches.batch(0, start)[0].y, batches.batch(4, start)[0].y
        assert not torch.equal(first, second)
        assert torch.equal(first, self._batches().batch(0, start)[0].y)
        assert not torch.equal(first, self._batches(seed=1).batch(0, start)[0].y)

    def test_order_of_samples_is_fixed_for_all_time(self) -> None:
        """The numbers of runs that are on record depend on it."""
        order = torch.randperm(60, generator=torch.Generator().manual_seed(2 * 1_000_003 + 1))
        batches = self._batches(seed=2)
        found = batches.batch(5, batches.start())[0].y
        assert torch.equal(found, _randn(1, 60, 3)[order[16:32]])

    def test_value_is_the_mean_loss(self) -> None:
        batches = self._batches()
        y, x, _ = next(batches.batches.ordered(60))
        with torch.no_grad():
            expected = 0.5 * (batches.objective.network(y) - x).square().sum() / 60
        assert batches.value(batches.start()) == pytest.approx(float(expected), rel=1e-12)

    @pytest.mark.parametrize("disturb", ["problem", "optimiser"])
    def test_notices_that_others_changed_the_network(self, disturb: str) -> None:
        batches = self._batches()
        start = batches.start()
        first = batches.value(start)
        network = batches.objective.network
        if disturb == "problem":
            problem, point = batches.batch(0, start)
            problem.value(point.like([2 * tensor for tensor in point.tensors]))
        else:
            network(batches.batch(0, start)[0].y).sum().backward()
            torch.optim.SGD(network.parameters(), lr=1.0).step()
        with torch.no_grad():
            assert not torch.equal(next(network.parameters()), start["parameters"][0])
        assert batches.value(start) == first

    def test_the_same_point_is_not_copied_again(self) -> None:
        batches = self._batches()
        start = batches.start()
        batches.value(start)
        before = [p._version for p in batches.objective.network.parameters()]
        batches.batch(3, start)
        assert [p._version for p in batches.objective.network.parameters()] == before
        batches.batch(3, batches.start())
        assert [p._version for p in batches.objective.network.parameters()] == [version + 1 for version in before]

    @pytest.mark.parametrize(
        "inner",
        [BlockCoordinateDescent(1e-4, 50), LinearisedBCD(ProximalGradient(FromBound(0.9)), steps=2)],
        ids=["exact", "linearised"],
    )
    def test_training_loss_falls(self, inner: object) -> None:
        batches = self._batches()
        start = batches.start()
        solver = ImplicitStochasticGradient(Diminishing(0.5, 0.3), inner=inner, inner_steps=3)
        solution = solve(batches, solver, start, stopping=Stopping(40, change=None), record_every=8)
        assert not solution.failed, solution.message
        assert solution.history[-1].value < 0.6 * batches.value(start)

    def test_resumes_to_the_same_iterates(self) -> None:
        solver = ImplicitStochasticGradient(0.3, inner=LinearisedBCD(ProximalGradient(FromBound(0.9))))
        start = self._batches().start()
        whole = solve(self._batches(), solver, start, stopping=Stopping(9, change=None), record_every=0)
        half = solve(self._batches(), solver, start, stopping=Stopping(4, change=None), record_every=0)
        rest = solve(self._batches(), solver, state=half.state, stopping=Stopping(5, change=None), record_every=0)
        assert all(torch.equal(a, b) for a, b in zip(whole.point.tensors, rest.point.tensors, strict=True))


def _batches() -> TrainingBatches:
    return TrainingBatches(Objective(_network()), as_batches((_randn(1, 6, 3), _randn(2, 6, 2)), batch_size=3))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: _problem(liftings.Contrastive()), ["free states", "Contrastive", "Bregman"]),
        (lambda: _problem(liftings.Conventional()), ["free states", "Conventional"]),
        (lambda: _problem(liftings.Bregman(), "rows"), ["'odd-even'", "rows"]),
        (lambda: _problem(liftings.Bregman(), loss=losses.Absolute()), ["smooth loss", "Absolute", "Huber"]),
        (lambda: BlockCoordinateDescent(tolerance=0.0), ["tolerance", "> 0"]),
        (lambda: BlockCoordinateDescent(inner_steps=0), ["inner_steps", ">= 1"]),
        (lambda: LinearisedBCD(sweep="sideways"), ["forward", "sideways"]),
        (lambda: LinearisedBCD(steps=0), ["steps", ">= 1"]),
        (lambda: LinearisedBCD(parts={"states": 0.1}), ["ProximalGradient", "float"]),
        (lambda: LinearisedBCD({"states": ProximalGradient()})._part("parameters"), ["'parameters'", "states"]),
        (lambda: ImplicitStochasticGradient(tau=-1.0), ["tau", "> 0"]),
        (lambda: ImplicitStochasticGradient(inner="bcd"), ["inner", "Solver", "str"]),
        (lambda: ImplicitStochasticGradient(inner_steps=0), ["inner_steps", ">= 1"]),
        (
            lambda: solve(_problem(liftings.Bregman()), ImplicitStochasticGradient(), _batches().start()),
            ["StochasticProblem", "inner solver"],
        ),
        (
            lambda: solve(
                _problem(liftings.MACQP()),
                LinearisedBCD(ProximalGradient(FromBound())),
                _problem(liftings.MACQP()).start(),
            ),
            ["FromBound", "Backtracking"],
        ),
        (lambda: TrainingBatches(Objective(_network()), (_randn(1, 6, 3), _randn(2, 6, 2))), ["tuple", "as_batches"]),
    ],
    ids=range(16),
)
def test_bad_settings_are_refused(call, words: list[str]) -> None:
    with pytest.raises((InvalidValueError, InvalidTypeError)) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value
