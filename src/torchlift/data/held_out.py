"""A share of the samples, held out for validation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from torchlift.core.checks import check_number, check_size
from torchlift.core.errors import invalid_value
from torchlift.data.convert import Data, unwrapped
from torchlift.data.loader import check_map_style
from torchlift.data.read import read_batch
from torchlift.data.streams import permutation
from torchlift.data.tensors import take


def hold_out(data: Data, share: float, *, seed: int = 0, like: Tensor | None = None) -> tuple[Data, Data]:
    """Samples to train with and samples to validate with, drawn at random: always the same ones for a seed.

    Arguments:
        data: (inputs, targets), (inputs, targets, context) or a map-style data set, or a list of samples.
        share: of the samples that is held out, between 0 and 1; at least one sample stays on either side.
        seed: of the choice.
        like: a parameter of the network, whose dtype arrays take.
    """
    if not 0 < check_number("validation", share) < 1:
        invalid_value("validation", "data, or a share of the training data between 0 and 1", share)
    data = unwrapped(data)
    batch = read_batch("data", data, like) if isinstance(data, (tuple, list)) else None
    if batch is None and (not isinstance(data, Dataset) or isinstance(data, IterableDataset)):
        kind = "a DataLoader" if isinstance(data, DataLoader) else type(data).__name__
        hint = "Divide it before, for example with torch.utils.data.random_split."
        invalid_value("validation", f"data of its own beside {kind}", share, hint)
    if batch is None:
        check_map_style("data", data)
    samples = len(data) if batch is None else len(batch.y)  # type: ignore[arg-type]
    if samples < 2:
        invalid_value("validation", "at least two samples to divide", samples)
    held = min(max(round(share * samples), 1), samples - 1)
    order = permutation(samples, torch.Generator().manual_seed(check_size("seed", seed, minimum=0)))
    parts = [part.sort().values for part in (order[held:], order[:held])]  # in their own order
    chosen: list[Any] = (
        [Subset(data, part.tolist()) for part in parts]  # type: ignore[arg-type]
        if batch is None
        else [take(batch, part.to(batch.y.device), 0, samples) for part in parts]
    )
    return chosen[0], chosen[1]
