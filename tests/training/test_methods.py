"""The contract of training methods, which every implementation inherits, and loops of one's own."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import torchlift as tl
from torchlift.data import as_batches
from torchlift.functions.losses import SquaredError
from torchlift.liftings import Bregman, Contrastive, Lifting
from torchlift.solvers import BlockCoordinateDescent, ImplicitStochasticGradient, LinearisedBCD, ProximalAdam
from torchlift.training import (
    BackPropagation,
    ContrastiveDescent,
    LiftedDescent,
    SweepDescent,
    TrainMethod,
    TrainStep,
    Work,
)
from torchlift.training.gradient_step import LossWatch

Y, X = (torch.rand(60, size, generator=torch.Generator().manual_seed(size)) for size in (5, 3))


def chain() -> tl.networks.MLP:
    return tl.networks.MLP([5, 6, 6, 3], tl.SoftThreshold(0.05), generator=torch.Generator().manual_seed(0))


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)]
    return nn.Sequential(*layers)


METHODS: dict[str, tuple[TrainMethod, Lifting | None, Callable[[], nn.Module], bool]] = {
    "sweeps": (SweepDescent(), None, chain, False),
    "sweeps, any module": (SweepDescent(), None, convolutional, False),
    "sweeps, all samples": (SweepDescent(), None, chain, True),
    "sweeps, Adam": (SweepDescent(partial(torch.optim.Adam, lr=1e-2), "linear", True), None, chain, False),
    "back-propagation": (BackPropagation(), tl.liftings.Conventional(), convolutional, False),
    "back-propagation, SGD": (
        BackPropagation(partial(torch.optim.SGD, lr=0.1, momentum=0.9)), tl.liftings.Conventional(), chain, False,
    ),
    "back-propagation, L-BFGS": (
        BackPropagation(partial(torch.optim.LBFGS, max_iter=3)), tl.liftings.Conventional(), chain, True,
    ),
    "contrastive": (ContrastiveDescent(), Contrastive(1.0), chain, False),
    "lifted, batches": (LiftedDescent(LinearisedBCD()), Bregman(1.0), chain, False),
    "lifted, all samples": (LiftedDescent(LinearisedBCD(ProximalAdam(1e-2))), Bregman(1.0), chain, True),
    "exact descent": (LiftedDescent(BlockCoordinateDescent(inner_steps=5)), Bregman(1.0), chain, True),
    "implicit gradient": (
        LiftedDescent(ImplicitStochasticGradient(1.0, BlockCoordinateDescent(0.1, inner_steps=5))), Bregman(1.0),
        chain, False,
    ),
}  # fmt: skip


def begin(name: str) -> tuple[TrainStep, nn.Module]:
    method, lifting, build, full = METHODS[name]
    network = build()
    batches = as_batches((Y, X), batch_size=None if full else 20)
    work = Work(network, SquaredError(), batches, lambda count: 1 - count / 20, full=full, lifting=lifting)
    method.check(work)
    return method.init(work), network


def values(network: nn.Module) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in network.state_dict().values()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", METHODS)
class TestContract:
    def test_steps_are_counted_and_improve_the_loss(self, name: str) -> None:
        step, network = begin(name)
        tensors = [id(p) for p in network.parameters()]

        def loss() -> float:
            with step.evaluating(), torch.no_grad():
                return float(SquaredError().mean(network(Y), X))

        before = loss()
        for k in range(12):
            assert step.count == k
            value = step.step()
            assert math.isfinite(value) or math.isnan(value)
        assert loss() < before
        assert [id(p) for p in network.parameters()] == tensors  # the network itself, in place

    def test_goes_on_from_what_was_saved(self, name: str) -> None:
        step, network = begin(name)
        for _ in range(6):
            step.step()
        tensors, numbers = step.state_dict()
        tensors = {key: tensor.clone() for key, tensor in tensors.items()}
        again, twin = begin(name)
        again.load_state_dict((tensors, numbers))
        assert again.count == 6
        for each in (step, again):
            for _ in range(4):
                each.step()
            each.publish()
        assert same(values(network), values(twin))

    def test_evaluations_change_nothing(self, name: str) -> None:
        step, network = begin(name)
        watched, twin = begin(name)
        for _ in range(7):
            step.step()
            watched.step()
            with watched.evaluating():
                values(twin)
        step.publish()
        watched.publish()
        watched.publish()  # as often as one likes
        assert same(values(network), values(twin))

    def test_says_what_it_needs(self, name: str) -> None:
        method, lifting, _, _ = METHODS[name]
        assert method.title and "data" in method.needs.axes
        if method.needs.latents:
            with pytest.raises(tl.core.errors.TorchliftError, match="a network in the unified form, got Sequential"):
                tl.train(convolutional(), (Y, X), lifting=lifting, solver=method, steps=1, progress=False)


# -- one's own loop ---------------------------------------------------------------------------------------------------


def dense() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 3))


@pytest.mark.parametrize("build", [chain, convolutional, dense], ids=["chain", "module", "dense layers"])
def test_six_lines_of_a_loop_give_the_same_parameters(build: Callable[[], nn.Module]) -> None:
    loader, criterion, epochs = DataLoader(TensorDataset(Y, X), batch_size=20), SquaredError(), 9
    model = build()
    optimiser = tl.RelativeStep(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda k: 0.5 * (1 - math.cos(math.pi * (1 - k / 27))))
    for _ in range(epochs):
        for inputs, targets in loader:
            with tl.sweeping():
                loss = criterion.mean(model(inputs), targets)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            schedule.step()
    optimiser.swap_average()
    trained = tl.train(build(), loader, loss=criterion, epochs=epochs, weights="keep", progress=False).network
    assert same(values(model), values(trained))


def test_closed_forms_are_left_alone_where_somebody_listens() -> None:
    """A hook of one's own is called in every step."""
    model, calls = dense(), []
    handle = model[0].register_forward_hook(lambda *_: calls.append(1))  # type: ignore[index]
    plain = tl.train(dense(), (Y, X), batch_size=20, steps=6, weights="keep", progress=False).network
    heard = tl.train(model, (Y, X), batch_size=20, steps=6, weights="keep", progress=False).network
    handle.remove()
    assert len(calls) >= 6
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(plain.parameters(), heard.parameters(), strict=True))


def test_chains_are_left_alone_where_somebody_listens_or_goes_another_way() -> None:
    """A hook of the network, or a forward pass of its own; observers of its layers change nothing."""

    class Doubled(tl.networks.MLP):
        def forward(self, y: Tensor, context: Any = None) -> Tensor:
            return 2 * super().forward(y, context)

    def trained(model: nn.Module) -> list[Tensor]:
        tl.train(model, (Y, X), batch_size=20, steps=5, weights="keep", progress=False)
        return list(model.parameters())

    heard, doubled, calls = chain(), Doubled([5, 6, 3], generator=torch.Generator().manual_seed(0)), []
    heard.register_forward_hook(lambda *_: calls.append(1))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(trained(chain()), trained(heard), strict=True))
    assert len(calls) >= 5
    same_again = copy.deepcopy(doubled)
    same_again.register_forward_hook(lambda *_: None)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(trained(doubled), trained(same_again), strict=True))


def test_layers_that_share_weights() -> None:
    """Closed forms write each gradient in one place, so they leave shared ones to autograd."""
    torch.manual_seed(0)
    shared = nn.Linear(5, 5)
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.Tanh(), nn.Linear(5, 3))
    plain = copy.deepcopy(model)
    plain.register_forward_hook(lambda *_: None)  # so that nothing but the function mode serves
    for each in (model, plain):
        tl.train(each, (Y, X), batch_size=20, steps=5, weights="keep", progress=False)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


def test_first_steps_from_a_fitted_start_are_short() -> None:
    """By the part of the targets that is left over, and longer as √k."""
    model, rates = dense(), []
    with torch.no_grad():
        targets = model(Y) + 0.01 * torch.randn(len(Y), 3, generator=torch.Generator().manual_seed(0))
    work = Work(model, SquaredError(), as_batches((Y, targets), batch_size=len(Y)), lambda count: 1.0)
    step = SweepDescent().init(work)
    left_over = 0.01 / float((targets - targets.mean(0)).square().mean().sqrt())
    for _ in range(4):
        step.step()
        rates.append(step.optimiser.param_groups[0]["lr"])
    assert rates == pytest.approx([left_over * (k + 1) ** 0.5 for k in range(4)], rel=0.1)


@pytest.mark.parametrize("stages", [1, 2])
def test_steps_that_are_too_long_are_halved(stages: int) -> None:
    """Losses far above those of the start lead back to the average; a resumed run goes the same way.

    All stages of a pipeline turn back in the same step.
    """

    def begun() -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(*[part for _ in range(12) for part in (nn.Linear(5, 5), nn.ReLU())], nn.Linear(5, 3))
        work = Work(model, SquaredError(), as_batches((Y, X), batch_size=20), lambda count: 1.0)
        return SweepDescent(partial(tl.RelativeStep, lr=20.0), "constant", stages=stages).init(work)

    step, losses, retreats, saved = begun(), [], [], {}
    optimisers = [step.optimiser] if stages == 1 else [stage.update.optimiser for stage in step.stages]
    for k in range(160):
        tensors, numbers = step.state_dict()
        saved[k] = {name: tensor.clone() for name, tensor in tensors.items()}, numbers
        losses.append(step.step())
        retreats.append({optimiser.state["all parameters"]["retreats"] for optimiser in optimisers if optimiser.state})
    first_loss = losses[0] if stages == 1 else losses[stages]
    assert max(losses[-20:]) < first_loss < 3 * first_loss < max(losses[stages:])
    assert all(len(each) <= 1 for each in retreats) and max(retreats[-1]) > 0
    resumed, first = begun(), retreats.index({1})
    resumed.load_state_dict(saved[first - 3])  # while losses explode
    assert [resumed.step() for _ in range(20)] == losses[first - 3 :][:20]


class SignDescent(TrainMethod):
    """A method of one's own: steps along the signs of the gradient."""

    def init(self, work: Work) -> TrainStep:
        return _SignStep(work)


class _SignStep(TrainStep):
    def __init__(self, work: Work) -> None:
        self.work, self._count = work, 0

    @property
    def count(self) -> int:
        return self._count

    def step(self) -> float:
        y, x, _ = self.work.batches.batch(self._count)
        self.work.network.zero_grad()
        loss = F.mse_loss(self.work.network(y), x)
        loss.backward()
        with torch.no_grad():
            for p in self.work.network.parameters():
                p.sub_(0.01 * torch.sign(p.grad))
        self._count += 1
        return float(loss.detach())

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, int]]:  # type: ignore[override]
        return dict(self.work.network.state_dict()), {"count": self._count}

    def load_state_dict(self, parts: tuple[dict[str, Tensor], dict[str, int]]) -> None:  # type: ignore[override]
        self.work.network.load_state_dict(parts[0])
        self._count = parts[1]["count"]


def test_a_method_of_ones_own_is_one_class() -> None:
    result = tl.train(dense(), (Y, X), solver=SignDescent(), epochs=20, progress=False)
    assert result.history[-1]["loss"] < 0.5 * result.history[0]["loss"]
    assert "SignDescent" in result.history[0]["phase"]


def test_what_was_learned_and_lost_again_counts_as_exploded() -> None:
    """Although the loss is far below that of a constant answer, as in denoisers that hand their input on."""
    watch = LossWatch()
    watch.begin(15.0, 240.0)
    assert not any(watch.exploded(loss) for loss in (15.0, 8.0, 4.0, *[2.0] * 40, 30.0, *[2.0] * 20))  # one bad batch
    assert not watch.allows(30.0) and watch.allows(10.0)
    resumed = LossWatch()
    resumed.load_state_dict(watch.state_dict())
    assert resumed == watch
    assert any(watch.exploded(60.0) for _ in range(10))
    fitted = LossWatch()
    fitted.begin(2.3, 2.3)
    assert not any(fitted.exploded(loss) for loss in (*[1e-4] * 50, *[0.3] * 50))  # from almost nothing to little


def test_a_run_that_breaks_down_goes_on_from_where_it_was_good() -> None:
    """Not from the average of the steps in which it broke down, which is as bad as they are."""
    step, network = begin("sweeps, any module")
    losses = [step.step() for _ in range(210)]
    good = sum(losses[-10:]) / 10
    optimiser = step.optimiser  # type: ignore[attr-defined]
    while optimiser.state["all parameters"]["retreats"] == 0:
        with torch.no_grad():
            for parameter in network.parameters():  # little by little, so that the average follows
                parameter.mul_(1.02)
        losses.append(step.step())
    assert max(losses[210:]) > 2 * losses[0] and step.step() < 1.5 * good


def test_averages_are_kept_near_the_least_loss_only() -> None:
    watch = LossWatch()
    assert not watch.near_least
    watch.begin(15.0, 240.0)
    assert not any(watch.exploded(loss) for loss in (15.0, 8.0, *[2.0] * 40)) and watch.near_least
    assert not any(watch.exploded(5.0) for _ in range(20)) and not watch.near_least


def test_losses_count_from_the_first() -> None:
    watch = LossWatch()
    watch.begin(1.0, float("nan"))
    assert not any(watch.exploded(1.0) for _ in range(30)) and any(watch.exploded(50.0) for _ in range(9))


def share(samples: int, steps: int, *, fresh: bool = False, width: int = 100) -> float:
    """Of the limit that is left to steps on so many samples, in batches of 10."""
    network = nn.Sequential(nn.Linear(width, 10), nn.ReLU(), nn.Linear(10, 1))

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.rand(samples, width, generator=generator), torch.zeros(samples, 1)

    data = draw if fresh else draw(torch.Generator())
    batches = as_batches(data, batch_size=10, seed=0, like=network[0].weight, where="data")
    work = Work(network, SquaredError(), batches, lambda count: max(0.0, 1 - count / steps))
    return SweepDescent().init(work).optimiser.limit


def test_steps_on_few_samples_that_are_seen_often_are_held_back() -> None:
    assert share(800, 10**6) == 1.0  # eight for each input
    assert share(200, 10**6) == pytest.approx(0.5)
    assert share(200, 10**6, width=25) == 1.0
    assert share(20, 10**6) == pytest.approx(0.5 * 0.1**0.5)
    assert share(20, 80) == pytest.approx(0.5)  # 40 passes over them
    assert share(20, 40) == 1.0
    assert share(20, 10**6, fresh=True) == 1.0


def test_few_digits_are_not_learned_by_heart() -> None:
    digits, unseen = tl.data.load_digits("train"), tl.data.load_digits("test")

    def accuracy(seed: int, limit: float) -> float:
        torch.manual_seed(seed)
        few, hidden = slice(50 * seed, 50 * seed + 50), (nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU())
        model = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(200, 10))
        solver = partial(tl.RelativeStep, limit=limit)
        tl.train(model, (digits.images[few], digits.labels[few]), solver=solver, weights="keep", progress=False)
        return float((model(unseen.images).argmax(1) == unseen.labels).double().mean())

    gains = [accuracy(seed, 1.0) - accuracy(seed, 5.0) for seed in (2, 3)]  # a fifth of the limit is left here
    assert sum(gains) / len(gains) > 0.03
