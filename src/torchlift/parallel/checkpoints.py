"""Checkpoints to which every process of a mesh writes its part: tensors as slices of those of a single process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from torchlift.core.errors import DataError, invalid_value
from torchlift.io import Checkpoint, Checkpoints, LocalShard, ShardedTensor, Stored, write_index, write_shard
from torchlift.io.folders import hidden, writing
from torchlift.io.stored import everywhere
from torchlift.objective.stage import Stage
from torchlift.parallel.agreement import on_all
from torchlift.parallel.mesh import Mesh
from torchlift.parallel.partition import LayerStage
from torchlift.parallel.shard import MeshShard, split_evenly


def sharded_parameters(tensors: Sequence[Tensor], mesh: Mesh, stage: Stage) -> dict[str, ShardedTensor]:
    """ "parameters.0", …; processes along "data" have copies and take turns in writing them."""
    if isinstance(stage, LayerStage):
        rows = list(_stacked(tensors, stage))
    else:
        rows = [(i, tuple(t.shape), everywhere(t.shape), t) for i, t in enumerate(tensors)]
    shapes: dict[int, tuple[int, ...]] = {}
    local: dict[int, list[LocalShard]] = {}
    for turn, (number, shape, slices, tensor) in enumerate(rows):
        shapes[number] = shape
        local.setdefault(number, []).append(LocalShard(slices, tensor, turn % mesh.data == mesh.data_rank))
    return {f"parameters.{number}": ShardedTensor(shapes[number], tuple(shards)) for number, shards in local.items()}


def _stacked(tensors: Sequence[Tensor], stage: LayerStage) -> Iterator[tuple[int, tuple[int, ...], tuple, Tensor]]:
    """(number, whole shape, slices, slice) by runs of layers that are neighbours in a stack of both networks."""
    trainable = {name: p for name, p in stage.chain.named_parameters() if p.requires_grad}
    numbers = {name: i for i, name in enumerate(trainable)}
    places = {plain: (name, index) for plain, name, index, _ in stage.chain.slots()}
    slots = [(name, index, *places[stage.match[plain]]) for plain, name, index, _ in stage.network.slots()]
    for name, tensor in zip(stage.names, tensors, strict=True):
        rows = sorted((index, whole, place) for stack, index, whole, place in slots if stack == name)
        if not rows:  # a learned threshold, which is no part of a stack
            (plain,) = stage.network.scatter({name: tensor})
            (whole,) = (n for n, p in trainable.items() if stage.match[plain] in stage.chain.scatter({n: p.detach()}))
            yield numbers[whole], tuple(tensor.shape), everywhere(tensor.shape), tensor
        for (whole, shift), group in groupby(rows, key=lambda row: (row[1], row[2] - row[0])):
            indices = [index for index, _, _ in group]
            first, stop = indices[0], indices[-1] + 1
            shape = (len(trainable[whole]), *tensor.shape[1:])
            slices = ((first + shift, stop + shift), *everywhere(tensor.shape[1:]))
            yield numbers[whole], shape, slices, tensor[first:stop]


def sharded_latents(tensor: Tensor, shard: MeshShard, rows: tuple[int, int, int] | None = None) -> ShardedTensor:
    """This process's samples of lifted variables.

    Arguments:
        tensor: (samples, …), or (layers, samples, …) of neighbouring layers with `rows`.
        shard: which samples of the batch they are; a sample that only stands in is read but not written.
        rows: the first of these layers, the one after the last, and the number of layers, in the whole tensor.
    """
    samples = (shard.rows.start, shard.rows.stop)
    head, sizes = ((), ()) if rows is None else ((rows[:2],), (rows[2],))
    rest = tensor.shape[len(sizes) + 1 :]
    shape, slices = (*sizes, shard.total, *rest), (*head, samples, *everywhere(rest))
    return ShardedTensor(shape, (LocalShard(slices, tensor, shard.counted),))


def sharded_cache(tensors: Mapping[str, Tensor], mesh: Mesh) -> dict[str, ShardedTensor]:
    """What a `LatentCache` holds for the samples that belong to this process."""
    sharded = {}
    for name, tensor in tensors.items():
        along = 0 if tensor.ndim == 1 else 1  # samples, or layers and samples
        rows = split_evenly(tensor.shape[along], mesh.data)[mesh.data_rank]
        slices = list(everywhere(tensor.shape))
        slices[along] = (rows.start, rows.stop)
        local = LocalShard(tuple(slices), tensor.narrow(along, rows.start, rows.stop - rows.start))
        sharded[name] = ShardedTensor(tuple(tensor.shape), (local,))
    return sharded


def load_sharded(tensors: Mapping[str, Tensor | ShardedTensor], saved: Stored) -> None:
    """Overwrite the slices that this process holds by what was saved; no more than that is read."""
    for name, tensor in tensors.items():
        sharded = ShardedTensor.whole(tensor) if isinstance(tensor, Tensor) else tensor
        shape = saved.shape(name) if name in saved else None
        for shard in sharded.local:
            values = saved.part(name, shard.slices) if shape == sharded.shape else None
            if values is None or values.dtype != shard.tensor.dtype:
                hint = "Use the solver and the problem that the state was saved with."
                got = "none" if shape is None else f"shape {shape}" if values is None else values.dtype
                invalid_value(f"saved tensor {name!r}", f"{shard.tensor.dtype} of shape {sharded.shape}", got, hint)
            shard.tensor.copy_(values)


def open_checkpoints(folder: Path, mesh: Mesh, *, keep: int = 2) -> Checkpoints:
    """The checkpoints in a folder: of one process, or of the processes of a mesh."""
    return Checkpoints(folder, keep=keep) if mesh.size == 1 else ShardedCheckpoints(folder, mesh, keep=keep)


class ShardedCheckpoints(Checkpoints):
    """Checkpoints of which each process writes what it holds and reads what it needs (see `io/stored.py`).

    Arguments:
        folder: one that all processes see and may write to.
        mesh: the processes.
        keep: how many of the last checkpoints stay.
    """

    def __init__(self, folder: Path, mesh: Mesh, *, keep: int = 2) -> None:
        on_all(mesh, lambda: super(ShardedCheckpoints, self).__init__(folder, keep=keep))
        self.mesh = mesh

    def save(
        self, step: int, tensors: Mapping[str, Tensor | ShardedTensor], record: Mapping[str, Any], *, best: bool = False
    ) -> Path:
        """`Checkpoints.save`: complete when all have written their file and rank 0 has put the folder in place.

        Arguments:
            step: the same on all processes.
            tensors: in the same order everywhere. Of those that all processes hold, rank r writes the r-th, r+n-th, ….
            record: that of rank 0 counts.
            best: make this the best checkpoint.
        """
        mesh = self.mesh
        new, local = hidden(self.path(step), "new"), self._local(tensors)
        with ExitStack() as stack:  # leaves no half of it if anything fails

            def begin() -> None:
                if mesh.first:
                    stack.enter_context(self.saving(step, best=best))

            def write() -> dict[str, Any]:
                with writing(self.path(step)):
                    return write_shard(new, mesh.rank, mesh.size, local)

            def finish() -> None:
                if mesh.first:
                    write_index(new, shards, str(mesh), {"step": step, "record": record}, self.kind)
                    stack.close()

            on_all(mesh, begin)
            shards = on_all(mesh, write)
            on_all(mesh, finish)
        return self.path(step)

    def load(self, which: Literal["latest", "best"] | int = "latest") -> Checkpoint:
        """`Checkpoints.load`, whose tensors are read when they are asked for.

        Every file is verified by one process. What one refuses, all refuse.
        """
        skipped: list[str] = []
        names = on_all(self.mesh, lambda: [path.name for path in self.candidates(which)])[0]
        for path in (self.folder / name for name in names):
            checkpoint = self._verified(path)
            reasons = self.mesh.texts(checkpoint if isinstance(checkpoint, str) else "")
            if not any(reasons):
                assert not isinstance(checkpoint, str)  # no rank has refused it
                self.stand_at(checkpoint.step)
                return replace(checkpoint, skipped=tuple(skipped))
            alike = len(set(reasons)) == 1
            told = reasons[:1] if alike else [f"rank {rank}: {text}" for rank, text in enumerate(reasons) if text]
            skipped.append(" | ".join(told))
        self.refuse_all(which, skipped)

    def _local(self, tensors: Mapping[str, Tensor | ShardedTensor]) -> dict[str, ShardedTensor]:
        size, rank = self.mesh.size, self.mesh.rank
        return {
            name: ShardedTensor.whole(tensor, k % size == rank) if isinstance(tensor, Tensor) else tensor
            for k, (name, tensor) in enumerate(tensors.items())
        }

    def _verified(self, path: Path) -> Checkpoint | str:
        """A checkpoint, of whose files this process has verified every n-th; or why it is refused."""
        try:
            stored, step, record = self.open(path)
            for number in range(self.mesh.rank, len(stored.entries), self.mesh.size):
                stored.verify(number)
        except DataError as error:
            return str(error)
        return Checkpoint(step, stored, record, path, ())
