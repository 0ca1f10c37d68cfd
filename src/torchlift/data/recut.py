"""Batches of one size from batches of other sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from torchlift.data.base import Batch
from torchlift.data.tensors import parts
from torchlift.operators.context import Context


def recut(batches: Iterable[Batch], size: int) -> Iterator[Batch]:
    """The same samples in the same order, `size` at a time; the last part may be smaller."""
    waiting: list[Batch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(len(batch.y) for batch in waiting) < size:
            continue
        *full, last = parts(join(waiting), size)
        waiting = [last] if len(last.y) < size else []
        yield from full if waiting else (*full, last)
    if waiting:
        yield join(waiting)


def join(batches: list[Batch]) -> Batch:
    """The samples of several batches in one."""
    if len(batches) == 1:
        return batches[0]
    contexts = [batch.context for batch in batches]
    return Batch(torch.cat([batch.y for batch in batches]), torch.cat([batch.x for batch in batches]), _cat(contexts))


def _cat(contexts: list[Context]) -> Context:
    first = contexts[0]
    if first is None:
        return None
    if isinstance(first, Mapping):
        return {key: torch.cat([context[key] for context in contexts]) for key in first}  # type: ignore[index]
    return torch.cat([context for context in contexts if isinstance(context, Tensor)])
