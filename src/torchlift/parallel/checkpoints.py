"""The checkpoints of a run on many processes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from torchlift.core.errors import DataError
from torchlift.io import Checkpoint, Checkpoints, ShardedTensor, write_index, write_shard
from torchlift.io.folders import hidden, writing
from torchlift.parallel.agreement import on_all
from torchlift.parallel.mesh import Mesh


def open_checkpoints(folder: Path, mesh: Mesh, *, keep: int = 2) -> Checkpoints:
    """The checkpoints in a folder: of one process, or of the processes of a mesh."""
    return Checkpoints(folder, keep=keep) if mesh.size == 1 else ShardedCheckpoints(folder, mesh, keep=keep)


class ShardedCheckpoints(Checkpoints):
    """Checkpoints of which each process writes what it holds and reads what it needs (see `io/shards.py`).

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
