"""The checkpoints of one run: the last few, and the best.

    folder/
      step-00000110/   a pair of files (see `pair.py`)
      step-00000120/
      best-00000090/   the same files as its step had; removed when a newer best is there
      .lock            held by the process that saves

Hidden names ending in `.new`, `.old` or `.gone` are unfinished business of a
process that was killed. Only the holder of the lock makes them, so the next
holder tidies them up: no living process can be at work on them.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from torchlift.checkpoint.folders import discard, remove, replacing, sync, writing
from torchlift.checkpoint.lock import FolderLock, hold
from torchlift.checkpoint.pair import RECORD, TENSORS, read_pair, read_record, refuse, write_pair
from torchlift.core.checks import check_size
from torchlift.core.errors import DataError, invalid_type, invalid_value, message

_NAME = re.compile(r"(\.)?(step|best)-([0-9]{8}|[1-9][0-9]{8,})(?(1)\.old)")
_UNFINISHED = re.compile(r"\.((?:step|best)-[0-9]{8,})\.(new|old|gone)")
_CONTINUE = "Load a checkpoint to continue from it, or choose an empty folder for a new run."


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint that was read and verified.

    Attributes:
        step: The step that it was saved at.
        tensors: By name, on the CPU.
        record: The JSON values saved beside them.
        path: The folder that it came from.
        skipped: One sentence for each newer checkpoint that was refused, and why.
    """

    step: int
    tensors: dict[str, Tensor]
    record: dict[str, Any]
    path: Path
    skipped: tuple[str, ...]


class Checkpoints:
    """A folder of checkpoints of one run.

    A crash at any moment leaves every checkpoint that had been saved, and one
    that is damaged afterwards is skipped in favour of the one before it. Any
    number of processes may load; one at a time may save.

    Arguments:
        folder: Created if absent; a DataError if it cannot be written to.
        keep: How many of the last checkpoints stay; the best stays beside them.
        kind: Written into each checkpoint; one of another kind is refused.
    """

    def __init__(self, folder: Path | str, *, keep: int = 2, kind: str = "training") -> None:
        if not isinstance(kind, str):
            invalid_type("kind", "a string", kind)
        self.folder = Path(folder)
        self.keep = check_size("keep", keep)
        self.kind = kind
        self._lock: FolderLock | None = None
        self._position: int | None = None  # the step last saved or loaded here: where the run stands
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self.folder, os.W_OK | os.X_OK):
            refuse(self.folder, "a folder that can be written to", "no permission", "Choose another folder.")

    def claim(self) -> None:
        """Keep other processes from saving here, until this object or the process is gone.

        `save` does it too; a run that claims when it starts learns early that another one is at work.

        Raises:
            DataError: Another process saves here.
        """
        with writing(self.folder):
            self._lock = hold(self.folder)
            for path in list(self.folder.iterdir()):
                if match := _UNFINISHED.fullmatch(path.name):
                    whole = self.folder / match[1]
                    if match[2] == "old" and not os.path.lexists(whole):
                        path.rename(whole)
                    else:
                        remove(path)

    def save(self, step: int, tensors: Mapping[str, Tensor], record: Mapping[str, Any], *, best: bool = False) -> Path:
        """Write a checkpoint; once it is safely on the disk, remove those that are no longer kept.

        A run goes forward from where it stands, the step that was last saved or
        loaded here. Steps beyond the new one, left by a run that continued from
        the same point before, are removed as well, the best one excepted.

        Arguments:
            step: Not before the run's last one, nor one that an unrelated run left in the folder.
            tensors: By name; of any shape, memory layout and device.
            record: JSON values, NaN and infinities among them; tuples become lists.
            best: Make this the best checkpoint.

        Returns:
            The folder of the checkpoint.

        Raises:
            DataError: The disk is full or refuses, or another process saves here. Earlier checkpoints are intact.
        """
        self.claim()
        step = check_size("step", step, minimum=0)
        lowest = self._position if self._position is not None else max(self._found("step"), default=-1) + 1
        if step < lowest:
            invalid_value("step", f"a whole number >= {lowest}, after those in {self.folder}", step, _CONTINUE)
        path = self._path("step", step)
        with replacing(path) as new:
            write_pair(new, tensors, {"step": step, "record": record}, self.kind)
            if best:  # in place first: whoever resumes from this step finds the best that its record speaks of
                with replacing(self._path("best", step)) as copy:
                    _share(new, copy)
        self._position = step
        self._prune(step, best)
        return path

    def load(self, which: Literal["latest", "best"] | int = "latest") -> Checkpoint:
        """The newest checkpoint that is intact, the best one, or the one of a step.

        Raises:
            DataError: There is none; each one that was refused is listed with the reason.
        """
        skipped: list[str] = []
        for path in self._candidates(which):
            try:
                tensors, content = read_pair(path, self.kind)
                step, record = self._unwrap(path, content)
            except DataError as error:
                skipped.append(str(error))
            else:
                self._position = step
                return Checkpoint(step, tensors, record, path, tuple(skipped))
        wanted = "an intact checkpoint" if which == "latest" else f"an intact checkpoint ({which})"
        raise DataError(message(str(self.folder), wanted, " | ".join(skipped) or "none"))

    def steps(self) -> list[int]:
        """The steps that seem intact, in order; their tensors are not read."""
        return [step for step in self._found("step") if self._seems_intact(self._path("step", step))]

    def _path(self, prefix: str, step: int) -> Path:
        return self.folder / f"{prefix}-{step:08d}"

    def _found(self, prefix: str) -> list[int]:
        """The steps of all that is named like a checkpoint."""
        matches = [match for path in self.folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        return sorted({int(number) for _, kind, number in (match.groups() for match in matches) if kind == prefix})

    def _candidates(self, which: Literal["latest", "best"] | int) -> list[Path]:
        if which in ("latest", "best"):
            prefix = "step" if which == "latest" else "best"
            return [self._path(prefix, step) for step in reversed(self._found(prefix))]
        if isinstance(which, str):
            invalid_value("which", "'latest', 'best' or a step", repr(which))
        step = check_size("which", which, minimum=0)
        return [self._path(prefix, step) for prefix in ("step", "best") if step in self._found(prefix)]

    def _unwrap(self, path: Path, content: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The step and the caller's record; a folder that was renamed by hand is refused."""
        step, record = content.get("step"), content.get("record")
        if not (isinstance(step, int) and isinstance(record, dict) and path.name.endswith(f"-{step:08d}")):
            refuse(path, "the step that its name states", step)
        return step, record

    def _seems_intact(self, path: Path) -> bool:
        try:
            self._unwrap(path, read_record(path, self.kind))
        except DataError:
            return False
        return True

    def _prune(self, step: int, best: bool) -> None:
        """Remove what is older than kept, or beyond `step`; damaged and foreign ones are left to their owner."""
        steps = self.steps()
        kept = [other for other in steps if other <= step][-self.keep :]
        gone = [self._path("step", other) for other in steps if other not in kept]
        if best:
            gone += [self._path("best", other) for other in self._found("best") if other != step]
        with writing(self.folder):
            for path in gone:
                discard(path)


def _share(source: Path, target: Path) -> None:
    """The same pair in another folder: hard links where there are such, else copies."""
    for name in (TENSORS, RECORD):
        try:
            os.link(source / name, target / name)
        except OSError:
            shutil.copy(source / name, target / name)
            sync(target / name)
