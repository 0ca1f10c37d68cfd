"""A wrong argument is refused in our own words, at every public name; nonsense is never accepted.

`PYTHONPATH=src:tests python -m fuzz.walk 0` tries every wrong call, not only this sample.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import re

import pytest
import torch

import torchlift as tl
from fuzz.doors import ALL
from fuzz.walk import outcome, sample, wrong_calls
from torchlift.core.errors import DataError, InvalidTypeError, InvalidValueError

CALLS = 400


@pytest.mark.timeout(600)
def test_wrong_calls_are_refused() -> None:
    found = {str(wrong): words for wrong in sample(wrong_calls(ALL), CALLS) if (words := outcome(wrong))}
    assert found == {}


SAYS = {
    "flag": (
        lambda: tl.networks.MLP([3, 2], bias="no"),
        InvalidTypeError,
        "MLP bias: expected True or False, got 'no'.",
    ),
    "generator": (
        lambda: tl.networks.MLP([3, 2], generator=3),
        InvalidTypeError,
        "MLP generator: expected a torch.Generator or None, got 3.",
    ),
    "dtype": (
        lambda: tl.networks.MLP([3, 2], dtype=torch.int64),
        InvalidValueError,
        "MLP dtype: expected a floating-point dtype such as torch.float32 or None, got torch.int64.",
    ),
    "device": (
        lambda: tl.networks.MLP([3, 2], device="nonsense"),
        InvalidValueError,
        "MLP device: expected a device of this machine such as 'cpu', a string or None, got 'nonsense'.",
    ),
    "class": (
        lambda: tl.Objective(tl.networks.MLP([3, 2]), tl.liftings.Bregman),
        InvalidTypeError,
        "got the class Bregman. Try Bregman(…).",
    ),
    "abstract class": (
        lambda: tl.operators.Compose(tl.operators.LinearOperator),
        InvalidTypeError,
        "got the class LinearOperator.",
    ),
    "shape": (
        lambda: tl.operators.Dense(torch.ones(2, 3)).adjoint(torch.ones(4, 5)),
        InvalidValueError,
        "Dense.adjoint: expected arguments that fit together, got y a tensor (4, 5) of torch.float32. It ends in",
    ),
    "function": (
        lambda: tl.solvers.power_iteration(lambda: None, torch.ones(2)),
        InvalidTypeError,
        "power_iteration apply: expected a function of (torch.Tensor), got function. Its own arguments are ().",
    ),
    "an option that is none": (
        lambda: tl.train(torch.nn.Linear(2, 1), (torch.ones(4, 2), torch.ones(4, 1)), los=3),
        InvalidTypeError,
        "train: expected train(network, data, …), got train() got an unexpected keyword argument 'los'. "
        "Did you mean 'loss'?",
    ),
    "inputs and targets apart": (
        lambda: tl.train(torch.nn.Linear(2, 1), torch.ones(4, 2), torch.ones(4, 1)),
        InvalidTypeError,
        "train: expected train(network, data, …), got train() takes 2 positional arguments but 3 were given.",
    ),
    "loss of a step": (
        lambda: tl.losses.SquaredError().mean(torch.ones(2, 3), 1.5),
        InvalidTypeError,
        "SquaredError.mean target: expected a torch.Tensor, got 1.5.",
    ),
    "closure of a step": (
        lambda: tl.RelativeStep(torch.nn.Linear(2, 1)).step(lambda a: a),
        InvalidTypeError,
        "RelativeStep.step closure: expected",
    ),
    "column of labels": (
        lambda: tl.losses.CrossEntropy().check((4, 3), torch.ones(4, 1, dtype=torch.long)),
        InvalidValueError,
        "target: expected shape (4,), one label per sample, got (4, 1). Try targets[:, 0].",
    ),
    "column of targets": (
        lambda: tl.losses.SquaredError().check((4, 1), torch.ones(4)),
        InvalidValueError,
        "The target has the shape of the network's output. Try targets.reshape(-1, 1).",
    ),
    "folder": (
        lambda: tl.io.Checkpoints("/proc/nothing/here"),
        DataError,
        "/proc/nothing/here: expected to be able to write there, got no such file or folder.",
    ),
}


@pytest.mark.parametrize("case", SAYS)
def test_words(case: str) -> None:
    call, error, text = SAYS[case]
    with pytest.raises(error, match=re.escape(text)):
        call()


def test_errors_of_the_users_own_functions_pass() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        tl.solvers.power_iteration(broken, torch.ones(2))


def test_what_stands_in_for_a_class_of_ours_is_accepted() -> None:
    class Penalty:
        def value(self, x: torch.Tensor) -> torch.Tensor:
            return x.abs().flatten(1).sum(1)

        def prox(self, x: torch.Tensor, step: float = 1.0) -> torch.Tensor:
            return torch.nn.functional.softshrink(x, step)

    tl.solvers.CompositeProblem(lambda x: (x**2).sum(), None, Penalty())


def test_lists_and_arrays_are_sequences() -> None:
    import numpy as np

    assert tl.operators.Radon([1, 6, 6], np.linspace(0, 1, 3)).out_shape[0] == 1


def test_errors_of_a_users_closure_pass_through_a_step() -> None:
    def closure() -> torch.Tensor:
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine") as caught:
        tl.RelativeStep(torch.nn.Linear(2, 1)).step(closure)
    assert type(caught.value) is TypeError
