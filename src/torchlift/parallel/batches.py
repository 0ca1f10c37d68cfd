"""Batches of which each process takes its samples."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from torchlift.core.shard import WHOLE, Shard
from torchlift.data import Batch, Batches
from torchlift.data.base import select_samples
from torchlift.parallel.mesh import Mesh
from torchlift.parallel.shard import MeshShard, split_evenly


def shard_batches(batches: Batches, mesh: Mesh, *, by_sample: bool = False) -> Batches:
    """The batches as this process of a mesh sees them; a single process sees them as they are."""
    return batches if mesh.size == 1 else ShardedBatches(batches, mesh, by_sample=by_sample)


def shard_of(batches: Batches, count: int) -> Shard:
    """Which samples of a batch are here: all, unless a mesh divides them."""
    return batches.shard(count) if isinstance(batches, ShardedBatches) else WHOLE


class ShardedBatches(Batches):
    """The batches of one process, divided among those along the axis "data".

    Every process draws the whole batch, in the order of a single process, and
    keeps its samples: contiguous ones, as equal in number as can be. With
    `by_sample` a sample always goes to the same process instead, so that its
    cached lifted variables stay there; the numbers then differ.

    `samples`, `batch_size` and `per_epoch` are those of all processes together.

    Arguments:
        batches: the data.
        mesh: the processes.
        by_sample: divide by the place of a sample in the data; needs tensors.
    """

    def __init__(self, batches: Batches, mesh: Mesh, *, by_sample: bool = False) -> None:
        self.batches, self.mesh, self.by_sample = batches, mesh, by_sample
        self.samples, self.batch_size, self.per_epoch = batches.samples, batches.batch_size, batches.per_epoch
        self._last: tuple[int, Batch, MeshShard] | None = None

    def batch(self, count: int) -> Batch:
        return self._take(count)[0]

    def shard(self, count: int) -> MeshShard:
        """Which samples of a batch are here."""
        return self._take(count)[1]

    def indices(self, count: int) -> Tensor | None:
        indices = self.batches.indices(count)
        return None if indices is None else indices[self._rows(count, len(indices))[0]]

    def ordered(self, size: int | None = None) -> Iterator[Batch]:
        """Every sample once, with one of the processes; processes without samples leave a batch out."""
        for batch in self.batches.ordered(size):
            rows = split_evenly(len(batch.y), self.mesh.data)[self.mesh.data_rank]
            if rows.stop > rows.start:
                yield select_samples(batch, rows)

    def example(self) -> Batch:
        return self.batches.example()

    def _take(self, count: int) -> tuple[Batch, MeshShard]:
        if self._last is None or self._last[0] != count:
            batch = self.batches.batch(count)
            rows, shard = self._rows(count, len(batch.y))
            self._last = (count, select_samples(batch, rows), shard)
        return self._last[1:]

    def _rows(self, count: int, total: int) -> tuple[slice | Tensor, MeshShard]:
        if not self.by_sample:
            counts = tuple(rows.stop - rows.start for rows in split_evenly(total, self.mesh.data))
            shard = MeshShard(self.mesh, counts)
            return shard.rows, shard
        indices = self.batches.indices(count)
        assert indices is not None  # `lasting_indices` has refused others
        ends = [rows.stop for rows in split_evenly(self.samples, self.mesh.data)[:-1]]
        owners = torch.bucketize(indices, torch.tensor(ends, dtype=indices.dtype, device=indices.device), right=True)
        shard = MeshShard(self.mesh, tuple(torch.bincount(owners, minlength=self.mesh.data).tolist()))
        return (owners == self.mesh.data_rank).nonzero().squeeze(1) if shard.counted else slice(0, 1), shard
