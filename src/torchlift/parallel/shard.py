"""The samples of a batch that one process of a mesh holds, means over those of all, and batches that are divided."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from torchlift.core.shard import WHOLE, Shard
from torchlift.core.solution import Result, StepFailure
from torchlift.data import Batch, Batches
from torchlift.data.base import select_samples
from torchlift.parallel.mesh import Mesh, Sums


@dataclass(frozen=True, eq=False)
class MeshShard(Shard):
    """`counts[r]` samples of a batch are with the processes number r of the axis "data".

    A mean over the batch is the mean of the processes' own means, weighted by
    n_r/n. A process without samples works on a copy of one, with weight 0.
    """

    mesh: Mesh
    counts: tuple[int, ...]

    @property
    def whole(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.mesh.data == 1

    @property
    def counted(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.count > 0

    @property
    def count(self) -> int:
        return self.counts[self.mesh.data_rank]

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def rows(self) -> slice:
        """The samples here, counted in the batch; a process without samples stands in with the first one."""
        begin = sum(self.counts[: self.mesh.data_rank])
        return slice(begin, begin + self.count) if self.count else slice(0, 1)

    @property
    def weight(self) -> float:
        """n_r/n."""
        return self.count / self.total

    @property
    def scale(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """n_r/n for terms of single samples; never 0, so that a sample that only stands in stays finite."""
        return max(self.count, 1) / self.total

    def samples(self, batch: Tensor) -> int:
        return self.total

    def sum(self, numbers: Sequence[float]) -> list[float]:
        return self.mesh.sum_numbers([number if self.counted else 0.0 for number in numbers])

    def sum_(self, *tensors: Tensor) -> None:
        self.mesh.sum_all_(tensors, "data", float(self.counted))

    @contextmanager
    def summing(self) -> Iterator[Callable[..., None]]:
        sums = self.mesh.start_sums((), "data", float(self.counted))
        yield sums.add
        sums.wait()

    def mean_number(self, value: float) -> float:
        """The mean over all samples from the mean over the samples here."""
        return self.mesh.sum_numbers([value * self.weight if self.counted else 0.0], "data")[0]

    def mean_(self, *tensors: Tensor) -> None:
        self.start_means(*tensors).wait()

    def start_means(self, *tensors: Tensor) -> Sums:
        """Begin `mean_`; until `Sums.wait` has ended it, the tensors must be left alone."""
        return self.mesh.start_sums(tensors, "data", self.weight)

    def mean(self, tensor: Tensor, meanwhile: Callable[[], object] | None = None) -> Tensor:
        mean = tensor.clone()
        sums = self.start_means(mean)
        if meanwhile is not None:
            meanwhile()
        sums.wait()
        return mean

    def gather(self, tensor: Tensor, dim: int = 0) -> Tensor:
        if self.whole:
            return tensor
        local = tensor.narrow(dim, 0, self.count)
        shape = list(local.shape)
        shape[dim] = max(self.counts) - self.count
        padded = torch.cat([local, local.new_zeros(shape)], dim)
        pairs = zip(self.mesh.gather(padded, "data"), self.counts, strict=True)
        return torch.cat([part.narrow(dim, 0, count) for part, count in pairs], dim)

    def sharing(self, replicated: str = "") -> MeshSharing:
        return MeshSharing(self.mesh, replicated, self.counted)

    def which(self, condition: bool) -> str:
        return self.mesh.which(condition)


@dataclass(frozen=True, eq=False)
class MeshSharing:
    """Points whose entries are spread over a mesh: sums in which blocks that "data" has copies of count once.

    Arguments:
        mesh: the processes.
        replicated: the block of which every process along "data" has a copy.
        counted: False where this process stands in with a copy of another one's sample.
    """

    mesh: Mesh
    replicated: str = "parameters"
    counted: bool = True

    def totals(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The sums over all processes; where one is NaN, all fail here and name the rank it comes from."""
        local = [total if self._counts(name) else 0.0 for name, total in sums.items()]
        totals = dict(zip(sums, self.mesh.sum_numbers(local), strict=True))
        bad = [name for name, total in totals.items() if math.isnan(total)]
        if bad:
            where = self.mesh.which(any(math.isnan(sums[name]) for name in bad))
            raise StepFailure(Result.NOT_FINITE, f"block {bad[0]!r} is not finite on {where}")
        return totals

    def _counts(self, block: str) -> bool:
        return self.mesh.data_rank == 0 if block == self.replicated else self.counted


def split_evenly(total: int, processes: int) -> list[slice]:
    """Which samples each process takes: contiguous, and as equal as can be."""
    ends = [total * r // processes for r in range(processes + 1)]
    return [slice(a, b) for a, b in pairwise(ends)]


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
