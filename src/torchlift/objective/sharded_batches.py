"""Batches of which each process takes its part."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from torchlift.data import Batch, Batches
from torchlift.operators.context import map_context
from torchlift.parallel import Mesh, Share, shares


class ShardedBatches(Batches):
    """The batches of one process, divided among those along the axis "data".

    Every process draws the whole batch, in the order of a single process, and
    keeps its part: a contiguous one, as equal as can be. With `by_sample` a
    sample always goes to the same process instead, so that what is kept for it
    from epoch to epoch stays there; the parts then differ in size.

    `samples`, `batch_size` and `per_epoch` are those of all processes together.

    Args:
        batches: the data.
        mesh: the processes.
        by_sample: divide by the place of a sample in the data; needs tensors.
    """

    def __init__(self, batches: Batches, mesh: Mesh, *, by_sample: bool = False) -> None:
        self.batches, self.mesh, self.by_sample = batches, mesh, by_sample
        self.samples, self.batch_size, self.per_epoch = batches.samples, batches.batch_size, batches.per_epoch
        self._known: tuple[int, Batch, Share] | None = None

    def batch(self, count: int) -> Batch:
        return self.part(count)[0]

    def part(self, count: int) -> tuple[Batch, Share]:
        """This process's samples of a batch, and which part of it they are."""
        if self._known is None or self._known[0] != count:
            batch = self.batches.batch(count)
            rows, share = self._rows(count, len(batch.y))
            self._known = (count, _take(batch, rows), share)
        return self._known[1], self._known[2]

    def indices(self, count: int) -> Tensor | None:
        found = self.batches.indices(count)
        return None if found is None else found[self._rows(count, len(found))[0]]

    def ordered(self, size: int | None = None) -> Iterator[Batch]:
        """Every sample once, with one of the processes; parts without samples are left out."""
        for batch in self.batches.ordered(size):
            own = shares(len(batch.y), self.mesh.data)[self.mesh.data_rank]
            if own.stop > own.start:
                yield _take(batch, own)

    def example(self) -> Batch:
        return self.batches.example()

    def _rows(self, count: int, total: int) -> tuple[slice | Tensor, Share]:
        if not self.by_sample:
            parts = shares(total, self.mesh.data)
            share = Share(self.mesh, tuple(part.stop - part.start for part in parts))
            return parts[self.mesh.data_rank] if share.count else slice(0, 1), share
        places = self.batches.indices(count)
        assert places is not None  # `lasting_indices` has refused others
        ends = [part.stop for part in shares(self.samples, self.mesh.data)[:-1]]
        owners = torch.bucketize(places, torch.tensor(ends, dtype=places.dtype, device=places.device), right=True)
        counts = torch.bincount(owners, minlength=self.mesh.data).tolist()
        share = Share(self.mesh, tuple(counts))
        return (owners == self.mesh.data_rank).nonzero().squeeze(1) if share.count else slice(0, 1), share


def _take(batch: Batch, rows: slice | Tensor) -> Batch:
    return Batch(batch.y[rows], batch.x[rows], map_context(batch.context, lambda tensor: tensor[rows]))
