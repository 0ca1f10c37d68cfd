"""Every wrong call of `tl.train` is refused with a sentence that says what, where and what to try."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

import torchlift as tl
from torchlift.core.errors import DataError, InvalidValueError, TorchliftError
from torchlift.functions.losses import CrossEntropy
from torchlift.functions.regularisers import Ridge
from torchlift.liftings import Bregman, Contrastive
from torchlift.solvers import LinearisedBCD
from torchlift.training import SweepDescent
from torchlift.training.modules import CheckedBatches
from training.runs import called

Y, X = torch.rand(40, 6), torch.rand(40, 3)
LABELS = torch.arange(40) % 3


def network() -> tl.networks.MLP:
    return tl.networks.MLP([6, 5, 3])


def changed(tensor: Tensor, sample: int, value: float) -> Tensor:
    other = tensor.clone()
    other[sample, ...] = value
    return other


def loader(y: Tensor, x: Tensor, **settings: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(y, x), **{"batch_size": 10, **settings})


class Shrinking(Sampler[int]):
    """Says that there are forty samples, and has fewer in the second epoch."""

    epochs = 0

    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Iterator[int]:
        self.epochs += 1
        return iter(range(40 if self.epochs <= 2 else 20))


DATA = {
    "inputs of another width": (
        (torch.rand(40, 7), X), r"train data: inputs: expected shape \(batch, 6\), got \(40, 7\)",
    ),
    "targets of another width": ((Y, torch.rand(40, 4)), r"train data: target: expected shape \(40, 3\)"),
    "images for vectors": ((torch.rand(40, 1, 2, 3), X), r"train data: inputs: expected shape \(batch, 6\)"),
    "fewer targets": ((Y, X[:39]), "data targets: expected 40 samples, as many as the inputs, got 39"),
    "no samples": ((Y[:0], X[:0]), "data: expected at least one sample"),
    "one tensor": (Y, "expected .*DataLoader"),
    "one part": ((Y,), "expected a pair"),
    "a number": (3, "expected .*DataLoader"),
    "double precision": ((Y.double(), X), r"data inputs: expected dtype torch.float32"),
    "whole numbers": ((LABELS[:, None].expand(40, 6), X), "floating-point"),
    "NaN in y": ((changed(Y, 17, float("nan")), X), "data inputs: expected finite values, got nan at sample 17"),
    "infinity in x": ((Y, changed(X, 5, float("inf"))), "data targets: expected finite values, got inf at sample 5"),
    "a label too large": ((Y, changed(LABELS, 23, 3)), "train data.*labels from 0 to 2, got 3 at sample 23"),
    "a negative label": ((Y, changed(LABELS, 4, -1)), "got -1 at sample 4"),
    "NaN in a loader": (loader(changed(Y, 25, float("nan")), X), "data .*batch . inputs: .*got nan at sample "),
    "a label in a loader": (loader(Y, changed(LABELS, 25, 9)), "train data .*batch .: target: .*got 9 at sample "),
    "a label in a draw": (lambda g: (Y, changed(LABELS, 25, 9)), "train data .*batch .: target: .*got 9 at sample "),
    "an empty loader": (loader(Y[:5], X[:5], drop_last=True), "at least one batch, got an empty loader"),
    "a loader that shrinks": (loader(Y, X, sampler=Shrinking()), "data epoch 1: expected 4 batches, got 2"),
    "a loader of single samples": (loader(Y, X, batch_size=None), "a loader that makes batches"),
}  # fmt: skip


@pytest.mark.parametrize("case", DATA)
def test_data(case: str) -> None:
    data, words = DATA[case]
    with pytest.raises(TorchliftError, match=words):
        tl.train(network(), data, epochs=3, batch_size=None if isinstance(data, DataLoader) else 10)


def test_batches_are_refused_by_their_number() -> None:
    data = tl.data.as_batches(loader(Y, changed(LABELS, 25, 9)))
    checked = CheckedBatches(data, network(), CrossEntropy(), "train data")
    assert torch.equal(checked.batch(5).x, LABELS[10:20])
    with pytest.raises(TorchliftError, match=r"train data epoch 1 batch 2: target: .* got 9 at sample 5"):
        checked.batch(6)
    with pytest.raises(TorchliftError, match=r"train data in order, batch 1: target: .* got 9 at sample 5"):
        list(checked.ordered(20))
    narrow = CheckedBatches(tl.data.as_batches(loader(Y[:, :4], LABELS)), network(), CrossEntropy(), "train data")
    with pytest.raises(TorchliftError, match=r"train data epoch 0 batch 1: inputs: expected shape \(batch, 6\)"):
        narrow.batch(1)


@pytest.mark.parametrize("case", ["inputs of another width", "targets of another width", "NaN in y", "no samples"])
def test_validation(case: str) -> None:
    data, words = DATA[case]
    with pytest.raises(TorchliftError, match=words.replace("data", "validation")):
        tl.train(network(), (Y, X), validation=data)


@pytest.mark.parametrize("case", ["a label too large", "a label in a loader"])
def test_validation_labels(case: str) -> None:
    trained = network()
    before = [parameter.detach().clone() for parameter in trained.parameters()]
    with pytest.raises(TorchliftError, match=r"train validation.*expected labels from 0 to 2"):
        tl.train(trained, (Y, LABELS), validation=DATA[case][0], epochs=1)
    if case == "a label too large":
        assert all(torch.equal(a, b) for a, b in zip(before, trained.parameters(), strict=True))


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "no steps": ({"steps": 0}, "train steps: expected a whole number >= 1, got 0"),
    "no epochs": ({"epochs": 0}, "train epochs: expected a whole number >= 1, got 0"),
    "half an epoch": ({"epochs": 0.5}, "train epochs: expected a whole number, got float"),
    "steps and epochs": ({"steps": 1, "epochs": 1}, "expected epochs or steps, got both"),
    "no time": ({"time_limit": 0}, "train time_limit: expected a number > 0"),
    "no samples in a batch": ({"batch_size": 0}, "train batch_size: expected a whole number >= 1, got 0"),
    "a word for a batch": ({"batch_size": "all"}, "train batch_size: expected a whole number or 'full', got 'all'"),
    "weights": ({"weights": "passthrough"}, "train weights.*Did you mean 'pass-through'"),
    "states": ({"states": "inputs"}, "train states.*Did you mean 'input'"),
    "metric": ({"metrics": "pnsr"}, "metrics.*Did you mean 'psnr'"),
    "metrics": ({"metrics": 3}, "metrics: expected a sequence"),
    "metric of another shape": ({"metrics": [lambda p, x: p.mean()]}, "named function"),
    "accuracy of images": ({"metrics": "accuracy"}, "integer labels"),
    "solver": ({"solver": 3}, "train solver: expected a solver.*got int"),
    "lifting": ({"lifting": "bregman"}, r"train lifting: expected a lifting such as Bregman\(\), got str"),
    "lifting class": ({"lifting": Bregman}, "train lifting"),
    "loss": ({"loss": nn.MSELoss}, r"train loss: expected a loss such as SquaredError\(\).*the class MSELoss"),
    "loss of labels": ({"loss": CrossEntropy()}, "train data: target: expected integer labels, got torch.float32"),
    "seed": ({"seed": -1}, "train seed: expected a whole number >= 0"),
    "patience": ({"patience": 3}, "train patience: expected validation data to watch, got none"),
    "no patience": ({"patience": 0}, "train patience: expected a whole number >= 1"),
    "tolerance": ({"tolerance": -1.0}, "train tolerance: expected a number >= 0"),
    "evaluate_every": ({"evaluate_every": 0}, "train evaluate_every: expected a whole number >= 1"),
    "checkpoint_every": ({"checkpoint_every": -1}, "train checkpoint_every: expected a number >= 0"),
    "keep": ({"keep": 0, "folder": "unused"}, "keep: expected a whole number >= 1"),
    "tensorboard": ({"tensorboard": True}, "train tensorboard: expected a folder, got none"),
    "resume": ({"resume": True}, "train resume: expected a folder, got none"),
    "states of sweeps": ({"states": "random", "solver": SweepDescent()}, "train states='random'"),
    "states of contrast": ({"states": "random", "lifting": Contrastive()}, "train states='random'"),
    "state_dtype of contrast": ({"state_dtype": torch.bfloat16, "lifting": Contrastive()}, "train state_dtype"),
    "coupling of contrast": ({"coupling": 1.0, "lifting": Contrastive()}, "train coupling"),
    "regularisers of contrast": (
        {"parameter_regularisers": {"*": Ridge(1.0)}, "lifting": Contrastive()}, "train parameter_regularisers",
    ),
    "coupling": ({"coupling": 0.0, "lifting": Bregman()}, "train coupling: expected a number > 0"),
    "regularisers": (
        {"parameter_regularisers": Ridge(1.0), "lifting": Bregman()},
        "train parameter_regularisers: expected patterns of names with regularisers, got Ridge",
    ),
    "regularisers of nothing": (
        {"parameter_regularisers": {"*wieght": Ridge(1.0)}, "lifting": Bregman()}, "wieght",
    ),
    "options": ({"options": {"patience": 3}}, r"train options: expected TrainOptions\(...\), got dict"),
    "a callback without arguments": ({"callback": lambda: None}, "train callback: expected a function of one row"),
    "a callback of two": ({"callback": lambda row, other: None}, "train callback: .*missing.*'other'.*one dictionary"),
    "a callback that is none": ({"callback": "print"}, "train callback: expected a function of one row.*got str"),
}  # fmt: skip


@pytest.mark.parametrize("case", SETTINGS)
def test_settings(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings, words = SETTINGS[case]
    trained = network()
    before = [parameter.detach().clone() for parameter in trained.parameters()]
    with pytest.raises(TorchliftError, match=words):
        tl.train(trained, (Y, X), **called(settings))
    assert all(torch.equal(a, b) for a, b in zip(before, trained.parameters(), strict=True))


def test_networks() -> None:
    with pytest.raises(TorchliftError, match=r"train network: expected an nn.Module, got function"):
        tl.train(network, (Y, X))  # type: ignore[arg-type]
    with pytest.raises(TorchliftError, match=r"expected an nn.Module, got the class Linear. Try Linear\("):
        tl.train(nn.Linear, (Y, X))  # type: ignore[arg-type]
    with pytest.raises(TorchliftError, match="train network: expected parameters to train"):
        tl.train(network().requires_grad_(False), (Y, X))


@pytest.mark.parametrize("settings", [{"lifting": Bregman()}, {"solver": LinearisedBCD()}, {"lifting": Contrastive()}])
def test_lifted_variables_of_a_module_that_is_no_network(settings: dict[str, Any]) -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    words = r"train \w+.*: expected a network in the unified form, got Sequential. Lift it: train\(tl.lift"
    with pytest.raises(TorchliftError, match=words):
        tl.train(module, (Y, X), **settings)


def test_weights_of_an_unrolled_network() -> None:
    unrolled = tl.networks.LISTA(tl.operators.Dense(torch.randn(6, 4)), torch.eye(4), 2)
    with pytest.raises(TorchliftError, match=r"train weights='he': expected a chain: .*, got LISTA"):
        tl.train(unrolled, (Y, torch.rand(40, 4)), weights="he")


def test_batch_size_of_a_loader() -> None:
    with pytest.raises(TorchliftError, match=r"train batch_size: expected 10, that of the DataLoader, got 7"):
        tl.train(network(), loader(Y, X), batch_size=7)
    assert tl.train(network(), loader(Y, X), batch_size=10, epochs=1).steps == 4


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    trained = network()
    with pytest.raises(DataError, match="expected to be able to write there"):
        tl.train(trained, (Y, X), folder=tmp_path / "file" / "run")


def test_a_callback_that_fails_is_heard() -> None:
    def callback(row: Any) -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        tl.train(network(), (Y, X), callback=callback, epochs=2)


def test_half_precision_is_refused_where_squares_underflow() -> None:
    network = tl.networks.MLP([3, 4, 2])
    data = (torch.rand(20, 3), torch.rand(20, 2))
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(InvalidValueError, match=r"autocast on cpu.*bfloat16"),
    ):
        tl.train(network, data, lifting=Bregman(), steps=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # nothing is lost where no lifted variables are solved for
        losses = tl.train(network, data, steps=60).history["loss"]
    assert losses[-1] < 0.5 * losses[0]
    halves = tuple(each.half() for each in data)
    with pytest.raises(
        InvalidValueError, match=r"bfloat16, float32 or float64, got torch.float16. Try network.bfloat16"
    ):
        tl.train(network.half(), halves, steps=1)


def test_probabilities_as_outputs_get_a_warning() -> None:
    """The loss takes the softmax itself; log-probabilities are logits of themselves."""
    for last, warned in ((nn.Softmax(1), True), (nn.LogSoftmax(1), False), (nn.Sigmoid(), False)):
        module = nn.Sequential(nn.Linear(6, 3), last)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tl.train(module, (Y, LABELS), steps=1)
        assert [("got probabilities" in str(warning.message)) for warning in caught] == [True] * warned


def test_labels_that_are_not_whole_numbers_by_type() -> None:
    with pytest.raises(InvalidValueError, match=r"Labels are whole numbers: try targets\.long\(\)"):
        tl.train(network(), (Y, LABELS.float()), steps=1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_module_is_refused_by_name() -> None:
    with pytest.raises(TorchliftError, match=r"got RecursiveScriptModule.*script that afterwards"):
        tl.train(torch.jit.script(nn.Linear(6, 3)), (Y, X), steps=1)


def test_a_sample_that_is_left_over_by_batch_normalisation() -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    assert tl.train(module, (Y[:31], X[:31]), batch_size=10, epochs=2).steps == 6


class Own(nn.Module):
    """A layer with a forward pass of one's own."""

    def __init__(self, forward: Callable[[Own, Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.own = nn.Linear(6, 3), forward

    def forward(self, y: Tensor) -> Any:
        return self.own(self, y)


def _without_gradient(module: Own, y: Tensor) -> Tensor:
    with torch.no_grad():
        return module.layer(y)


def _pair_in_training(module: Own, y: Tensor) -> Any:
    return (module.layer(y), y) if module.training else module.layer(y)


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (_without_gradient, r"train network: expected outputs that depend on its parameters.*torch.no_grad"),
        (_pair_in_training, r"train network: expected a module that returns one tensor, got a tuple. In training mode"),
    ],
)
def test_what_a_module_returns_in_a_step(forward: Callable[[Own, Tensor], Any], words: str) -> None:
    with pytest.raises(InvalidValueError, match=words):
        tl.train(Own(forward), (Y, LABELS), steps=2)


def test_parameters_that_no_step_can_start_from() -> None:
    spoilt = nn.Linear(6, 3)
    spoilt.weight.data[0, 0] = float("nan")
    with pytest.raises(InvalidValueError, match=r"train network 'weight': expected finite numbers.*Did an earlier"):
        tl.train(spoilt, (Y, X), steps=2)
    with pytest.raises(InvalidValueError, match=r"train network 'weight': .* got one on the device meta.*to_empty"):
        tl.train(nn.Linear(6, 3, device="meta"), (Y, X), steps=2)


class Filter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.response = nn.Parameter(torch.ones(4, dtype=torch.cfloat))

    def forward(self, y: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(y) * self.response, n=6)


def test_complex_parameters_need_another_optimiser() -> None:
    with pytest.raises(InvalidValueError, match=r"train network 'response': expected real numbers.*torch.optim.Adam"):
        tl.train(Filter(), (Y, Y.roll(1, 1)), steps=2)
    result = tl.train(Filter(), (Y, Y.roll(1, 1)), steps=300, solver=partial(torch.optim.Adam, lr=0.03))
    assert result.history["loss"][-1] < 0.1 * result.history["loss"][0]


def test_several_inputs_are_told_how() -> None:
    with pytest.raises(TorchliftError, match=r"data inputs: .*got tuple. Data of a module with two inputs are \(first"):
        tl.train(nn.Bilinear(6, 6, 3), ((Y, Y), X), steps=2)
    with pytest.raises(TorchliftError, match=r"data of three parts are \(inputs, targets, context\)"):
        tl.train(nn.Bilinear(6, 6, 3), (Y, Y, X), steps=2)
    assert tl.train(nn.Bilinear(6, 6, 3), (Y, X, Y), steps=2).steps == 2


@pytest.mark.parametrize("shape", [(40,), (40, 4)])
def test_labels_in_later_batches_of_a_plain_module(shape: tuple[int, ...]) -> None:
    labels = torch.zeros(shape, dtype=torch.int64)
    labels[25] = 3
    module: nn.Module = nn.Linear(6, 3) if len(shape) == 1 else nn.Unflatten(1, (3, 4))
    module = module if len(shape) == 1 else nn.Sequential(nn.Linear(6, 12), module)
    with pytest.raises(TorchliftError, match=r"train data epoch 0 batch 2: target: expected labels from 0 to 2.*got 3"):
        tl.train(module, loader(Y, labels), steps=8)
    with pytest.raises(TorchliftError, match=r"train data: target: expected labels from 0 to 2.* got 3 at sample 25"):
        tl.train(module, (Y, labels), steps=8)


@pytest.mark.parametrize(
    ("last", "targets", "words"),
    [
        (nn.Tanh(), 5 * (X - 0.5), r"targets from -1 to 1, which are all that the Tanh .*, got \d+ % of them outside"),
        (nn.ReLU(), X - 0.5, r"targets from 0 to inf.* the ReLU at the end.*Scale the targets, or leave the ReLU away"),
        (nn.Sigmoid(), X, None),
        (nn.Sigmoid(), X + 0.02 * torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), None),
        (nn.Linear(3, 3), 5 * X, None),
    ],
)
def test_targets_that_the_last_activation_does_not_return(last: nn.Module, targets: Tensor, words: str | None) -> None:
    module = nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 3), last)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tl.train(module, (Y, targets), steps=1)
    assert len(caught) == (0 if words is None else 1)
    if words is not None:
        assert re.search(words, str(caught[0].message)) and caught[0].filename == __file__


def test_nothing_learned_is_said() -> None:
    """Inputs that tell nothing about the targets, and outputs that cannot take their values."""
    with pytest.warns(UserWarning, match="the same for every sample"):
        blind = tl.train(nn.Linear(6, 3), (torch.zeros(40, 6), X), steps=100)
    assert "A constant answer is nearly as good on the training data (loss" in blind.message
    assert "constant answer" not in tl.train(nn.Linear(6, 3), (Y, Y[:, :3]), steps=100).message
