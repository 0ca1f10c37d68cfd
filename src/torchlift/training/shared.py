"""The checkpoints of a run on many processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchlift.core.errors import DataError
from torchlift.io import Checkpoint, Checkpoints, Piece, write_index, write_shard
from torchlift.io.folders import hidden, writing
from torchlift.parallel import Mesh, on_all


class SharedCheckpoints:
    """Checkpoints of which each process writes what it holds and reads what it needs (see `checkpoint/shards.py`).

    Args:
        folder: one that all processes see and may write to.
        mesh: the processes.
        keep: how many of the last checkpoints stay.
    """

    def __init__(self, folder: Path, mesh: Mesh, *, keep: int = 2) -> None:
        found: list[Checkpoints] = []
        on_all(mesh, lambda: found.append(Checkpoints(folder, keep=keep)))
        self.checkpoints, self.mesh = found[0], mesh

    def claim(self) -> None:
        """`Checkpoints.claim`, for rank 0."""
        self.checkpoints.claim()

    def save(self, step: int, pieces: Sequence[Piece], record: Mapping[str, Any]) -> None:
        """`Checkpoints.save`: it is there when all have written their part and rank 0 has put the folder in place.

        Arguments:
            step: the same on all processes.
            pieces: what this process holds.
            record: that of rank 0 counts.
        """
        mesh, own = self.mesh, self.checkpoints
        new = hidden(own.path(step), "new")
        with ExitStack() as stack:  # leaves no half of it if anything fails

            def begin() -> None:
                if mesh.first:
                    stack.enter_context(own.saving(step))

            def write() -> dict[str, Any]:
                with writing(own.path(step)):
                    return write_shard(new, mesh.rank, mesh.size, pieces)

            def finish() -> None:
                if mesh.first:
                    write_index(new, shards, str(mesh), {"step": step, "record": record}, own.kind)
                    stack.close()

            on_all(mesh, begin)
            shards = on_all(mesh, write)
            on_all(mesh, finish)

    def load(self) -> Checkpoint:
        """The newest checkpoint that is intact; its tensors are read when they are asked for.

        Every file is verified by one process. What one refuses, all refuse.

        Raises:
            DataError: There is none; each one that was refused is listed with the reason.
        """
        own, skipped = self.checkpoints, []
        names = on_all(self.mesh, lambda: [path.name for path in own.candidates()])[0]
        for path in (own.folder / name for name in names):
            found = self._opened(path)
            texts = self.mesh.texts(found if isinstance(found, str) else "")
            if not any(texts):
                assert not isinstance(found, str)  # nobody has refused it
                own.stand_at(found.step)
                return replace(found, skipped=tuple(skipped))
            alike = len(set(texts)) == 1
            told = texts[:1] if alike else [f"rank {rank}: {text}" for rank, text in enumerate(texts) if text]
            skipped.append(" | ".join(told))
        own.refuse_all("latest", skipped)

    def _opened(self, path: Path) -> Checkpoint | str:
        """A checkpoint, of whose files this process has verified its share; or why not."""
        try:
            stored, step, record = self.checkpoints.open(path)
            for number in range(self.mesh.rank, len(stored.entries), self.mesh.size):
                stored.verify(number)
        except DataError as error:
            return str(error)
        return Checkpoint(step, stored, record, path, ())
