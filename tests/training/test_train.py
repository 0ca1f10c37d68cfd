"""`tl.train` on the bundled digits: every kind of data and task, every lifting, every way to stop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d
from torch.utils.data import DataLoader, Dataset, TensorDataset

import torchlift as tl
from torchlift.core.solution import Result, SolverError
from torchlift.liftings import MACQP, Bregman, Classical, Contrastive, Conventional, Fenchel, Lifting
from torchlift.objective import Objective
from torchlift.training import Metric, Training, TrainOptions, evaluate

LIFTINGS = (None, Conventional(), MACQP(1.0), Classical(1.0), Fenchel(1.0), Bregman(1.0))


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    """Images of 7 × 7 pixels, and labels."""
    images, labels = tl.data.load_digits("train")
    return avg_pool2d(images[:300], 4), labels[:300]


@pytest.fixture
def labelled(digits: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return digits[0].flatten(1), digits[1]


@pytest.fixture
def noisy(digits: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    clean = digits[0].flatten(1)
    return clean + 0.1 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(1)), clean


def classifier() -> tl.networks.MLP:
    return tl.networks.MLP([49, 20, 20, 10])


def denoiser() -> tl.networks.MLP:
    return tl.networks.MLP([49, 49, 49], activation=tl.SoftThreshold(0.05))


def parameters(network: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in network.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def halved(result: Training, factor: float = 2.0) -> None:
    losses = result.history["loss"]
    assert losses[-1] < losses[0] / factor


class Pairs(Dataset[Any]):
    """A data set of another kind than tensors."""

    def __init__(self, y: Tensor, x: Tensor) -> None:
        self.y, self.x = y, x

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.y[index], self.x[index]


# -- data and tasks ---------------------------------------------------------------------------------------------------


def as_loader(y: Tensor, x: Tensor) -> DataLoader[Any]:
    return DataLoader(TensorDataset(y, x), batch_size=30, shuffle=True)


def as_draw(y: Tensor, x: Tensor) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    return lambda generator: (y + 0.01 * torch.randn(y.shape, generator=generator), x)


@pytest.mark.parametrize("kind", [lambda y, x: (y, x), TensorDataset, Pairs, as_loader, as_draw])
@pytest.mark.parametrize("size", [30, "full"])
def test_every_kind_of_data(kind: Any, size: Any, labelled: tuple[Tensor, Tensor]) -> None:
    data = kind(*labelled)
    network = classifier()
    before = float(Objective(network, Conventional(), tl.losses.CrossEntropy()).value(*labelled))
    result = tl.train(network, data, batch_size=size, steps=60, validation=data)
    assert result.steps == 60
    assert result.result is Result.MAX_STEPS
    assert result.best["metric"] == "accuracy"
    found = evaluate(network, [(*labelled, None)], tl.losses.CrossEntropy())
    assert found["loss"] < 0.75 * before


def test_a_full_batch_of_a_loader_is_all_of_it(labelled: tuple[Tensor, Tensor]) -> None:
    loader = DataLoader(TensorDataset(*labelled), batch_size=30)
    first, second = classifier(), classifier()
    second.load_state_dict(first.state_dict())
    tl.train(first, loader, batch_size="full", steps=5)
    tl.train(second, labelled, batch_size="full", steps=5)
    assert same(parameters(first), parameters(second))


def test_one_call_with_nothing_but_data() -> None:
    y = torch.rand(200, 4)
    result = tl.train(tl.networks.MLP([4, 8, 1]), (y, y.sum(1, keepdim=True)))
    assert result.steps == 1000
    assert result.history[-1]["loss"] < 0.01
    assert result.message.startswith("Trained 1000 steps in ")
    assert not result.failed
    assert result.raise_if_failed() is result
    assert "<table>" in result._repr_html_()


@pytest.mark.parametrize("size", [30, "full"])
@pytest.mark.parametrize("lifting", LIFTINGS, ids=lambda lifting: type(lifting).__name__)
def test_every_lifting_denoises(lifting: Lifting | None, size: Any, noisy: tuple[Tensor, Tensor]) -> None:
    network = denoiser()
    start = float(Objective(network, Conventional()).value(*noisy))
    options = TrainOptions(evaluate_every=5)
    result = tl.train(network, noisy, lifting=lifting, batch_size=size, steps=20, validation=noisy, options=options)
    assert result.best["value"] < 0.7 * start
    kinds = {row["kind"] for row in result.history} - {"start"}
    assert kinds == {"train", "validation"}
    lifted = size == "full" and lifting not in (None, Conventional())
    assert all((row["objective"] is not None) == (lifted and row["kind"] == "train") for row in result.history)


@pytest.mark.parametrize("lifting", [MACQP(1.0), Classical(1.0), Bregman(1.0)], ids=lambda each: type(each).__name__)
def test_liftings_classify(lifting: Lifting, labelled: tuple[Tensor, Tensor]) -> None:
    result = tl.train(classifier(), labelled, lifting=lifting, batch_size="full", steps=40, validation=labelled)
    assert result.best["value"] > 40


@pytest.mark.parametrize("size", [40, "full"])
def test_contrastive_lifting_learns(size: Any) -> None:
    y = torch.rand(80, 3, dtype=torch.double)
    network = tl.networks.MLP([3, 6, 1]).double()
    result = tl.train(network, (y, y.sum(1, keepdim=True)), lifting=Contrastive(1.0), steps=30, batch_size=size)
    assert result.result is Result.MAX_STEPS
    halved(result)


def test_image_shaped_network_and_sequential(digits: tuple[Tensor, Tensor]) -> None:
    images = digits[0][:100]
    noise = 0.1 * torch.randn(images.shape, generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1))
    given = parameters(model)
    chain = tl.lift(model, (1, 7, 7))
    chain.load(model)
    data, settings = (images + noise, images), {"epochs": 20, "batch_size": 20, "metrics": ["psnr", "mse"]}
    before = evaluate(model, [(*data, None)], tl.losses.SquaredError())["loss"]
    result = tl.train(model, data, **settings)
    assert result.history[-1]["loss"] < before / 2
    assert result.network is model  # trained in place, as it is
    assert not any(map(torch.equal, given, parameters(model)))
    lifted = tl.train(chain, data, **settings)
    assert lifted.history[-1]["loss"] < before / 2
    trained = chain.to_sequential()
    torch.testing.assert_close(trained(images), chain(images))


@pytest.mark.parametrize("lifting", [None, Bregman(1.0)])
def test_unrolled_network_with_masks(lifting: Lifting | None, digits: tuple[Tensor, Tensor]) -> None:
    task, images = tl.data.Inpainting(0.5), digits[0][:60]
    y, mask = task.degrade(images, torch.Generator().manual_seed(0))
    dictionary = tl.operators.Conv2d(torch.randn(1, 4, 3, 3) / 3, (4, 7, 7), padding=1)
    network = tl.networks.LISTA(task.operator((1, 7, 7)), dictionary, 2, threshold=0.01, context=mask)
    data = (y, images, mask)
    result = tl.train(network, data, lifting=lifting, epochs=4, batch_size=20, validation=data)
    assert result.best["metric"] == "psnr"
    losses = result.history.column("loss", "validation")[1]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("lifting", [None, Bregman(1.0)])
def test_frozen_parameters_stay(lifting: Lifting | None, noisy: tuple[Tensor, Tensor]) -> None:
    """Also where layers are dead, which are otherwise revived first."""
    network = tl.networks.MLP([49, 20, 20, 20, 49], activation=tl.SoftThreshold(2.0))
    frozen = next(network.parameters()).requires_grad_(False)
    kept = frozen.clone()
    result = tl.train(network, noisy, lifting=lifting, steps=60, batch_size=30)
    assert torch.equal(frozen, kept)
    losses = result.history["loss"]
    assert losses[-1] < losses[0]


# -- when to stop -----------------------------------------------------------------------------------------------------


def test_early_stopping_returns_the_best_parameters(labelled: tuple[Tensor, Tensor]) -> None:
    held_out = (labelled[0][200:], labelled[1][200:])
    network = classifier()
    result = tl.train(
        network, (labelled[0][:40], labelled[1][:40]), validation=held_out, batch_size=10, epochs=200, metrics="loss",
        lifting=Conventional(), solver=partial(torch.optim.SGD, lr=1.0), options=TrainOptions(patience=3),
    )  # fmt: skip
    assert result.converged
    assert "Nothing improved any more" in result.message
    steps, losses = result.history.column("loss", "validation")
    assert len(losses) == losses.index(min(losses)) + 1 + 3
    assert result.best == {"metric": "loss", "value": min(losses), "step": steps[losses.index(min(losses))], "unit": ""}
    now = evaluate(network, [(*held_out, None)], tl.losses.CrossEntropy())["loss"]
    assert now == pytest.approx(min(losses), rel=1e-6)
    assert losses[-1] > min(losses)


def test_the_first_metric_chooses(labelled: tuple[Tensor, Tensor]) -> None:
    def worst(output: Tensor, target: Tensor) -> Tensor:
        return -nn.functional.cross_entropy(output, target, reduction="none")

    train = partial(tl.train, data=labelled, validation=labelled, epochs=4, batch_size=30)
    assert train(classifier(), metrics=["loss", "accuracy"]).best["metric"] == "loss"
    assert train(classifier(), metrics=["accuracy", "loss"]).best["metric"] == "accuracy"
    assert train(classifier()).best["metric"] == "accuracy"
    result = train(classifier(), metrics=[worst, "accuracy"])
    assert result.best["step"] == 0  # the start is the worst
    assert set(result.history[-1]["metrics"]) == {"loss", "worst", "accuracy"}
    result = train(classifier(), metrics=[Metric("worst", worst, larger_is_better=True)])
    assert result.best["step"] > 10


def test_training_that_only_does_harm_gives_the_start_back(noisy: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    network = denoiser()
    start = parameters(network)
    before = evaluate(network, [(*noisy, None)], tl.losses.SquaredError())["loss"]
    uphill = partial(
        tl.train, network, noisy, validation=noisy, metrics="loss", lifting=Conventional(), epochs=3, batch_size=30,
        solver=partial(torch.optim.SGD, lr=1e-3, maximize=True), folder=tmp_path, progress=False,
    )  # fmt: skip
    for resume in (False, True):
        result = uphill(callback=None if resume else lambda row: row["step"] == 20, resume=resume)
        assert min(result.history.column("loss", "validation")[1]) > before
        assert result.best == {"metric": "loss", "value": pytest.approx(before), "step": 0, "unit": ""}
        assert same(parameters(network), start)
    assert result.steps == 30


@pytest.mark.parametrize("size", [30, "full"])
def test_tolerance_without_validation(size: Any, noisy: tuple[Tensor, Tensor]) -> None:
    lifting = Bregman(1.0) if size == "full" else None
    options = TrainOptions(tolerance=0.05)
    result = tl.train(denoiser(), noisy, lifting=lifting, batch_size=size, steps=3000, options=options)
    assert result.converged
    assert result.steps < 3000
    name = "objective" if size == "full" else "loss"
    before, last = result.history[name][-2:]
    assert abs(before - last) <= 0.05 * max(before, last)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("lifting", [None, Bregman(1.0), Contrastive(1.0)])
def test_time_limit(lifting: Lifting | None, noisy: tuple[Tensor, Tensor]) -> None:
    result = tl.train(denoiser(), noisy, lifting=lifting, time_limit=0.4)
    assert result.result is Result.TIME_LIMIT
    assert 0.4 <= result.seconds < 0.5
    assert result.history[-1]["step"] == result.steps


@pytest.mark.usefixtures("clock")
def test_a_time_limit_ends_a_step_that_is_under_way(tmp_path: Path) -> None:
    """One step of the contrastive scheme minimises over the lifted variables twice, here for many minutes."""
    network = tl.networks.ScCP((1, 14, 14), 3, features=8, size=3, generator=torch.Generator().manual_seed(0))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    images = tl.data.load_digits("train").images[:500, :, ::2, ::2]
    settings = {"lifting": Contrastive(0.1), "batch_size": "full", "weights": "keep", "folder": tmp_path / "run"}
    result = tl.train(network, (images, images), time_limit=0.5, **settings)
    assert result.steps == 0 and result.result is Result.TIME_LIMIT
    assert "within the next one" in result.message
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    again = tl.train(network, (images, images), time_limit=1.0, resume=True, **settings)
    assert again.steps == 0 and again.seconds >= result.seconds > 0.4


def test_callback_stops(noisy: tuple[Tensor, Tensor]) -> None:
    rows: list[dict[str, Any]] = []

    def callback(row: Any) -> bool:
        rows.append(row)
        return row["step"] >= 15

    options = TrainOptions(evaluate_every=5)
    result = tl.train(denoiser(), noisy, batch_size=30, epochs=50, options=options, callback=callback)
    assert result.result is Result.STOPPED
    assert [row["step"] for row in rows] == [5, 10, 15]
    assert result.steps == 15
    assert "callback" in result.message


def test_evaluations_do_not_change_the_run(noisy: tuple[Tensor, Tensor]) -> None:
    networks = denoiser(), denoiser()
    networks[1].load_state_dict(networks[0].state_dict())
    tl.train(networks[0], noisy, batch_size=30, steps=20)
    rarely = tl.train(networks[1], noisy, batch_size=30, steps=20, options=TrainOptions(evaluate_every=7))
    assert rarely.history.column("loss")[0] == [7, 14, 20]
    assert same(parameters(networks[0]), parameters(networks[1]))


# -- randomness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("states", ["forward", "random"])
def test_seeds(states: str, noisy: tuple[Tensor, Tensor]) -> None:
    network, found = denoiser(), []
    start = {name: value.clone() for name, value in network.state_dict().items()}
    lifting = None if states == "forward" else Bregman(1.0)
    for seed in (3, 3, 4):
        torch.manual_seed(len(found))  # what others draw does not matter
        network.load_state_dict(start)
        options = TrainOptions(states=states)
        tl.train(network, noisy, lifting=lifting, options=options, batch_size=30, steps=12, seed=seed)
        found.append(parameters(network))
    assert same(found[0], found[1])
    assert not same(found[0], found[2])


def test_the_random_state_of_others_is_left_alone(noisy: tuple[Tensor, Tensor]) -> None:
    network = denoiser()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    tl.train(network, noisy, lifting=Bregman(1.0), options=TrainOptions(states="random"), steps=3)
    assert torch.equal(torch.rand(3), expected)


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_validation", [True, False])
@pytest.mark.parametrize("size", [30, "full"])
@pytest.mark.parametrize("rate", [1e4, 1e38])
def test_divergence_is_a_result(rate: float, with_validation: bool, size: Any, noisy: tuple[Tensor, Tensor]) -> None:
    network = denoiser()
    result = tl.train(
        network, noisy, lifting=Conventional(), solver=partial(torch.optim.SGD, lr=rate), epochs=30, batch_size=size,
        validation=noisy if with_validation else None, metrics="loss",
    )  # fmt: skip
    assert result.failed
    assert result.result is Result.NOT_FINITE
    assert "step " in result.message
    assert all(bool(each.isfinite().all()) for each in parameters(network))
    assert bool(network(noisy[0]).isfinite().all())
    with pytest.raises(SolverError, match="NaN or infinite"):
        result.raise_if_failed()


def test_lifted_divergence_is_a_result(noisy: tuple[Tensor, Tensor]) -> None:
    network = denoiser()
    solver = tl.solvers.ProximalGradient(1e6)
    result = tl.train(network, noisy, lifting=MACQP(1.0), solver=solver, batch_size="full", steps=500)
    assert result.result is Result.NOT_FINITE
    assert all(bool(each.isfinite().all()) for each in parameters(network))


# -- output -----------------------------------------------------------------------------------------------------------


def test_nothing_is_printed_without_a_terminal(noisy: tuple[Tensor, Tensor], capfd: pytest.CaptureFixture[str]) -> None:
    tl.train(denoiser(), noisy, time_limit=1.3)  # longer than the bar waits
    assert capfd.readouterr() == ("", "")
