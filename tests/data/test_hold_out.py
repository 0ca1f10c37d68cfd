"""A share of the samples is held out: no sample is on both sides, and always the same ones for a seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import torchlift as tl
from torchlift.core.errors import InvalidValueError
from torchlift.data import hold_out

Y = torch.arange(20.0)[:, None]
MASKS = 100 + torch.arange(20.0)


class Squares(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return Y[index], Y[index] ** 2


@pytest.mark.parametrize(
    "data", [(Y, Y**2), (Y.numpy(), Y.numpy() ** 2), TensorDataset(Y, Y**2), Squares()], ids=lambda d: type(d).__name__
)
def test_every_sample_is_on_one_side(data: object) -> None:
    parts = hold_out(data, 0.25, seed=3, like=Y)  # type: ignore[arg-type]
    inputs = []
    for part in parts:
        pairs: Any = part if isinstance(part, Dataset) else zip(*part[:2], strict=True)  # type: ignore[index]
        known = [(float(y), float(x)) for y, x in pairs]
        assert all(x == y**2 for y, x in known)
        inputs.append([y for y, _ in known])
    assert [len(each) for each in inputs] == [15, 5]
    assert sorted(inputs[0] + inputs[1]) == Y.flatten().tolist()
    again, other = (hold_out((Y, Y**2), 0.25, seed=seed, like=Y)[1] for seed in (3, 4))
    assert again[0].flatten().tolist() == inputs[1] != other[0].flatten().tolist()  # type: ignore[index]


def test_context_goes_with_its_samples() -> None:
    for part in hold_out((Y, Y, {"mask": MASKS}), 0.5):
        assert torch.equal(part[2]["mask"], 100 + part[0][:, 0])  # type: ignore[index]


@pytest.mark.parametrize(
    ("data", "share", "reason"),
    [
        ((Y, Y), 1.0, "validation: expected data, or a share of the training data between 0 and 1, got 1.0"),
        ((Y, Y), 0.0, "between 0 and 1"),
        ((Y, Y), float("nan"), "validation"),
        (DataLoader(Squares()), 0.5, "data of its own beside a DataLoader, got 0.5. Divide it before"),
        (lambda generator: (Y, Y), 0.5, "data of its own beside function"),
        ((Y[:1], Y[:1]), 0.5, "at least two samples"),
    ],
)
def test_what_cannot_be_divided_is_refused(data: object, share: float, reason: str) -> None:
    with pytest.raises(InvalidValueError, match=reason):
        hold_out(data, share)  # type: ignore[arg-type]


def test_training_with_a_share_is_training_with_its_parts(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(80, 3)).astype("float32")
    data = (x, x[:, :1] * x[:, 1:2])

    def trained(**settings: object) -> tuple[list[float], nn.Module]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
        settings = {"steps": 30, "seed": 2, **settings}
        result = tl.train(model, settings.pop("data", data), **settings)  # type: ignore[arg-type]
        return [row["metrics"]["loss"] for row in result.history if row["kind"] == "validation"], model

    share, model = trained(validation=0.2)
    train_part, held = hold_out(data, 0.2, seed=2, like=torch.zeros(1))
    parts, other = trained(data=train_part, validation=held)
    assert share == parts and len(share) > 0
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))
    trained(validation=0.2, folder=tmp_path)
    _, again = trained(validation=0.2, folder=tmp_path, resume=True)  # it knows its data again
    assert all(map(torch.equal, model.state_dict().values(), again.state_dict().values()))


def test_a_list_of_samples_is_divided_like_a_data_set() -> None:
    samples = [(torch.full((2,), float(i)), i) for i in range(10)]
    train, held = hold_out(samples, 0.3, seed=1)
    assert sorted(label for part in (train, held) for _, label in part) == list(range(10))  # type: ignore[union-attr]
    assert len(held) == 3  # type: ignore[arg-type]
