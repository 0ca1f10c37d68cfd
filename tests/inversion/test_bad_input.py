"""Bad input is refused at the door, with what to try instead."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import torchlift as tl
from torchlift.core.errors import InvalidTypeError, InvalidValueError, NotRepresentableError
from torchlift.functions.priors import TotalVariation
from torchlift.inversion import NestedAdam, Simultaneous, Sweep
from torchlift.networks import Network


def network() -> Network:
    torch.manual_seed(0)
    return tl.lift(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))


Y = torch.ones(3, 2)


def with_nan() -> torch.Tensor:
    y = Y.clone()
    y[1, 0] = math.nan
    return y


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "shape": ({"y": torch.ones(3, 5)}, r"invert y: expected shape \(batch, 2\), got \(3, 5\)"),
    "no batch axis": ({"y": torch.ones(2)}, r"invert y: expected shape \(batch, 2\).*x\[None\]"),
    "empty": ({"y": torch.ones(0, 2)}, r"invert y: expected at least one sample"),
    "nan": ({"y": with_nan()}, r"invert y: expected finite values, got nan at index \(1, 0\)"),
    "dtype": ({"y": Y.double()}, r"invert y: expected dtype torch.float32, got torch.float64"),
    "not a tensor": ({"y": [[1.0, 2.0]]}, r"invert y: expected a torch.Tensor, got list"),
    "prior type": ({"prior": tl.prox.ReLU()}, r"invert prior: expected a prior, got ReLU.*TotalVariation"),
    "prior shape": ({"prior": TotalVariation()}, r"TotalVariation: expected images of shape .*, got shape \(4,\)"),
    "negative weight": ({"weight": -0.1}, r"invert weight: expected a finite number >= 0, got -0.1"),
    "nan weight": ({"weight": math.nan}, r"invert weight: expected a finite number >= 0, got nan"),
    "weight type": ({"weight": [1.0]}, r"invert weight: expected a number >= 0, a tensor, a rule"),
    "weight shape": ({"weight": torch.ones(2)}, r"invert weight: expected a number or a tensor \(3,\), got \(2,\)"),
    "negative weights": ({"weight": torch.tensor([1.0, -1.0, 0.0])}, r"expected weights >= 0, got a least .* -1.0"),
    "unknown rule": ({"weight": "gcv"}, r"one of \['discrepancy', 'lcurve', 'sure'\], got 'gcv'"),
    "sure without noise": ({"weight": "sure"}, r"invert weight='sure': expected a noise_level, got none.*'lcurve'"),
    "discrepancy without noise": ({"weight": "discrepancy"}, r"weight='discrepancy': expected a noise_level"),
    "noise": ({"weight": "sure", "noise_level": 0.0}, r"invert noise_level: expected a number > 0, got 0.0"),
    "algorithm": ({"algorithm": "magic"}, r"one of \['auto', 'quasi-newton', .*\], or an instance, got 'magic'"),
    "algorithm type": ({"algorithm": tl.solvers.PDHG()}, r"invert algorithm: expected one of .*, got PDHG"),
    "anchor without start": ({"anchor": 1.0}, r"invert anchor: expected a start to be anchored at.*decoder"),
    "negative anchor": ({"anchor": -1.0}, r"invert anchor: expected a number >= 0, got -1.0"),
    "start shape": ({"start": torch.ones(3, 5)}, r"invert start: expected shape \(batch, 4\), got \(3, 5\)"),
    "start count": ({"start": torch.ones(2, 4)}, r"invert start: expected 3 inputs, one per output, got 2"),
    "start dtype": ({"start": torch.ones(3, 4).double()}, r"invert start: expected dtype torch.float32"),
    "start nan": ({"start": torch.full((3, 4), math.nan)}, r"invert start: expected finite values"),
    "mu count": ({"mu": (1.0, 1.0, 1.0)}, r"invert mu: expected one weight, or 2: one per layer, got 3.*affine"),
    "mu": ({"mu": 0.0}, r"invert mu: expected a number > 0, got 0.0"),
    "mu entry": ({"mu": (1.0, -1.0)}, r"invert mu\[1\]: expected a number > 0"),
    "max_steps": ({"max_steps": 0}, r"invert max_steps: expected a whole number >= 1"),
    "tolerance": ({"tolerance": -1.0}, r"Accelerated tolerance: expected a number >= 0, got -1.0"),
    "time_limit": ({"time_limit": 0.0}, r"invert time_limit: expected a number > 0"),
    "context": ({"context": torch.ones(2, 1)}, r"invert context: expected 3 samples, one per output, got 2"),
    "on_infeasible": ({"on_infeasible": "ignore"}, r"on_infeasible: expected 'refuse' or 'project', got 'ignore'"),
    "batch_limit": ({"batch_limit": 0}, r"invert batch_limit: expected a whole number >= 1"),
    "memory_limit": ({"memory_limit": -1.0}, r"invert memory_limit: expected a number > 0"),
}


@pytest.mark.parametrize("case", CASES)
def test_arguments(case: str) -> None:
    options, text = CASES[case]
    with pytest.raises((InvalidValueError, InvalidTypeError), match=text):
        tl.invert(network(), **{"y": Y, **options})


class OutOfOrder(nn.Module):
    """Its first call is not its first module."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.conv = nn.Linear(18, 2), nn.Conv2d(1, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dense(self.conv(x).flatten(1))


NETWORKS: dict[str, tuple[nn.Module, type[Exception], str]] = {
    "no module": (torch.relu, InvalidTypeError, r"expected an nn.Module or several, got builtin_function"),
    "batch norm in training mode": (
        nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)),
        InvalidValueError,
        r"1\.batch_norm: expected a per-sample context .*network\.context\(inputs\)",
    ),
    "not proximal": (
        nn.Sequential(nn.Linear(4, 2), nn.GELU()),
        NotRepresentableError,
        r"1\.gelu is neither linear nor",
    ),
    "unknown input shape": (
        nn.Sequential(nn.Conv2d(1, 2, 3)),
        InvalidValueError,
        r"which Conv2d does not tell, got none. Pass input_shape=\(1, height, width\)",
    ),
    "shape of sequences": (
        nn.Sequential(nn.Embedding(3, 4)),
        InvalidValueError,
        r"which Embedding does not tell, got none. Pass input_shape, or a first guess",
    ),
    "registered out of order": (
        OutOfOrder(),
        NotRepresentableError,
        r"taken to have the shape \(18,\): pass input_shape",
    ),
}


@pytest.mark.parametrize("case", NETWORKS)
def test_networks(case: str) -> None:
    module, error, text = NETWORKS[case]
    with pytest.raises(error, match=text):
        tl.invert(module, Y, algorithm="sweep")


def test_a_shape_that_was_given_is_not_asked_for() -> None:
    class Pair(nn.Linear):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
            return super().forward(x), x

    with pytest.raises(NotRepresentableError, match=r"Return one tensor.*pass input_shape if"):
        tl.invert(Pair(4, 2), Y)
    with pytest.raises(NotRepresentableError, match=r"Return one tensor\.$"):
        tl.invert(Pair(4, 2), Y, input_shape=4)
    with pytest.raises(InvalidTypeError, match=r"got function\. Call a function in the forward pass"):
        tl.invert(lambda x: x, Y)  # type: ignore[arg-type]


def test_one_image_without_a_batch_axis() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU())
    with pytest.raises(InvalidValueError, match=r"invert y: expected shape \(batch, 4, 7, 7\), got .*`y\[None\]`"):
        tl.invert(module, torch.rand(4, 7, 7))


def test_a_start_of_a_shape_that_the_module_does_not_take() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    with pytest.raises(NotRepresentableError, match=r"taken to have the shape \(7,\), that of a row of the start"):
        tl.invert(module, Y, start=torch.zeros(3, 7))


def test_a_plain_module_says_what_it_needs_and_takes_it() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.activation, self.first, self.last = nn.ReLU(), nn.Linear(4, 3), nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.activation(self.first(x)))

    plain, ordered = Plain(), OutOfOrder()
    assert tl.invert(plain, Y, max_steps=2).x.shape == (len(Y), 4)
    assert tl.invert([plain, plain], [Y, Y], max_steps=2).x.shape == (len(Y), 4)
    assert tl.invert(ordered, Y, input_shape=(1, 5, 5), max_steps=2).x.shape == (len(Y), 1, 5, 5)
    guess = torch.zeros(len(Y), 1, 5, 5)
    assert tl.invert(ordered, Y, start=guess, max_steps=2).x.shape == guess.shape
    assert tl.invert(ordered, Y, start=lambda y: guess, max_steps=2).x.shape == guess.shape
    with pytest.raises(InvalidValueError, match=r"input_shape: expected \(4,\), that of the network, got \(5,\)"):
        tl.invert(tl.lift(plain), Y, input_shape=5)


@pytest.mark.parametrize("kind", [Sweep, Simultaneous])
@pytest.mark.parametrize("scale", [2.0, 0.0])
def test_steps_that_cannot_converge(kind: type[Sweep | Simultaneous], scale: float) -> None:
    with pytest.raises(InvalidValueError, match=rf"{kind.__name__} scale: expected a number"):
        kind(scale=scale)


def test_other_settings() -> None:
    with pytest.raises(InvalidValueError, match=r"NestedAdam step_size: expected a number > 0"):
        NestedAdam(step_size=0.0)
    with pytest.raises(InvalidValueError, match=r"NestedAdam smoothing: expected a number > 0"):
        NestedAdam(smoothing=-1.0)
    with pytest.raises(InvalidValueError, match=r"Sweep patience: expected a whole number >= 1"):
        Sweep(patience=0)
    with pytest.raises(InvalidTypeError, match=r"Sweep: expected an InversionProblem.*torchlift.invert"):
        tl.solvers.solve(object(), Sweep(), torch.zeros(2))
