"""Solvers and torch optimisers inside `tl.train`; losses that they can and cannot take."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import torchlift as tl
from torchlift.core.errors import TorchliftError
from torchlift.liftings import Bregman, Contrastive, Conventional, Lifting
from torchlift.losses import Absolute, Huber, SquaredError, Target
from torchlift.objective import GramRule, Objective, ScaledStep, SweepDescent, TrainingBatches, free_energy
from torchlift.objective.contrast import contrast
from torchlift.solvers import (
    ADMM,
    FISTA,
    PDHG,
    SOLVERS,
    Backtracking,
    BlockCoordinateDescent,
    GaussNewton,
    ImplicitStochasticGradient,
    LinearisedBCD,
    ProximalAdam,
    ProximalGradient,
)
from torchlift.training import TorchOptimiser
from torchlift.training.methods import SolverMethod, TorchMethod


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    y = torch.rand(60, 5, generator=torch.Generator().manual_seed(0))
    return y, torch.stack([y.sum(1), y[:, 0] * y[:, 1]], 1)


def network() -> tl.networks.MLP:
    return tl.networks.MLP([5, 8, 8, 2])


EXACT = BlockCoordinateDescent(tolerance=1e-2, inner_steps=20)
LIFTED: dict[str, Any] = {
    "proximal gradient": ProximalGradient(),
    "backtracking": ProximalGradient(Backtracking()),
    "FISTA": FISTA(Backtracking()),
    "Adam": ProximalAdam(1e-2),
    "linearised": LinearisedBCD(),
    "exact": EXACT,
    "implicit": ImplicitStochasticGradient(0.5, EXACT, inner_steps=2),
}
SWEEPS = {"relative": SweepDescent(), "scaled": SweepDescent(ScaledStep(1e-2)), "Gram": SweepDescent(GramRule())}


def descends(data: tuple[Tensor, Tensor], factor: float = 0.9, **settings: Any) -> None:
    trained = network()
    before = float(Objective(trained, Conventional(), settings.get("loss")).value(*data))
    result = tl.train(trained, data, **settings)
    after = float(Objective(trained, Conventional(), settings.get("loss")).value(*data))
    assert not result.failed
    assert after < factor * before


@pytest.mark.parametrize("size", [20, "full"])
@pytest.mark.parametrize("name", LIFTED)
def test_solvers_of_lifted_problems(name: str, size: Any, data: tuple[Tensor, Tensor]) -> None:
    descends(data, lifting=Bregman(1.0), solver=LIFTED[name], batch_size=size, steps=15)


@pytest.mark.parametrize("size", [20, "full"])
@pytest.mark.parametrize("lifting", [None, Conventional()])
@pytest.mark.parametrize("name", SWEEPS)
def test_sweeps(name: str, lifting: Lifting | None, size: Any, data: tuple[Tensor, Tensor]) -> None:
    descends(data, lifting=lifting, solver=SWEEPS[name], batch_size=size, steps=40)


def test_every_solver_is_served_or_refused() -> None:
    refused = {PDHG, ADMM, GaussNewton}
    served = {type(solver) for solver in LIFTED.values()}
    assert set(SOLVERS.values()) == refused | served


@pytest.mark.parametrize("solver", [PDHG(), ADMM(), GaussNewton(), ImplicitStochasticGradient(inner=PDHG())])
def test_solvers_for_other_problems(solver: Any, data: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(TorchliftError, match=r"train solver.*LinearisedBCD\(\), BlockCoordinateDescent\(\)"):
        tl.train(network(), data, solver=solver)


@pytest.mark.parametrize(
    "optimiser",
    [
        partial(torch.optim.SGD, lr=0.05),
        partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
        partial(torch.optim.Adam, lr=1e-2),
        partial(torch.optim.AdamW, lr=1e-2),
        partial(torch.optim.LBFGS, max_iter=4, line_search_fn="strong_wolfe"),
        TorchOptimiser(partial(torch.optim.Adam, lr=1e-2), anneal="cosine"),
        lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3),
    ],
    ids=["SGD", "momentum", "Adam", "AdamW", "LBFGS", "annealed", "function"],
)
def test_torch_optimisers(optimiser: Any, data: tuple[Tensor, Tensor]) -> None:
    descends(data, lifting=Conventional(), solver=optimiser, batch_size=20, steps=45)


@pytest.mark.parametrize(("anneal", "rates"), [(None, [1, 1, 1, 1]), ("linear", [1, 0.75, 0.5, 0.25])])
def test_annealing(anneal: Any, rates: list[float], data: tuple[Tensor, Tensor]) -> None:
    solver = TorchOptimiser(partial(torch.optim.SGD, lr=0.1), anneal=anneal)
    result = tl.train(network(), data, lifting=Conventional(), solver=solver, steps=4, batch_size="full")
    assert result.history["learning_rate"] == pytest.approx([0.1 * rate for rate in rates])


def test_torch_optimisers_are_those_of_a_plain_loop(data: tuple[Tensor, Tensor]) -> None:
    ours = network()
    twin = network()
    twin.load_state_dict(ours.state_dict())
    tl.train(ours, data, lifting=Conventional(), solver=torch.optim.Adam, steps=5, batch_size="full")
    optimiser = torch.optim.Adam(twin.parameters())
    for _ in range(5):
        optimiser.zero_grad()
        (0.5 * (twin(data[0]) - data[1]).square().sum() / len(data[0])).backward()
        optimiser.step()
    for one, other in zip(ours.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_sweeps_of_back_propagation_agree_with_torch(data: tuple[Tensor, Tensor]) -> None:
    ours = network()
    twin = network()
    twin.load_state_dict(ours.state_dict())
    settings: dict[str, Any] = {"lifting": Conventional(), "steps": 6, "batch_size": 20}
    tl.train(ours, data, solver=SweepDescent(ScaledStep(1e-2), average=0.0), **settings)
    tl.train(twin, data, solver=partial(torch.optim.Adam, lr=1e-2), **settings)
    for one, other in zip(ours.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("loss", [Absolute(), Huber(0.1), SquaredError()])
@pytest.mark.parametrize("lifting", [None, Conventional(), Bregman(1.0)])
def test_losses(loss: Any, lifting: Lifting | None, data: tuple[Tensor, Tensor]) -> None:
    if lifting == Bregman(1.0) and not loss.smooth:
        with pytest.raises(TorchliftError, match="expected a smooth loss, got Absolute"):
            tl.train(network(), data, loss=loss, lifting=lifting)
    else:
        descends(data, loss=loss, lifting=lifting, steps=40, batch_size=20)


@pytest.mark.parametrize("lifting", [None, Conventional(), Bregman(1.0), Contrastive(1.0)])
def test_a_loss_without_gradient(lifting: Lifting | None, data: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(TorchliftError, match=r"expected .* loss.*SquaredError"):
        tl.train(network(), data, loss=Target(), lifting=lifting)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"solver": torch.optim.Adam}, r"expected back-propagation, got no lifting.*lifting=Conventional\(\)"),
        ({"solver": torch.optim.Adam, "lifting": Bregman()}, "expected back-propagation, got Bregman"),
        ({"solver": LinearisedBCD(), "lifting": Conventional()}, r"Conventional.*got LinearisedBCD. Use SweepDescent"),
        ({"solver": LinearisedBCD(), "lifting": Contrastive()}, r"Contrastive.*got LinearisedBCD. Use SweepDescent"),
        ({"solver": SweepDescent(), "lifting": Bregman(2.0)}, "expected none, got Bregman. Leave the lifting out"),
        ({"solver": SweepDescent}, r"got the class SweepDescent. Try SweepDescent\(\)"),
        ({"solver": "adam"}, r"train solver: expected a solver.*got str"),
        ({"solver": lambda parameters: 3, "lifting": Conventional()}, "makes a torch optimiser, got int"),
        ({"solver": SweepDescent(GramRule()), "lifting": Contrastive()}, r"GramRule.*Use RelativeStep\(\)"),
        ({"loss": Absolute(), "lifting": Contrastive()}, "expected a smooth loss, got Absolute"),
    ],
)
def test_refusals(settings: dict[str, Any], words: str, data: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(TorchliftError, match=words):
        tl.train(network(), data, **settings)


def test_an_optimiser_that_exists_already(data: tuple[Tensor, Tensor]) -> None:
    model = network()
    with pytest.raises(TorchliftError, match=r"by its class or a partial, got Adam. Try torch.optim.Adam"):
        tl.train(model, data, lifting=Conventional(), solver=torch.optim.Adam(model.parameters()))  # type: ignore[arg-type]


def test_contrastive_gradients_are_those_of_the_difference_of_minima() -> None:
    """By finite differences of min [L + E] − min E, in double precision."""
    torch.manual_seed(1)
    model = tl.networks.MLP([3, 4, 4, 2], activation=tl.ReLU()).double()
    y, x = torch.rand(6, 3, dtype=torch.double), torch.rand(6, 2, dtype=torch.double)
    objective = Objective(model, Contrastive((0.7, 0.4)), SquaredError())

    def value() -> float:
        clamped = free_energy.minimise(objective.engine, y, objective.initialise(y), None, x)
        return float(objective.value(y, x, clamped))

    sweep = contrast(objective, y, x)
    for name, parameter in model.named_parameters():
        direction = torch.randn_like(parameter)
        slope = (sweep.gradients[name] * direction).sum()
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(direction, alpha=sign * 1e-5)
                values.append(value())
                parameter.sub_(direction, alpha=sign * 1e-5)
        assert (values[0] - values[1]) / 2e-5 == pytest.approx(float(slope), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("name", ["SGD", "Adam", "LBFGS", "solver"])
def test_parts_restore_a_method(name: str, data: tuple[Tensor, Tensor]) -> None:
    """Step, save, step; restore into a new method, step again: the same numbers."""
    batches = tl.data.as_batches(data, batch_size=20)
    factories = {
        "SGD": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        "Adam": torch.optim.Adam,
        "LBFGS": partial(torch.optim.LBFGS, max_iter=3, history_size=2),
    }

    def make(model: Any) -> Any:
        if name == "solver":
            problem = TrainingBatches(Objective(model), batches)
            return SolverMethod(SweepDescent(), problem, problem.start())
        return TorchMethod(TorchOptimiser(factories[name]), Objective(model, Conventional()), batches, lambda k: 1.0)

    model, other = network(), network()
    method = make(model)
    for _ in range(4):
        method.step()
    tensors, numbers = method.parts()
    saved = ({key: value.clone() for key, value in tensors.items()}, dict(numbers))
    again = make(other)
    again.restore(saved)
    assert again.count == 4
    losses = [(method.step(), again.step()) for _ in range(4)]
    assert all(one == two for one, two in losses)
    method.publish()
    again.publish()
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))


def test_an_optimiser_with_a_state_that_cannot_be_saved(data: tuple[Tensor, Tensor]) -> None:
    class Odd(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            self.state[self.param_groups[0]["params"][0]]["note"] = "text"
            return super().step(closure)

    setting, objective = TorchOptimiser(partial(Odd, lr=0.1)), Objective(network(), Conventional())
    method = TorchMethod(setting, objective, tl.data.as_batches(data), lambda k: 1.0)
    method.step()
    with pytest.raises(TorchliftError, match=r"checkpoint of Odd.*a str in 'optimiser.0.note'.*without a folder"):
        method.parts()


def test_centring_of_a_torch_optimiser_is_that_of_the_rules() -> None:
    """Adam of torch on centred gradients, against our Adam on them, both by back-propagation."""
    generator = torch.Generator().manual_seed(0)
    y, x = (torch.randn(60, n, generator=generator, dtype=torch.float64) + 1 for n in (5, 3))
    found = []
    solvers = (
        TorchOptimiser(partial(torch.optim.Adam, lr=1e-2), centring=True),
        SweepDescent(ScaledStep(1e-2, centring=True), average=0.0),
    )
    for solver in solvers:
        network = tl.networks.MLP([5, 8, 8, 3], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        tl.train(network, (y, x), lifting=Conventional(), solver=solver, batch_size=20, epochs=4, progress=False)
        found.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-8)
