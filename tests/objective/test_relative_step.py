"""Steps without a learning rate: an oracle in plain Python, invariances, and the distance they find."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from contracts.network_cases import CASES
from torchlift import liftings, losses, networks, operators, prox
from torchlift.core.tensors import Point
from torchlift.data import as_batches
from torchlift.networks import Network
from torchlift.objective import Objective, RelativeStep, SweepDescent, TrainingBatches, back_propagate, relative_step
from torchlift.objective.relative_step import RelativeState
from torchlift.objective.taped_sweep import _divided
from torchlift.solvers import Stopping, solve, state_from_parts, state_to_parts


def _randn(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def _mlp(widths: Sequence[int], activation: prox.ProximalActivation | None = None, **options) -> networks.MLP:
    settings = {"dtype": torch.float64, "generator": torch.Generator().manual_seed(0)} | options
    return networks.MLP(widths, activation or prox.Tanh(), **settings)


def _lista() -> Network:
    return networks.LISTA(operators.Dense(_randn(0, 4, 5)), _randn(1, 5, 6), 3)


def _convolutional() -> Network:
    return next(case for case in CASES if case.name == "autoencoder").build()


def _data(network: Network, batch: int = 6) -> tuple[Tensor, Tensor]:
    """Inputs that are far from centred, random targets."""
    dtype = next(network.parameters()).dtype
    return _randn(2, batch, *network.in_shape, dtype=dtype) + 1, _randn(3, batch, *network.out_shape, dtype=dtype)


def _trained(network: Network) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in network.named_parameters() if p.requires_grad}


@torch.no_grad()
def _load(network: Network, values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        network.get_parameter(name).copy_(value)


@dataclass
class _Run:
    """Parameters and states after every step."""

    points: list[dict[str, Tensor]]
    states: list[RelativeState] = field(default_factory=list)

    @property
    def rho(self) -> list[float]:
        return [float(state.rho) for state in self.states]


def _run(
    rule: RelativeStep,
    network: Network,
    y: Tensor,
    x: Tensor,
    count: int,
    scale: float = 1.0,
    share: Callable[[int], float] = lambda k: 1.0,
    batch: Callable[[int], slice] = lambda k: slice(None),
) -> _Run:
    """Steps on the mean squared error times `scale`."""
    run = _Run([_trained(network)])
    names = list(run.points[0])
    for k in range(count):
        point = Point({"parameters": list(run.points[-1].values())})
        sweep = back_propagate(network, losses.SquaredError(), y[batch(k)], x[batch(k)])
        for grad in sweep.gradients.values():
            grad.mul_(scale)
        state = run.states[-1] if run.states else rule.init(names, point, sweep)
        point, state = rule.move(names, point, sweep, state, k, share(k))
        run.states.append(state)
        run.points.append(dict(zip(names, point.tensors, strict=True)))
        _load(network, run.points[-1])
    return run


Key = tuple[str, int]
Values = dict[Key, list[float]]


@dataclass
class _Oracle:
    """The formulas of the docstring on lists of numbers, one list per layer of every parameter."""

    rule: RelativeStep
    origin: Values
    units: dict[Key, float]
    by_layer: set[Key]

    def __post_init__(self) -> None:
        self.q = dict.fromkeys(self.origin, 0.0)
        self.entries = {key: [0.0] * len(v) for key, v in self.origin.items() if key not in self.by_layer}
        self.m = {key: [0.0] * len(v) for key, v in self.origin.items()}
        self.s = {key: [0.0] * len(v) for key, v in self.origin.items()}
        self.r, self.rho, self.k = 0.0, self.rule.start, 0

    def step(self, x: Values, g: Values, means: dict[Key, tuple[Key, list[float]]], share: float) -> Values:
        """`means` has the weights' key and ū for the key of every bias."""
        self.k += 1
        gamma = (1 + math.cos(math.pi * (1 - share))) / 2 if self.rule.anneal else 1.0
        g = {key: list(values) for key, values in g.items()}
        moved = {key: [a - b for a, b in zip(self.origin[key], x[key], strict=True)] for key in x}
        for bias, (weight, mean) in means.items():
            n = len(mean)
            for i, slope in enumerate(g[bias]):
                for j in range(n):
                    g[weight][n * i + j] -= slope * mean[j]
                moved[bias][i] += sum(moved[weight][n * i + j] * mean[j] for j in range(n))
        weight = (1 - self.rule.patience) * gamma * self.rho**2
        inner = 0.0
        for key, values in g.items():
            normed = self._normalised(key, values)
            directions = normed if key in self.by_layer else values
            for i, (value, direction) in enumerate(zip(normed, directions, strict=True)):
                self.m[key][i] = self.rule.momentum * self.m[key][i] + (1 - self.rule.momentum) * direction
                self.s[key][i] = self.rule.patience * self.s[key][i] + weight * self.units[key] * value
                inner += value * moved[key][i]
        self.r = self.rule.patience * self.r + weight * inner
        size = sum(self._dual(key) for key in g)
        self.rho = max(self.rho, self.r / size) if size else self.rho
        scale = gamma / (1 - self.rule.momentum**self.k)
        directions = {key: m if key in self.by_layer else self._by_entry(key, g[key]) for key, m in self.m.items()}
        steps = {key: [-scale * self._length(key) * value for value in m] for key, m in directions.items()}
        for bias, (of, mean) in means.items():
            for i in range(len(steps[bias])):
                steps[bias][i] -= sum(steps[of][len(mean) * i + j] * mean[j] for j in range(len(mean)))
        return {key: [a + b for a, b in zip(x[key], steps[key], strict=True)] for key in x}

    def _length(self, key: Key) -> float:
        """Logarithms keep to the first ρ."""
        return self.units[key] * (self.rule.start if key[0].endswith("log") else self.rho)

    def _normalised(self, key: Key, g: list[float]) -> list[float]:
        memory = self.rule.memory
        self.q[key] = memory * self.q[key] + (1 - memory) * sum(value**2 for value in g) / len(g)
        root = math.sqrt(self.q[key] / (1 - memory**self.k))
        return [value / root if root else 0.0 for value in g]

    def _by_entry(self, key: Key, g: list[float]) -> list[float]:
        """m/√q̂ as in Adam."""
        memory = math.sqrt(math.sqrt(math.sqrt(self.rule.memory)))
        pairs = zip(self.entries[key], g, strict=True)
        self.entries[key] = [memory * q + (1 - memory) * value**2 for q, value in pairs]
        roots = [math.sqrt(q / (1 - memory**self.k)) for q in self.entries[key]]
        return [value / root if root else 0.0 for value, root in zip(self.m[key], roots, strict=True)]

    def _dual(self, key: Key) -> float:
        if key in self.by_layer:
            return math.sqrt(len(self.s[key])) * math.sqrt(sum(value**2 for value in self.s[key]))
        return sum(abs(value) for value in self.s[key])


def _split(tensors: dict[str, Tensor]) -> Values:
    return {(name, i): part.flatten().tolist() for name, t in tensors.items() for i, part in enumerate(t)}


def _root_mean_square(values: list[float]) -> float:
    return math.sqrt(sum(value**2 for value in values) / len(values))


def _autograd(network: Network, y: Tensor, x: Tensor) -> tuple[Values, list[list[float]]]:
    """Gradients of the mean loss, and ū of every layer of a chain."""
    network.zero_grad()
    states = network.states(y)
    (0.5 * (states.output - x).square().sum() / len(y)).backward()
    grads = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    return _split(grads), [u.detach().mean(0).tolist() for u in states.u]


@pytest.mark.parametrize("share", [lambda k: 1.0, lambda k: 1 - k / 12], ids=["steady", "annealed"])
@pytest.mark.parametrize(
    "rule",
    [
        RelativeStep(),
        RelativeStep(start=1e-5),
        RelativeStep(0.1, limit=1e6, momentum=0.5, memory=0.3, patience=0.7),
        RelativeStep(centring=False, anneal=False, momentum=0),
    ],
    ids=["default", "little", "short", "plain"],
)
class TestOracle:
    def test_stacked_dense_layers(self, rule: RelativeStep, share: Callable[[int], float]) -> None:
        """One output, so that a layer of a single entry is among them."""
        network, twin = (_mlp([3, 4, 4, 4, 1]) for _ in range(2))
        y, x = _data(network)
        chain: list[Key] = [("hidden.0", 0), ("hidden.1", 0), ("hidden.1", 1), ("output.0", 0)]
        x0 = _split(_trained(twin))
        units = {(f"{name}.linear.weight", i): _root_mean_square(x0[f"{name}.linear.weight", i]) for name, i in chain}
        units |= {(f"{name}.bias", i): units[f"{name}.linear.weight", i] for name, i in chain}
        oracle = _Oracle(rule, x0, units, by_layer=set(x0))

        def means(inputs: list[list[float]]) -> dict[Key, tuple[Key, list[float]]]:
            pairs = zip(chain, inputs, strict=True)
            return {(f"{name}.bias", i): ((f"{name}.linear.weight", i), mean) for (name, i), mean in pairs}

        self._compare(oracle, network, twin, y, x, share, means if rule.centring else lambda inputs: {})

    def test_entries_of_an_unrolled_network(self, rule: RelativeStep, share: Callable[[int], float]) -> None:
        network, twin = _lista(), _lista()
        y, x = _data(network)
        x0 = _split(_trained(twin))
        units = {key: 12.0 if key[0].endswith("log") else 1.4 * _root_mean_square(value) for key, value in x0.items()}
        oracle = _Oracle(rule, x0, units, by_layer=set())
        self._compare(oracle, network, twin, y, x, share, lambda inputs: {})

    def _compare(self, oracle: _Oracle, network: Network, twin: Network, y: Tensor, x: Tensor, share, means) -> None:
        run = _run(oracle.rule, network, y, x, 10, share=share)
        values = oracle.origin
        for k in range(10):
            gradients, inputs = _autograd(twin, y, x)
            values = oracle.step(values, gradients, means(inputs), share(k))
            assert run.rho[k] == pytest.approx(oracle.rho, rel=1e-10)
            found = _split(run.points[k + 1])
            for key, expected in values.items():
                assert found[key] == pytest.approx(expected, rel=1e-10, abs=1e-10), (k, key)
            shapes = {name: t.shape for name, t in run.points[0].items()}
            flat = {name: [v for key, part in values.items() if key[0] == name for v in part] for name in shapes}
            tensors = {name: torch.tensor(part, dtype=torch.float64) for name, part in flat.items()}
            _load(twin, {name: tensor.view(shapes[name]) for name, tensor in tensors.items()})
        assert run.rho[-1] > oracle.rule.start or oracle.rule.start >= 0.01, "the estimate was put to the test"


NETWORKS = {
    "dense": lambda: _mlp([3, 4, 4, 4, 2]),
    "lista": _lista,
    "convolutional": _convolutional,
}


@pytest.mark.parametrize("build", NETWORKS.values(), ids=NETWORKS)
class TestEveryNetwork:
    def test_the_size_of_the_loss_does_not_matter(self, build: Callable[[], Network]) -> None:
        """Powers of two change no rounding: the iterates are the same numbers."""
        y, x = _data(build())
        plain = _run(RelativeStep(1e-4), build(), y, x, 12)
        for scale in (2.0**30, 2.0**-30):
            scaled = _run(RelativeStep(1e-4), build(), y, x, 12, scale)
            assert scaled.rho == plain.rho and plain.rho[-1] > 1e-4
            assert all(torch.equal(scaled.points[-1][name], value) for name, value in plain.points[-1].items())
        other = _run(RelativeStep(1e-4), build(), y, x, 12, 3.7)
        for name, value in plain.points[-1].items():
            torch.testing.assert_close(other.points[-1][name], value, rtol=1e-8, atol=1e-10)

    def test_without_gradients_nothing_moves(self, build: Callable[[], Network]) -> None:
        network = build()
        y, x = _data(network)
        still = _run(RelativeStep(), network, y, x, 3, scale=0.0)
        assert all(torch.equal(still.points[-1][name], value) for name, value in still.points[0].items())
        assert still.rho == [RelativeStep().start] * 3
        tensors, _ = state_to_parts(still.states[-1])
        assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())

    def test_at_the_end_of_the_budget_nothing_moves(self, build: Callable[[], Network]) -> None:
        network = build()
        y, x = _data(network)
        run = _run(RelativeStep(), network, y, x, 4, share=lambda k: 1.0 if k < 3 else 0.0)
        for name, value in run.points[3].items():
            assert torch.equal(run.points[4][name], value) and not torch.equal(run.points[2][name], value)
        steady = _run(RelativeStep(anneal=False), build(), y, x, 4, share=lambda k: 0.0)
        free = _run(RelativeStep(), build(), y, x, 4)
        assert all(torch.equal(steady.points[-1][name], value) for name, value in free.points[-1].items())

    def test_rho_never_falls(self, build: Callable[[], Network]) -> None:
        network = build()
        y, x = _data(network, 8)
        batch = [slice(0, 4), slice(4, 8)]
        rho = _run(RelativeStep(1e-3), network, y, x, 30, batch=lambda k: batch[k % 2]).rho
        assert rho == sorted(rho) and rho[0] == 1e-3 < rho[-1]

    def test_resumes_bit_by_bit(self, build: Callable[[], Network]) -> None:
        def batches() -> TrainingBatches:
            network = build()
            data = as_batches(_data(network, 8), batch_size=4)
            objective = Objective(network, liftings.Conventional())
            return TrainingBatches(objective, data, budget=lambda k: 1 - k / 12)

        solver, start = SweepDescent(RelativeStep(1e-4)), batches().start()
        whole = solve(batches(), solver, start, stopping=Stopping(11, change=None), record_every=0)
        half = solve(batches(), solver, start, stopping=Stopping(4, change=None), record_every=0)
        tensors, numbers = state_to_parts(half.state)
        stored = {name: torch.tensor(json.loads(json.dumps(t.tolist())), dtype=t.dtype) for name, t in tensors.items()}
        again = state_from_parts(solver.init(batches(), start), stored, json.loads(json.dumps(numbers)))
        rest = solve(batches(), solver, state=again, stopping=Stopping(7, change=None), record_every=0)
        expected, found = state_to_parts(whole.state)[0], state_to_parts(rest.state)[0]
        assert expected.keys() == found.keys() and float(expected["rule.rho"]) > 1e-4
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("build", NETWORKS.values(), ids=NETWORKS)
def test_the_distance_is_estimated_from_some_rows(
    build: Callable[[], Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer rows give an estimate of the same order, and steps go everywhere."""
    y, x = _data(build())
    whole = _run(RelativeStep(1e-4), build(), y, x, 12)
    monkeypatch.setattr(relative_step, "ROWS", 2)
    some = _run(RelativeStep(1e-4), build(), y, x, 12)
    entries = [sum(t.numel() for t in run.states[-1].origin.tensors) for run in (whole, some)]
    assert entries[1] < 0.8 * entries[0]
    assert some.rho != whole.rho and 0.2 < some.rho[-1] / whole.rho[-1] < 5
    for name in whole.points[-1]:
        moved = [run.points[-1][name] != run.points[0][name] for run in (whole, some)]
        assert torch.equal(*moved), "the same entries move"


def test_steps_of_entries_are_known_to_autograd() -> None:
    """The fused step changes memory behind the back of version counters, which other parts rely on."""
    network = _lista()
    y, x = _data(network)
    names, point = list(_trained(network)), Point({"parameters": list(_trained(network).values())})
    sweep = back_propagate(network, losses.SquaredError(), y, x)
    state = RelativeStep().init(names, point, sweep)
    before = [t._version for t in (*point.tensors, *state.first.tensors, *state.entries.tensors)]
    RelativeStep().move(names, point, sweep, state, 0, 1.0, reuse=True)
    after = [t._version for t in (*point.tensors, *state.first.tensors, *state.entries.tensors)]
    assert all(b > a for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("shared", [False, True])
def test_means_of_gradients_that_parameters_share_are_taken_once(shared: bool) -> None:
    one = torch.tensor([2.0, 4.0])
    found = _divided([one, one if shared else torch.tensor([6.0, 8.0])], 2)
    assert found[0].tolist() == [1.0, 2.0] and found[1].tolist() == ([1.0, 2.0] if shared else [3.0, 4.0])
    assert (found[0] is one) != shared, "no new memory where none is needed"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keeps_the_dtype(dtype: torch.dtype) -> None:
    network = _mlp([3, 4, 4, 2], dtype=dtype)
    run = _run(RelativeStep(), network, *_data(network), 3)
    tensors, _ = state_to_parts(run.states[-1])
    for tensor in (*tensors.values(), *run.points[-1].values()):
        assert tensor.dtype == dtype and bool(tensor.isfinite().all())
    assert not any(torch.equal(run.points[-1][name], value) for name, value in run.points[0].items())


class TestSteps:
    def test_are_shares_of_the_size_of_each_layer(self) -> None:
        """The first is ρ exactly; later ones stay below ρ √((1 − β₂ᵏ)/(1 − β₂)), with momentum too."""
        network = _mlp([3, 6, 6, 6, 2])
        rule = RelativeStep(memory=0.9)
        y, x = _data(network)
        run = _run(rule, network, y, x, 25)
        for name, x0 in run.points[0].items():
            if name.endswith("bias"):
                continue
            for i, start in enumerate(x0):
                size = float(start.norm())  # c √n
                moves = [
                    float((b[name][i] - a[name][i]).norm()) / size
                    for a, b in zip(run.points, run.points[1:], strict=False)
                ]
                assert moves[0] == pytest.approx(rule.start, rel=1e-12)
                for k, (move, rho) in enumerate(zip(moves, run.rho, strict=True), start=1):
                    assert 0 < move <= rho * math.sqrt((1 - 0.9**k) / (1 - 0.9)) * (1 + 1e-12)

    def test_follow_the_units_of_all_layers(self) -> None:
        """ReLU without biases: weights and targets in other units give the same iterates in those units."""
        network, other = (_mlp([3, 5, 5, 2], prox.ReLU(), bias=False) for _ in range(2))
        y, x = _data(network)
        _load(other, {name: 4 * value for name, value in _trained(other).items()})
        plain, scaled = _run(RelativeStep(1e-4), network, y, x, 12), _run(RelativeStep(1e-4), other, y, 4**3 * x, 12)
        assert plain.rho == scaled.rho and plain.rho[-1] > 1e-4
        assert all(torch.equal(scaled.points[-1][name], 4 * value) for name, value in plain.points[-1].items())

    def test_follow_the_units_of_each_layer_while_rho_stands(self) -> None:
        """The same function with its layers rescaled against each other moves in the same way."""
        network, other = (_mlp([3, 5, 5, 2], prox.ReLU(), bias=False) for _ in range(2))
        y, x = _data(network)
        factors = {"hidden.0.linear.weight": 8.0, "hidden.1.linear.weight": 0.5, "output.0.linear.weight": 0.25}
        _load(other, {name: factors[name] * value for name, value in _trained(other).items()})
        rule = RelativeStep(0.1)
        plain, scaled = (_run(rule, net, y, x, 3) for net in (network, other))
        assert plain.rho == scaled.rho == [0.1] * 3
        for name, value in plain.points[-1].items():
            assert torch.equal(scaled.points[-1][name], factors[name] * value)

    def test_start_from_zero_weights(self) -> None:
        network = _mlp([4, 3])
        _load(network, {name: torch.zeros_like(value) for name, value in _trained(network).items()})
        y, x = _data(network, 12)
        run = _run(RelativeStep(), network, y, x, 100, share=lambda k: 1 - k / 100)
        first = run.points[1]["output.0.linear.weight"]
        assert float(first.norm()) == pytest.approx(RelativeStep().start), "size nothing counts as norm 1"
        best = torch.linalg.lstsq(torch.cat([y, torch.ones(12, 1).double()], 1), x).solution.T
        gap = run.points[-1]["output.0.linear.weight"][0] - best[:, :4]
        assert float(gap.norm()) < 0.1 * float(best[:, :4].norm())

    def test_a_dead_network_stays_finite(self) -> None:
        """All weights zero: only the last bias has a gradient."""
        network = _mlp([4, 5, 5, 3])
        _load(network, {name: torch.zeros_like(value) for name, value in _trained(network).items()})
        run = _run(RelativeStep(), network, *_data(network), 5)
        for name, value in run.points[-1].items():
            assert bool(value.isfinite().all()) and bool(value.any()) == (name == "output.0.bias")


@dataclass(frozen=True)
class _LeastSquares:
    """One dense layer, its exact solution, and the distance to it in units of each part."""

    network: Network
    y: Tensor
    x: Tensor
    distance: float


def _least_squares(seed: int, bias: bool, noise: float = 1.0, shift: float = 3.0) -> _LeastSquares:
    network = _mlp([5, 3], bias=bias, generator=torch.Generator().manual_seed(seed))
    y = _randn(seed + 100, 20, 5) + shift
    x = y @ _randn(seed + 200, 5, 3) + noise * _randn(seed + 300, 20, 3)
    W = network.get_parameter("output.0.linear.weight").detach()[0]
    unit = float(W.square().mean().sqrt())
    if not bias:
        best = torch.linalg.lstsq(y, x).solution.T
        return _LeastSquares(network, y, x, float((W - best).norm()) / (unit * 15**0.5))
    b = network.get_parameter("output.0.bias").detach()[0]
    solution = torch.linalg.lstsq(torch.cat([y, torch.ones(20, 1).double()], 1), x).solution.T
    best, offset = solution[:, :5], solution[:, 5]
    far = (b - offset) + (W - best) @ y.mean(0)
    parts = float((W - best).norm()) / (unit * 15**0.5), float(far.norm()) / (unit * 3**0.5)
    return _LeastSquares(network, y, x, max(parts))


def _falling(k: int) -> float:
    return 1 - k / 200


@pytest.mark.parametrize("seed", range(2))
class TestDistance:
    """ρ ≤ max_l ‖x₀ − x*‖/(c_l √n_l) for one layer: r sums ⟨ĝ, x₀ − x⟩ ≤ ⟨ĝ, x₀ − x*⟩, whatever moved x.

    That needs ⟨g_l, x_l − x*_l⟩ ≥ 0 part by part, because every part has its own q: convexity gives it for weights
    alone, and centring makes weights and bias two separate least-squares problems.
    """

    @pytest.mark.parametrize("bias", [False, True])
    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    @pytest.mark.parametrize("start", [1e-6, 1e-2])
    def test_is_never_overestimated_and_found(self, seed: int, bias: bool, momentum: float, start: float) -> None:
        problem = _least_squares(seed, bias)
        rule = RelativeStep(start, limit=1e6, momentum=momentum)
        run = _run(rule, problem.network, problem.y, problem.x, 100, share=lambda k: 1 - k / 100)
        assert run.rho == sorted(run.rho)
        assert run.rho[-1] <= problem.distance * (1 + 1e-12)
        assert run.rho[-1] >= 0.02 * problem.distance, "from a millionth to the right order"

    def test_holds_in_batches_that_share_a_solution(self, seed: int) -> None:
        problem = _least_squares(seed, bias=False, noise=0.0)
        batches = [slice(i, i + 4) for i in range(0, 20, 4)]
        run = _run(
            RelativeStep(1e-6, limit=1e6), problem.network, problem.y, problem.x, 100, batch=lambda k: batches[k % 5]
        )
        assert 0.02 * problem.distance <= run.rho[-1] <= problem.distance * (1 + 1e-12)

    def test_solves_the_problem_whatever_the_start(self, seed: int) -> None:
        for start in (1e-6, 1e-1):
            problem = _least_squares(seed, bias=True)
            run = _run(RelativeStep(start, limit=1e6), problem.network, problem.y, problem.x, 200, share=_falling)
            _load(problem.network, run.points[-1])
            ones = torch.ones(20, 1).double()
            solution = torch.linalg.lstsq(torch.cat([problem.y, ones], 1), problem.x).solution
            least = float((torch.cat([problem.y, ones], 1) @ solution - problem.x).square().sum())
            found = float((problem.network(problem.y).detach() - problem.x).square().sum())
            assert found < 1.05 * least


def test_no_step_exceeds_the_limit_shared_by_all_layers() -> None:
    """Fifty sleeping ReLU layers, whose estimated distance grows without end."""
    network = networks.MLP([20, *[16] * 50, 3], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.rand(30, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    run = _run(RelativeStep(limit=0.5, anneal=False), network, y, torch.zeros(30, 3, dtype=torch.float64), 60)
    assert max(run.rho) <= 0.5 / 51 * (1 + 1e-12)


def test_an_unrolled_network_counts_as_two_layers() -> None:
    network = _lista()
    y, x = _data(network)
    run = _run(RelativeStep(limit=0.02, anneal=False), network, y, 100 * x, 60)
    assert max(run.rho) == pytest.approx(0.01, rel=1e-12)
