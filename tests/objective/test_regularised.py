"""Regularisers on hidden variables and parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso
from torch import Tensor

from cells import all_pairs
from torchlift import liftings, prox, regularisers
from torchlift.core.errors import InvalidValueError
from torchlift.core.tensors import Point
from torchlift.data import as_batches
from torchlift.networks import MLP, Network, ResNet
from torchlift.objective import Objective, TrainingBatches, TrainingProblem
from torchlift.solvers import (
    FISTA,
    Backtracking,
    BlockCoordinateDescent,
    Cosine,
    FromBound,
    ImplicitStochasticGradient,
    LinearisedBCD,
    ProximalAdam,
    ProximalGradient,
    Solver,
    Stopping,
    solve,
)


def _randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _network(activation: prox.ProximalActivation, widths: tuple[int, ...] = (3, 6, 3)) -> MLP:
    return MLP(list(widths), activation, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


ELEMENTWISE = [
    prox.ReLU(),
    prox.SoftThreshold(0.3),
    prox.Tanh(),
    prox.LeakyReLU(0.2),
    prox.Box(-0.5, 0.5),
    prox.ELU(),
    prox.Softsign(),
]


@pytest.mark.parametrize(
    "regulariser",
    [
        regularisers.L1(0.4),
        regularisers.ElasticNet(0.4, 1.5),
        regularisers.Interval(-0.2, 0.6),
        regularisers.NonNegative(),
    ],
)
@pytest.mark.parametrize("activation", ELEMENTWISE, ids=repr)
def test_prox_of_the_sum_minimises_the_sum(
    activation: prox.ProximalActivation, regulariser: regularisers.Regulariser
) -> None:
    """½(p − z)² + step·(μΨ + R)(p) on a fine grid."""
    mu, step, batch = 0.7, 0.9, 5
    objective = Objective(_network(activation), liftings.Bregman(mu), states=regulariser)
    y = _randn(1, batch, 3)
    z = objective.initialise(y)
    with torch.no_grad():
        z[0].copy_(2 * _randn(2, batch, 6))
    found = objective.prox_states(z, step * batch)[0]
    grid = torch.cat([torch.linspace(-3, 3, 60_001, dtype=torch.float64), torch.tensor([0.0, -0.5, 0.5, -0.2, 0.6])])
    penalty = step * mu * activation.psi(grid)
    single = {
        regularisers.L1: lambda p: 0.4 * p.abs(),
        regularisers.ElasticNet: lambda p: 0.4 * p.abs() + 0.75 * p.square(),
        regularisers.Interval: lambda p: torch.where((p >= -0.2) & (p <= 0.6), 0.0, torch.inf),
        regularisers.NonNegative: lambda p: torch.where(p >= 0, 0.0, torch.inf),
    }[type(regulariser)]
    energy = 0.5 * (grid[:, None] - z[0].flatten()) ** 2 + (penalty + step * single(grid))[:, None]
    best = energy.min(0).values
    p = found.flatten()
    own = 0.5 * (p - z[0].flatten()) ** 2 + step * mu * activation.psi(p) + step * single(p)
    assert float((own - best).max()) < 1e-7


def test_sums_without_a_closed_form_are_refused() -> None:
    for activation in (prox.Sigmoid(), prox.Softmax()):
        with pytest.raises(InvalidValueError, match="layer 1") as caught:
            Objective(_network(activation), liftings.Bregman(), states=regularisers.L1(0.1))
        assert "MACQP" in str(caught.value)
        Objective(_network(activation), liftings.MACQP(), states=regularisers.L1(0.1))
        Objective(_network(activation), liftings.Bregman(), states=regularisers.Ridge(0.1))


def test_smooth_regularisers_join_the_gradient() -> None:
    network = _network(prox.Tanh())
    y, x = _randn(1, 4, 3), _randn(2, 4, 3)
    plain = Objective(network)
    decay = Objective(
        network,
        states={1: regularisers.Ridge(0.3)},
        parameters={"*weight": regularisers.Decay(torch.tensor(0.5, dtype=torch.float64), 0.2)},
    )
    z = plain.initialise(y)
    first, second = plain.gradients(y, x, z), decay.gradients(y, x, z)
    torch.testing.assert_close(second.z[0], first.z[0] + 0.3 * z[0] / 4)
    for name, parameter in network.named_parameters():
        extra = 0.2 * (parameter.detach() - 0.5) if name.endswith("weight") else 0.0
        torch.testing.assert_close(second.parameters[name], first.parameters[name] + extra)
    weights = [p.detach() for name, p in network.named_parameters() if name.endswith("weight")]
    added = sum(0.1 * (w - 0.5).square().sum() for w in weights) + 0.15 * z[0].square().sum() / 4
    torch.testing.assert_close(decay.value(y, x, z), plain.value(y, x, z) + added)


def test_nonsmooth_regularisers_of_parameters_act_by_their_prox() -> None:
    network = _network(prox.ReLU())
    objective = Objective(network, parameters={"hidden*weight": regularisers.NuclearNorm(0.5)})
    values = {name: p.detach() for name, p in network.named_parameters()}
    moved = objective.prox_parameters(values, 0.8)
    for name, value in values.items():
        if name.startswith("hidden") and name.endswith("weight"):
            old, new = torch.linalg.svdvals(value), torch.linalg.svdvals(moved[name])
            torch.testing.assert_close(new, (old - 0.4).clamp(min=0), rtol=0, atol=1e-12)
        else:
            assert torch.equal(moved[name], value)


def test_sparse_autoencoder_learns_sparse_codes() -> None:
    """An ℓ1-regularised code: more weight, more zeros; the network stays an autoencoder."""
    basis = _randn(3, 8, 20)
    codes = _randn(4, 60, 20) * (torch.rand(60, 20, generator=torch.Generator().manual_seed(5)) < 0.1)
    y = codes @ basis.T

    def zeros(weight: float) -> tuple[float, float]:
        network = _network(prox.ReLU(), (8, 20, 8))
        objective = Objective(network, liftings.Bregman(1.0), states=regularisers.L1(weight))
        z = objective.initialise(y)
        with torch.no_grad():
            for _ in range(400):
                found = objective.gradients(y, y, z)
                z.buffers[0].sub_(found.z.buffers[0], alpha=0.05 * len(y))
                z = objective.prox_states(z, 0.05 * len(y))
                found = objective.gradients(y, y, z)
                for name, slope in found.parameters.items():
                    network.get_parameter(name).sub_(slope, alpha=0.02)
        return float((z[0] == 0).double().mean()), objective.report(y, y, z).loss

    (few, good), (many, _) = zeros(1e-3), zeros(0.3)
    assert many > few + 0.1
    assert good < 0.2 * 0.5 * float(y.square().sum()) / len(y)


class TestLasso:
    """An affine network with ℓ1 on its weights has a known minimiser."""

    WEIGHT = 0.3

    def _data(self) -> tuple[Tensor, Tensor]:
        y = _randn(1, 40, 6)
        return y, y[:, :2] @ _randn(2, 2, 1) + 0.4 + 0.1 * _randn(3, 40, 1)

    def _objective(self) -> Objective:
        return Objective(_network(prox.ReLU(), (6, 1)), parameters={"*weight": regularisers.L1(self.WEIGHT)})

    def _is_the_minimiser(self, parameters: tuple[Tensor, ...], atol: float) -> None:
        y, x = self._data()
        oracle = Lasso(self.WEIGHT, tol=1e-12, max_iter=100_000).fit(y.numpy(), x.numpy()[:, 0])
        assert (oracle.coef_ == 0).any() and (oracle.coef_ != 0).any()
        values = {len(tensor.flatten()): tensor.flatten().numpy() for tensor in parameters}
        np.testing.assert_allclose(values[6], oracle.coef_, atol=atol)
        np.testing.assert_allclose(values[1], oracle.intercept_, atol=atol)

    @pytest.mark.parametrize(
        ("solver", "steps", "atol"),
        [
            (ProximalGradient(FromBound()), 400, 1e-9),
            (FISTA(), 400, 1e-9),
            (ProximalGradient(Backtracking()), 400, 1e-9),
            (LinearisedBCD(), 400, 1e-9),
            (BlockCoordinateDescent(), 3, 1e-7),
            (ProximalAdam(Cosine(0.02, 4000, 1e-6), matched=True), 4000, 1e-5),
        ],
        ids=["gradient", "fista", "backtracking", "linearised", "exact", "matched adam"],
    )
    def test_full_batch(self, solver: Solver, steps: int, atol: float) -> None:
        problem = TrainingProblem(self._objective(), *self._data())
        found = solve(problem, solver, problem.start(), stopping=Stopping(steps, change=None), record_every=0)
        self._is_the_minimiser(found.point["parameters"], atol)

    def test_plain_adam_is_elsewhere(self) -> None:
        """Its prox has the wrong step: what `matched` is for."""
        problem = TrainingProblem(self._objective(), *self._data())
        solver = ProximalAdam(Cosine(0.02, 4000, 1e-6))
        found = solve(problem, solver, problem.start(), stopping=Stopping(4000, change=None), record_every=0)
        with pytest.raises(AssertionError, match="tolerance"):
            self._is_the_minimiser(found.point["parameters"], 1e-3)

    @pytest.mark.parametrize(
        "inner",
        [BlockCoordinateDescent(), LinearisedBCD(ProximalGradient(FromBound()), steps=200)],
        ids=["exact", "linearised"],
    )
    def test_batches(self, inner: Solver) -> None:
        """With all samples in a batch, implicit steps are proximal point steps to the same minimiser."""
        problem = TrainingBatches(self._objective(), as_batches(self._data(), batch_size=40))
        solver = ImplicitStochasticGradient(100.0, inner)
        found = solve(problem, solver, problem.start(), stopping=Stopping(20, change=None), record_every=0)
        self._is_the_minimiser(found.point["parameters"], 1e-6)


REGULARISED = {
    "smooth": {"states": regularisers.Ridge(0.1), "parameters": {"*weight": regularisers.Ridge(0.05)}},
    "nonsmooth": {"states": regularisers.L1(0.05), "parameters": {"*weight": regularisers.L1(0.02)}},
    "constraints": {"states": regularisers.Interval(0.0, 2.0), "parameters": {"*bias": regularisers.NonNegative()}},
}
FULL = {
    "gradient": ProximalGradient(Backtracking()),
    "fista": FISTA(Backtracking()),
    "adam": ProximalAdam(1e-2),
    "matched adam": ProximalAdam(1e-2, matched=True),
    "linearised": LinearisedBCD(ProximalGradient(Backtracking())),
    "exact": BlockCoordinateDescent(1e-3, 20),
}


COUPLINGS = {"hard": None, "quadratic": 2.0}


class TestSolvers:
    """Every solver takes regularisers on states and parameters, smooth or not."""

    def _objective(self, kind: str, terms: str, coupling: str) -> Objective:
        network: Network = _network(prox.ReLU(), (3, 4, 4, 2))
        if kind == "resnet":
            generator = torch.Generator().manual_seed(0)
            network = ResNet(3, [4, 4], 2, prox.ReLU(), dtype=torch.float64, generator=generator)
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.abs_() if name.endswith("bias") else None
        return Objective(network, liftings.Bregman(0.7), coupling=COUPLINGS[coupling], **REGULARISED[terms])

    @pytest.mark.parametrize(
        ("kind", "terms", "coupling", "solver"), all_pairs(["mlp", "resnet"], REGULARISED, COUPLINGS, FULL)
    )
    def test_full_batch(self, kind: str, terms: str, coupling: str, solver: str) -> None:
        problem = TrainingProblem(self._objective(kind, terms, coupling), _randn(1, 12, 3), _randn(2, 12, 2))
        start = _inside(problem, problem.start("input"))
        steps = 3 if solver == "exact" else 40
        found = solve(problem, FULL[solver], start, stopping=Stopping(steps, change=None))
        assert not found.failed, found.message
        assert found.history[-1].value == pytest.approx(problem.value(found.point), rel=1e-10)
        assert found.history[-1].value < 0.9 * problem.value(start)

    @pytest.mark.parametrize(("kind", "terms", "coupling"), all_pairs(["mlp", "resnet"], REGULARISED, COUPLINGS))
    def test_batches(self, kind: str, terms: str, coupling: str) -> None:
        objective = self._objective(kind, terms, coupling)
        problem = TrainingBatches(objective, as_batches((_randn(1, 12, 3), _randn(2, 12, 2)), batch_size=6))
        solver = ImplicitStochasticGradient(0.5, LinearisedBCD(ProximalGradient(Backtracking())), inner_steps=5)
        start = problem.start()
        found = solve(problem, solver, start, stopping=Stopping(6, change=None))
        assert not found.failed, found.message
        assert problem.value(found.point) < problem.value(start)


def _inside(problem: TrainingProblem, point: Point) -> Point:
    """A point where all constraints hold."""
    return problem.prox(point, dict.fromkeys(point, 1e-9))


@pytest.mark.parametrize(
    ("lifting", "options", "block"),
    [
        (liftings.Bregman(), {"parameters": {"*weight": regularisers.NuclearNorm(0.1)}}, "parameters"),
        (liftings.MACQP(), {"states": regularisers.NuclearNorm(0.1)}, "states"),
    ],
    ids=["parameters", "states"],
)
def test_matched_adam_refuses_what_is_no_sum_over_entries(lifting: liftings.Lifting, options: dict, block: str) -> None:
    problem = TrainingProblem(Objective(_network(prox.ReLU()), lifting, **options), _randn(1, 5, 3), _randn(2, 5, 3))
    with pytest.raises(InvalidValueError, match=f"{block!r}: expected a prox that acts by entries.*matched=False"):
        solve(problem, ProximalAdam(matched=True), problem.start())
    solve(problem, ProximalAdam(), problem.start(), stopping=Stopping(3, change=None))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"states": {0: regularisers.L1(0.1)}}, ["layers from 1 to 1", "0"]),
        ({"states": {2: regularisers.L1(0.1)}}, ["layers from 1 to 1", "2"]),
        ({"states": {1: 0.1}}, ["layer 1", "Function", "float"]),
        ({"parameters": {"wieght": regularisers.L1(0.1)}}, ["pattern", "wieght", "hidden.0.linear.weight"]),
        ({"parameters": {"*": "l1"}}, ["regulariser", "Function", "str"]),
    ],
)
def test_bad_regularisers_are_refused(options: dict, words: list[str]) -> None:
    with pytest.raises((InvalidValueError, TypeError)) as caught:
        Objective(_network(prox.ReLU()), **options)
    assert all(word in str(caught.value) for word in words), caught.value
