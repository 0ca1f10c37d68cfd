"""Training with the quadratic coupling ρ/2 ‖M u − V z‖²: u and z both free."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from cells import all_pairs
from contracts.network_cases import CASES, Case
from torchlift import liftings, losses, networks, prox, regularisers
from torchlift.core.errors import InvalidValueError
from torchlift.core.tensors import Point, norm, subtract
from torchlift.data import as_batches
from torchlift.networks import Network
from torchlift.objective import Objective, TrainingBatches, TrainingProblem
from torchlift.objective.latent_cache import LatentCache
from torchlift.operators import Dense
from torchlift.parallel import LayerStage
from torchlift.solvers import (
    FISTA,
    Backtracking,
    BlockCoordinateDescent,
    Diminishing,
    FromBound,
    ImplicitStochasticGradient,
    LinearisedBCD,
    Nesterov,
    ProximalAdam,
    ProximalGradient,
    Solver,
    Stopping,
    solve,
)

RHO = 1.5
LIFTINGS = {
    "bregman": liftings.Bregman(0.7),
    "classical": liftings.Classical(0.7),
    "mac-qp": liftings.MACQP(0.7),
}
BATCH = 12


def _randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _network(kind: str, activation: prox.ProximalActivation | None = None) -> Network:
    options = {"dtype": torch.float64, "generator": torch.Generator().manual_seed(0)}
    sigma = activation or prox.ReLU()
    if kind == "mlp":
        return networks.MLP([3, 4, 4, 2], sigma, **options)
    if kind == "resnet":
        return networks.ResNet(3, [4, 4], 2, sigma, **options)
    # Ψ depends on learned thresholds; what is tested here are the parameters of the smooth part
    if kind == "lista":
        return networks.LISTA(Dense(_randn(8, 3, 2)), _randn(9, 2, 5), 2, learnable=("dictionary",))
    learnable = ("analysis", "step", "dual_step")
    return networks.PrimalDual(Dense(_randn(8, 3, 2)), _randn(9, 4, 2), 2, learnable=learnable)


def _problem(
    kind: str = "mlp",
    lifting: liftings.Lifting | None = None,
    split: str = "whole",
    rho: float | None = RHO,
    activation: prox.ProximalActivation | None = None,
    **options: object,
) -> TrainingProblem:
    network = _network(kind, activation)
    objective = Objective(network, lifting or LIFTINGS["bregman"], coupling=rho, **options)
    return TrainingProblem(objective, _randn(1, BATCH, 3), _randn(2, BATCH, 2), split=split)


def _never_increases(values: list[float]) -> bool:
    return all(b <= a + 1e-11 * (1 + abs(a)) for a, b in pairwise(values))


BLOCKS = {
    "whole": ("states", "states u"),
    "odd-even": ("states odd", "states u odd", "states even", "states u even"),
    "layers": ("states 1", "states u 1", "states 2", "states u 2"),
}


@pytest.mark.parametrize("split", BLOCKS)
@pytest.mark.parametrize("lifting", LIFTINGS)
@pytest.mark.parametrize("kind", ["mlp", "resnet"])
def test_problem_is_the_objective(kind: str, lifting: str, split: str) -> None:
    problem = _problem(kind, LIFTINGS[lifting], split, states=regularisers.Ridge(0.1))
    assert problem.blocks == ("parameters", *BLOCKS[split])
    point = problem.start("random", torch.Generator().manual_seed(3))
    point = point.like(tensor + 0.1 * _randn(k, *tensor.shape).abs() for k, tensor in enumerate(point.tensors))
    z = problem.states(point)
    assert z.u is not None
    value = float(problem.objective.value(problem.y, problem.x, z))
    assert problem.report(point).coupling > 0.01
    assert problem.value(point) == pytest.approx(value, rel=1e-12)
    assert sum(problem.parts(point).values()) == pytest.approx(value, rel=1e-12)
    assert problem.smooth_value(point) + problem.nonsmooth_value(point) == pytest.approx(value, rel=1e-10)
    found = problem.objective.gradients(problem.y, problem.x, z)
    gradient = problem.gradient(point)
    flat = torch.cat([tensor.flatten() for block in problem.rows for tensor in gradient[block]])
    assert flat.norm() == pytest.approx(float(torch.cat([g.flatten() for g in (*found.z, *found.z.u)]).norm()))
    moved = problem.prox(point, dict.fromkeys(problem.blocks, 0.3))
    for block in problem.rows:
        if "u" in block.split():
            assert problem.smooth(block) and problem.elementwise(block)
            assert all(torch.equal(a, b) for a, b in zip(moved[block], point[block], strict=True))


@pytest.mark.parametrize("lifting", LIFTINGS)
@pytest.mark.parametrize("kind", ["mlp", "resnet", "lista", "primal-dual"])
def test_gradients_are_those_of_the_value(kind: str, lifting: str) -> None:
    """Central differences of the smooth part along random directions, in every block."""
    activation = prox.Tanh() if kind in ("mlp", "resnet") else None
    problem = _problem(kind, LIFTINGS[lifting], "layers", activation=activation)
    point = problem.start()
    point = point.like(tensor + 0.05 * _randn(k, *tensor.shape) for k, tensor in enumerate(point.tensors))
    step = 1e-6
    for block in problem.blocks:
        part = point.select((block,))
        direction = part.like(_randn(k + 50, *tensor.shape) for k, tensor in enumerate(part.tensors))
        ends = [
            problem.smooth_value(
                point.merge(part.like(a + s * b for a, b in zip(part.tensors, direction.tensors, strict=True)))
            )
            for s in (step, -step)
        ]
        slope = sum(
            float((a * b).sum())
            for a, b in zip(problem.gradient(point, (block,)).tensors, direction.tensors, strict=True)
        )
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-6, abs=1e-8), block


class TestBounds:
    """Against the largest eigenvalue of the dense Hessian of each block."""

    def _hessian(self, problem: TrainingProblem, point: Point, block: str, step: float) -> Tensor:
        part = point.select((block,))
        sizes = [tensor.numel() for tensor in part.tensors]
        shapes = [tensor.shape for tensor in part.tensors]

        def gradient(flat: Tensor) -> Tensor:
            pieces = zip(flat.split(sizes), shapes, strict=True)
            at = point.merge(part.like(piece.reshape(shape) for piece, shape in pieces))
            return torch.cat([tensor.flatten() for tensor in problem.gradient(at, (block,)).tensors])

        flat = torch.cat([tensor.flatten() for tensor in part.tensors])
        unit = torch.eye(len(flat), dtype=flat.dtype)
        columns = [(gradient(flat + step * e) - gradient(flat - step * e)) / (2 * step) for e in unit]
        hessian = torch.stack(columns)
        torch.testing.assert_close(hessian, hessian.T, rtol=0, atol=1e-6 * float(hessian.abs().max()))
        return hessian

    def _hessian_of_a_sample(self, problem: TrainingProblem, block: str) -> Tensor:
        """Of a quadratic function, from a batch of copies of the sample: the k-th one is moved along entry k."""
        point, size = problem.start(), len(problem.y)
        axes = [0 if len(tensor) == size else 1 for tensor in point[block]]  # layers of equal shape lie in one tensor
        rows = [tensor.movedim(axis, 0) for axis, tensor in zip(axes, point[block], strict=True)]
        units = torch.eye(size, dtype=problem.y.dtype).split([row[0].numel() for row in rows], dim=1)
        moves = [
            (row + unit.reshape(row.shape)).movedim(0, axis) for axis, row, unit in zip(axes, rows, units, strict=True)
        ]
        there, here = (problem.gradient(each, (block,)).tensors for each in (point.merge(Point({block: moves})), point))
        columns = [(a - b).movedim(axis, 0).flatten(1) for axis, a, b in zip(axes, there, here, strict=True)]
        hessian = size * torch.cat(columns, dim=1)
        torch.testing.assert_close(hessian, hessian.T, rtol=0, atol=1e-6 * float(hessian.abs().max()))
        return hessian

    @pytest.mark.parametrize(
        ("case", "split"),
        [(case, list(BLOCKS)[i % 3]) for i, case in enumerate(CASES)],
        ids=lambda each: str(getattr(each, "name", each)),
    )
    def test_states(self, case: Case, split: str) -> None:
        """The classical penalty with the squared error is quadratic: differences give its Hessian exactly."""
        samples = 1 if case.context(1) is None else 2  # without a context all samples have the same Hessian
        network, context = case.build(), case.context(samples)
        objective = Objective(network, liftings.Classical(0.7), coupling=RHO)
        y, x = case.input(network, samples), _randn(2, samples, *network.out_shape)
        problem = TrainingProblem(objective, y, x, split=split, context=context)
        point = problem.start()
        blocks = list(problem.rows)
        for block in blocks if len(blocks) < 6 else blocks[-2:]:
            bound = problem.bound(point, block)
            if context is None:
                size = sum(tensor.numel() for tensor in point[block])
                copies = TrainingProblem(
                    objective, y.expand(size, *y.shape[1:]), x.expand(size, *x.shape[1:]), split=split
                )
                hessian = self._hessian_of_a_sample(copies, block)
            else:
                hessian = self._hessian(problem, point, block, 1.0)
            largest = float(torch.linalg.eigvalsh(hessian)[-1])
            assert bound is not None
            assert largest <= bound * (1 + 1e-9), block
            assert bound <= 3 * largest, "not absurdly loose"

    @pytest.mark.parametrize("tableau", ["euler", "rk4"])
    @pytest.mark.parametrize("kind", ["mlp", "resnet", "shallow"])
    def test_parameters(self, kind: str, tableau: str) -> None:
        generator = torch.Generator().manual_seed(0)
        if kind == "resnet":
            network = networks.ResNet(3, [4, 4], 2, tableau=tableau, dtype=torch.float64, generator=generator)
        else:
            network = networks.Shallow(3, [2, 3], 2, dtype=torch.float64) if kind == "shallow" else _network("mlp")
        ridge = regularisers.Ridge(0.3)
        objective = Objective(
            network, liftings.Classical((0.7,) * network.depth), coupling=RHO, parameters={"*": ridge}
        )
        problem = TrainingProblem(objective, _randn(1, BATCH, 3), _randn(2, BATCH, 2))
        point = problem.start()
        bound = problem.bound(point, "parameters")
        largest = float(torch.linalg.eigvalsh(self._hessian(problem, point, "parameters", 1.0))[-1])
        assert bound is not None
        assert largest <= bound * (1 + 1e-9)
        assert bound <= 2.5 * largest, "not absurdly loose"

    @pytest.mark.parametrize("kind", ["mlp", "resnet", "lista", "primal-dual"])
    def test_bregman(self, kind: str) -> None:
        problem = _problem(kind, liftings.Bregman(0.7), loss=losses.Huber(0.5))
        start = problem.start()
        point = start.like(tensor + 0.2 * _randn(k, *tensor.shape) for k, tensor in enumerate(start.tensors))
        for block in problem.blocks:
            bound = problem.bound(point, block)
            if block == "parameters" and kind in ("lista", "primal-dual"):
                assert bound is None  # products of parameters
                continue
            assert bound is not None
            assert torch.linalg.eigvalsh(self._hessian(problem, point, block, 1e-7))[-1] <= bound * (1 + 1e-6)

    def test_mac_qp_has_one_where_no_activation_is_read(self) -> None:
        problem = _problem("mlp", liftings.MACQP(0.7), "layers")
        point = problem.start()
        known = [block for block in problem.blocks if problem.bound(point, block) is not None]
        assert known == ["states 1", "states 2", "states u 2"]


#: Solvers, and their steps.
SOLVERS: dict[str, tuple[Solver, int]] = {
    "gradient": (ProximalGradient(Backtracking()), 40),
    "fista": (FISTA(Backtracking()), 40),
    "adam": (ProximalAdam(2e-2), 80),
    "matched": (ProximalAdam(2e-2, matched=True), 80),
    "linearised": (LinearisedBCD(ProximalGradient(Backtracking())), 20),
    "backward": (LinearisedBCD(ProximalGradient(Backtracking()), sweep="backward", steps=2), 15),
    "exact": (BlockCoordinateDescent(1e-2, 15), 3),
}


class TestDescent:
    @pytest.mark.parametrize(
        ("kind", "lifting", "split", "sweep"),
        all_pairs(["mlp", "resnet"], ["bregman", "classical"], BLOCKS, ["forward", "backward"]),
    )
    def test_steps_by_bounds_are_monotone(self, kind: str, lifting: str, split: str, sweep: str) -> None:
        problem = _problem(kind, LIFTINGS[lifting], split)
        start = problem.start("input")
        solver = LinearisedBCD(ProximalGradient(FromBound()), sweep=sweep)
        solution = solve(problem, solver, start, stopping=Stopping(40, change=None))
        values = [problem.value(start), *(record.value for record in solution.history)]
        assert _never_increases(values)
        assert values[-1] < 0.95 * values[0]

    def test_layers_of_chains_do_not_meet(self) -> None:
        """In the order of the blocks the sweep "odd-even" moves all z together, then all u."""
        problem = _problem("mlp", split="layers")
        solver = LinearisedBCD(ProximalGradient(FromBound()), sweep="odd-even")
        assert solver._groups(problem)[1:] == [("states 1", "states 2"), ("states u 1", "states u 2")]
        start = problem.start("input")
        solution = solve(problem, solver, start, stopping=Stopping(40, change=None))
        assert _never_increases([problem.value(start), *(record.value for record in solution.history)])

    @pytest.mark.parametrize("kind", ["lista", "primal-dual"])
    def test_unrolled_networks(self, kind: str) -> None:
        """States move by their bounds, parameters by backtracking."""
        problem = _problem(kind, liftings.Bregman(0.7))
        start = problem.start()
        parts = {"parameters": ProximalGradient(Backtracking()), "states": ProximalGradient(FromBound())}
        solution = solve(problem, LinearisedBCD(parts), start, stopping=Stopping(40, change=None))
        values = [problem.value(start), *(record.value for record in solution.history)]
        assert _never_increases(values)
        assert values[-1] < 0.9 * values[0]
        with pytest.raises(
            InvalidValueError, match=r"'parameters': expected a finite Lipschitz constant.*Backtracking"
        ):
            solve(problem, LinearisedBCD(), start)

    @pytest.mark.parametrize(("kind", "lifting", "name"), all_pairs(["mlp", "resnet"], LIFTINGS, SOLVERS))
    def test_every_solver_decreases(self, kind: str, lifting: str, name: str) -> None:
        problem, (solver, steps) = _problem(kind, LIFTINGS[lifting]), SOLVERS[name]
        start = problem.start("input")
        solution = solve(problem, solver, start, stopping=Stopping(steps, change=None))
        assert not solution.failed, solution.message
        assert solution.history[-1].value == pytest.approx(problem.value(solution.point), rel=1e-10)
        assert solution.history[-1].value < 0.8 * problem.value(start)

    @pytest.mark.parametrize(
        ("kind", "lifting", "split"), all_pairs(["mlp", "resnet"], LIFTINGS, ["odd-even", "layers"])
    )
    def test_exact_descent_is_monotone(self, kind: str, lifting: str, split: str) -> None:
        problem = _problem(kind, LIFTINGS[lifting], split)
        start = problem.start("input")
        solution = solve(problem, BlockCoordinateDescent(1e-3, 20), start, stopping=Stopping(3, change=None))
        values = [problem.value(start), *(record.value for record in solution.history)]
        assert _never_increases(values)
        assert values[-1] < 0.8 * values[0]

    def test_resumes_to_the_same_iterates(self) -> None:
        parts = {"parameters": ProximalGradient(FromBound(), Nesterov()), "states": ProximalAdam(1e-2)}
        problem, solver = _problem("resnet", split="odd-even"), LinearisedBCD(parts)
        start = problem.start("input")
        whole = solve(problem, solver, start, stopping=Stopping(12, change=None))
        half = solve(problem, solver, start, stopping=Stopping(5, change=None))
        rest = solve(problem, solver, state=half.state, stopping=Stopping(7, change=None))
        assert all(torch.equal(a, b) for a, b in zip(whole.point.tensors, rest.point.tensors, strict=True))


class TestExactParameters:
    """Layers of an MLP read u and explain z; each is a problem of its own."""

    @pytest.mark.parametrize("lifting", LIFTINGS)
    def test_gradient_vanishes(self, lifting: str) -> None:
        problem = _problem("mlp", LIFTINGS[lifting], activation=prox.LeakyReLU(0.3))
        start = problem.start("input")
        start = start.merge(Point({"states u": [t + 0.3 * _randn(9, *t.shape) for t in start["states u"]]}))
        found = problem.minimise(start, "parameters", 1e-9)
        assert found is not None
        before, after = (norm(problem.gradient(point, ("parameters",))) for point in (start, found))
        assert after < (1e-3 if lifting == "mac-qp" else 1e-7) * before

    def test_classical_layers_are_least_squares(self) -> None:
        problem = _problem("mlp", LIFTINGS["classical"])
        start = problem.start("input")
        start = start.merge(Point({"states u": [t + 0.3 * _randn(9, *t.shape) for t in start["states u"]]}))
        z = problem.states(start)
        found = problem.minimise(start, "parameters", 1e-12)
        assert found is not None and z.u is not None
        values = dict(zip(problem.names, found["parameters"], strict=True))
        ones = torch.ones(BATCH, 1, dtype=torch.float64)
        second = torch.linalg.lstsq(torch.cat([z.u[0], ones], 1), z[1]).solution.T
        last = torch.linalg.lstsq(torch.cat([z.u[1], ones], 1), problem.x).solution.T
        torch.testing.assert_close(values["hidden.1.linear.weight"][0], second[:, :-1], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(values["output.0.bias"][0], last[:, -1], rtol=1e-8, atol=1e-8)

    def test_others_take_first_order_steps(self) -> None:
        problem = _problem("resnet")
        assert problem.minimise(problem.start(), "parameters", 1e-6) is None


class TestLimit:
    """As ρ → ∞ minimisers tend to those of the hard coupling, at the rate 1/ρ of a quadratic penalty."""

    @pytest.mark.parametrize("kind", ["mlp", "resnet"])
    def test_states_for_fixed_parameters(self, kind: str) -> None:
        """The classical penalty is convex in (z, u) together."""

        def solved(rho: float | None) -> tuple[float, Tensor, float]:
            problem = _problem(kind, liftings.Classical(0.7), rho=rho)
            solver = ProximalGradient(Backtracking(), Nesterov(), blocks=tuple(problem.rows))
            stopping = Stopping(20_000, change=None, residual=1e-7)
            solution = solve(problem, solver, problem.start(), stopping=stopping, record_every=0)
            assert solution.converged, solution.message
            z = problem.states(solution.point)
            gap = problem.report(solution.point).coupling
            return problem.value(solution.point), torch.cat([layer.flatten() for layer in z]), gap

        least, z, _ = solved(None)
        values, distances, couplings = zip(
            *((least - value, float((near - z).norm()), gap) for value, near, gap in (solved(50.0), solved(500.0))),
            strict=True,
        )
        assert values[1] > 0, "the constraint costs something"
        for pair in (values, distances, couplings):
            assert 7 < pair[0] / pair[1] < 11

    def test_parameters_too(self) -> None:
        """From the minimiser of the hard coupling, whose neighbourhood holds that of a large ρ."""

        def solved(rho: float | None, near: tuple[Tensor, ...] | None) -> tuple[Tensor, ...]:
            ridge = {"parameters": {"*": regularisers.Ridge(0.1)}}
            problem = _problem("mlp", liftings.Bregman(0.7), rho=rho, activation=prox.Tanh(), **ridge)
            if near is not None:
                problem.publish(Point({"parameters": near}))
            stopping = Stopping(20_000, change=None, residual=1e-6)
            solution = solve(problem, FISTA(Backtracking()), problem.start(), stopping=stopping, record_every=0)
            assert solution.converged, solution.message
            return solution.point["parameters"]

        hard = solved(None, None)
        there = Point({"parameters": hard})
        first, second = (
            norm(subtract(Point({"parameters": solved(rho, hard)}), there)) / norm(there) for rho in (20.0, 200.0)
        )
        assert second < 0.02
        assert 5 < first / second < 15


INNER: dict[str, Solver] = {
    "exact": BlockCoordinateDescent(1e-2, 8),
    "linearised": LinearisedBCD(ProximalGradient(Backtracking()), sweep="backward"),
}


class TestBatches:
    def _batches(
        self, kind: str = "mlp", lifting: str = "bregman", warm: bool = False, dtype: torch.dtype | None = None
    ) -> TrainingBatches:
        y = _randn(1, 40, 3)
        x = torch.relu(y @ _randn(2, 3, 4)) @ _randn(3, 4, 2)
        objective = Objective(_network(kind), LIFTINGS[lifting], coupling=RHO)
        cache = None
        if warm:
            activations = objective.network.operators().activations
            cache = LatentCache(objective.layout, activations, 40, y, dtype=dtype, u_layout=objective.u_layout)
        return TrainingBatches(objective, as_batches((y, x), batch_size=10), cache=cache)

    @pytest.mark.parametrize(
        ("kind", "lifting", "warm", "name"),
        [
            (kind, lifting, warm, name)
            for kind, (lifting, warm), name in all_pairs(
                ["mlp", "resnet"], [*((name, False) for name in LIFTINGS), ("bregman", True)], INNER
            )
        ],
    )
    def test_training_loss_falls(self, kind: str, lifting: str, warm: bool, name: str) -> None:
        batches = self._batches(kind, lifting, warm)
        start = batches.start()
        solver = ImplicitStochasticGradient(Diminishing(0.5, 0.3), INNER[name], inner_steps=2)
        solution = solve(batches, solver, start, stopping=Stopping(8, change=None), record_every=8)
        assert not solution.failed, solution.message
        assert solution.history[-1].value < 0.85 * batches.value(start)

    @pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["double", "half"])
    def test_cache_keeps_u(self, dtype: torch.dtype | None) -> None:
        batches = self._batches("resnet", warm=True, dtype=dtype)
        solver = ImplicitStochasticGradient(0.5, LinearisedBCD(ProximalGradient(Backtracking())))
        solve(batches, solver, batches.start(), stopping=Stopping(4, change=None), record_every=0)
        problem, point = batches.batch(0, batches.start())
        z = problem.states(point)
        assert z.u is not None
        free = z.clone()
        moved = problem.point(point["parameters"], free.map(lambda tensor: tensor + 1.0))
        batches.finish(0, problem, moved)
        _, again = batches.batch(0, batches.start())
        tolerance = 1e-12 if dtype is None else 0.02
        for a, b in zip(again["states u"], point["states u"], strict=True):
            torch.testing.assert_close(a, b + 1.0, rtol=tolerance, atol=tolerance)

    def test_resumes_with_the_cache(self) -> None:
        solver = ImplicitStochasticGradient(0.5, LinearisedBCD(ProximalGradient(Backtracking())))
        ends = []
        for steps in ((9,), (5, 4)):
            batches = self._batches(warm=True)
            solution = solve(batches, solver, batches.start(), stopping=Stopping(steps[0], change=None), record_every=0)
            if steps[1:]:
                parts = {name: tensor.clone() for name, tensor in batches.state_dict().items()}
                assert {"u.0", "z.0"} < set(parts)
                batches = self._batches(warm=True)
                batches.load_state_dict(parts)
                stopping = Stopping(steps[1], change=None)
                solution = solve(batches, solver, state=solution.state, stopping=stopping, record_every=0)
            ends.append(solution.point.tensors)
        assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def _cached(rho: float | None, free_u: bool) -> TrainingBatches:
    objective = Objective(_network("mlp"), coupling=rho)
    layout = Objective(_network("mlp"), coupling=1.0).u_layout if free_u else None
    y, activations = _randn(1, 6, 3), objective.network.operators().activations
    cache = LatentCache(objective.layout, activations, 6, y, u_layout=layout)
    return TrainingBatches(objective, as_batches((y, _randn(2, 6, 2)), batch_size=3), cache=cache)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: _problem(lifting=liftings.Contrastive()), ["free states", "Contrastive", "Bregman"]),
        (lambda: _problem(lifting=liftings.Conventional()), ["free states", "Conventional", "Bregman"]),
        (lambda: _problem(loss=losses.Absolute()), ["smooth loss", "Absolute", "Huber"]),
        (lambda: LayerStage(Objective(_network("mlp"), coupling=1.0), None), ["layers", "hard coupling", "axis data"]),
        (lambda: _cached(1.0, False), ["room for the free u", "u_layout=objective.u_layout"]),
        (lambda: _cached(None, True), ["not free", "u_layout"]),
    ],
    ids=["contrastive", "conventional", "loss", "layers", "cache without u", "cache with u"],
)
def test_what_cannot_work_is_refused(call, words: list[str]) -> None:
    with pytest.raises(InvalidValueError) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value
