"""Phases one after another in one call and one record."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import torchlift as tl
from torchlift import Phase
from torchlift.core.errors import TorchliftError
from torchlift.core.solution import Result
from torchlift.liftings import Bregman, Conventional
from torchlift.solvers import PDHG, LinearisedBCD
from torchlift.training import BackPropagation, SweepDescent, TrainOptions


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    y = torch.rand(60, 5, generator=torch.Generator().manual_seed(0))
    return y, torch.stack([y.sum(1), y[:, 0] * y[:, 1]], 1)


def network() -> tl.networks.MLP:
    return tl.networks.MLP([5, 8, 8, 2])


ADAM = partial(torch.optim.Adam, lr=1e-2)


def test_lifted_pre_training_then_fine_tuning(data: tuple[Tensor, Tensor]) -> None:
    phases = [Phase(Bregman(1.0), batch_size="full", steps=10), Phase(Conventional(), ADAM, epochs=5, name="tuning")]
    result = tl.train(network(), data, options=TrainOptions(phases=phases), batch_size=20, validation=data)
    assert result.steps == 10 + 5 * 3
    assert [row["step"] for row in result.history if row["kind"] == "train"] == [*range(1, 11), 13, 16, 19, 22, 25]
    lifted = "Bregman, LinearisedBCD"
    assert [row["phase"] for row in result.history if row["kind"] == "train"] == [lifted] * 10 + ["tuning"] * 5
    epochs = [row["epoch"] for row in result.history if row["kind"] == "train"]
    assert epochs == [*range(1, 11), 1, 2, 3, 4, 5]
    assert result.best["step"] == 25
    losses = result.history.column("loss", "validation")[1]
    assert losses[-1] < losses[9] < losses[0]


def test_phases_are_calls_one_after_another(data: tuple[Tensor, Tensor]) -> None:
    one, other = network(), network()
    other.load_state_dict(one.state_dict())
    phases = [Phase(steps=12), Phase(Conventional(), ADAM, steps=7)]
    tl.train(one, data, batch_size=20, options=TrainOptions(phases=phases))
    tl.train(other, data, batch_size=20, steps=12)
    tl.train(other, data, batch_size=20, lifting=Conventional(), solver=ADAM, steps=7)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_the_best_of_all_phases_is_returned(data: tuple[Tensor, Tensor]) -> None:
    bad = Phase(Conventional(), partial(torch.optim.SGD, lr=0.3, momentum=0.9), steps=3)
    trained = network()
    options = TrainOptions(phases=[Phase(epochs=10), bad], evaluate_every=1)
    result = tl.train(trained, data, batch_size=20, validation=data, options=options)
    _, losses = result.history.column("loss", "validation")
    assert result.best["value"] == min(losses)
    found = tl.training.evaluate(trained, [(*data, None)], tl.losses.SquaredError())["loss"]
    assert found == pytest.approx(min(losses), rel=1e-5)


@pytest.mark.parametrize(
    ("own", "default", "expected"),
    [
        ({}, {"epochs": 2}, 6),
        ({"epochs": 1}, {"epochs": 2}, 3),
        ({"steps": 4}, {"epochs": 2}, 4),
        ({"epochs": 1}, {"steps": 4}, 3),
        ({}, {"steps": 4}, 4),
        ({"batch_size": "full"}, {"epochs": 2}, 2),
    ],
)
def test_defaults_are_shared(own: Any, default: Any, expected: int, data: tuple[Tensor, Tensor]) -> None:
    result = tl.train(network(), data, options=TrainOptions(phases=[Phase(**own)]), **{"batch_size": 20, **default})
    assert result.steps == expected


def test_a_phase_that_converges_makes_way_for_the_next(data: tuple[Tensor, Tensor]) -> None:
    phases = [Phase(epochs=200, name="first"), Phase(Conventional(), ADAM, steps=4, name="second")]
    result = tl.train(network(), data, batch_size=20, options=TrainOptions(phases=phases, tolerance=0.3))
    assert result.history[-1]["phase"] == "second"
    assert result.steps < 200
    first = [row for row in result.history if row["phase"] == "first"]
    assert 2 <= len(first) < 200
    assert result.result in (Result.MAX_STEPS, Result.CONVERGED)


@pytest.mark.usefixtures("clock")
def test_time_limits_belong_to_phases(data: tuple[Tensor, Tensor]) -> None:
    phases = [Phase(time_limit=0.15, name="first"), Phase(time_limit=0.15, name="second")]
    result = tl.train(network(), data, options=TrainOptions(phases=phases))
    assert {row["phase"] for row in result.history} == {"first", "second"}
    assert 0.3 <= result.seconds < 0.5
    assert result.result is Result.TIME_LIMIT


def test_titles() -> None:
    assert Phase().title == "SweepDescent, RelativeStep"
    assert Phase(Bregman()).title == "Bregman, LinearisedBCD"
    assert Phase(Conventional(), torch.optim.Adam).title == "Conventional, BackPropagation, Adam"
    assert Phase(Conventional(), partial(torch.optim.SGD, lr=0.1)).title == "Conventional, BackPropagation, SGD"
    assert Phase(solver=SweepDescent(torch.optim.Adam)).title == "SweepDescent, Adam"
    assert Phase(name="mine").title == "mine"


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"lifting": Bregman(), "solver": torch.optim.Adam}, "torch optimiser: expected no lifted variables"),
        ({"solver": torch.optim.Adam(network().parameters())}, "Try torch.optim.Adam"),
        ({"solver": BackPropagation()}, r"lifting with BackPropagation: expected lifting=Conventional\(\), got none"),
        ({"solver": SweepDescent(), "lifting": Conventional()}, "lifting with SweepDescent: expected none, got Conv"),
        (
            {"solver": BackPropagation(), "lifting": Bregman()},
            r"expected lifting=Conventional\(\), got Bregman. Or use",
        ),
        ({"lifting": Conventional(), "solver": LinearisedBCD()}, "one without lifted variables"),
        ({"weights": "pass-trough"}, "Did you mean 'pass-through'"),
        ({"states": "foward"}, "Did you mean 'forward'"),
        ({"solver": PDHG()}, "for saddle problems"),
    ],
)
def test_a_wrong_second_phase_is_refused_before_the_first(
    second: dict[str, Any], words: str, data: tuple[Tensor, Tensor]
) -> None:
    trained = network()
    before = [parameter.detach().clone() for parameter in trained.parameters()]
    with pytest.raises(TorchliftError, match=words):
        tl.train(trained, data, options=TrainOptions(phases=[Phase(steps=3), Phase(**second)]))
    assert all(torch.equal(a, b) for a, b in zip(before, trained.parameters(), strict=True))


@pytest.mark.parametrize(
    ("phases", "words"),
    [([], "at least one Phase, got none"), ([3], "a sequence of Phase"), (Phase(), "a sequence of Phase")],
)
def test_no_phases(phases: Any, words: str, data: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(TorchliftError, match=words):
        tl.train(network(), data, options=TrainOptions(phases=phases))


@pytest.mark.parametrize("states", ["forward", "input", "warm"])
def test_lifted_variables_of_a_batch_move_every_layer(data: tuple[Tensor, Tensor], states: str) -> None:
    """A forward pass leaves no gaps, so that the first step of the parameters alone would only move the last layer."""
    trained = network()
    before = [parameter.detach().clone() for parameter in trained.parameters()]
    options = TrainOptions(states=states)
    tl.train(trained, data, lifting=Bregman(1.0), batch_size=20, options=options, weights="keep", epochs=4)
    after = [parameter.detach() for parameter in trained.parameters()]
    assert not any(torch.equal(a, b) for a, b in zip(after, before, strict=True))
