"""The checkpoints of one run: the last few, and the best.

    folder/
      step-00000110/   a pair of files, or a file of each process (see `stored.py`)
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
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from torch import Tensor

from torchlift.core.checks import check_instance, check_size
from torchlift.core.errors import DataError, invalid_value, message
from torchlift.io.folders import FolderLock, discard, hold, remove, replacing, sync, writing
from torchlift.io.record import refuse
from torchlift.io.stored import Stored, open_stored, write_pair

_NAME = re.compile(r"(\.)?(step|best)-([0-9]{8}|[1-9][0-9]{8,})(?(1)\.old)")
_UNFINISHED = re.compile(r"\.((?:step|best)-[0-9]{8,})\.(new|old|gone)")
_CONTINUE = "Load a checkpoint to continue from it, or choose an empty folder for a new run."


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint that was read and verified.

    Attributes:
        step: The step that it was saved at.
        tensors: By name, on the CPU; where many processes load, each tensor is read when it is asked for.
        record: The JSON values saved beside them.
        path: The folder that it came from.
        skipped: One sentence for each newer checkpoint that was refused, and why.
    """

    step: int
    tensors: Mapping[str, Tensor]
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
        check_instance("kind", kind, str, "a string")
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
        with self.saving(step, best=best) as new:
            write_pair(new, tensors, {"step": step, "record": record}, self.kind)
        return self.path(step)

    @contextmanager
    def saving(self, step: int, *, best: bool = False) -> Generator[Path, None, None]:
        """`save`, whose files are written into a hidden folder by the block."""
        self.claim()
        step = check_size("step", step, minimum=0)
        lowest = self._position if self._position is not None else max(self._kept("step"), default=-1) + 1
        if step < lowest:
            invalid_value("step", f"a whole number >= {lowest}, after those in {self.folder}", step, _CONTINUE)
        with replacing(self.path(step)) as new:
            yield new
            if best:  # in place first: whoever resumes from this step finds the best that its record speaks of
                with replacing(self.path(step, "best")) as copy:
                    _share(new, copy)
        self._position = step
        self._prune(step, best)

    def load(self, which: Literal["latest", "best"] | int = "latest") -> Checkpoint:
        """The newest checkpoint that is intact, the best one, or the one of a step.

        Raises:
            DataError: There is none; each one that was refused is listed with the reason.
        """
        skipped: list[str] = []
        for path in self.candidates(which):
            try:
                stored, step, record = self.open(path)
                tensors = stored.everything()
            except DataError as error:
                skipped.append(str(error))
            else:
                self.stand_at(step)
                return Checkpoint(step, tensors, record, path, tuple(skipped))
        self.refuse_all(which, skipped)

    def open(self, path: Path) -> tuple[Stored, int, dict[str, Any]]:
        """Tensors that are not verified yet, step and record of one of the `candidates`.

        Raises:
            DataError: It seems damaged, or is none of this run.
        """
        stored, content = open_stored(path, self.kind)
        step, record = content.get("step"), content.get("record")
        if not (isinstance(step, int) and isinstance(record, dict) and path.name.endswith(f"-{step:08d}")):
            refuse(path, "the step that its name states", step)  # renamed by hand
        return stored, step, record

    def candidates(self, which: Literal["latest", "best"] | int = "latest") -> list[Path]:
        """All that is named like what is asked for, the one to prefer first."""
        if which in ("latest", "best"):
            prefix = "step" if which == "latest" else "best"
            return [self.path(step, prefix) for step in reversed(self._kept(prefix))]
        if isinstance(which, str):
            invalid_value("which", "'latest', 'best' or a step", repr(which))
        step = check_size("which", which, minimum=0)
        return [self.path(step, prefix) for prefix in ("step", "best") if step in self._kept(prefix)]

    def stand_at(self, step: int) -> None:
        """Where a run goes on that has loaded one of the `candidates`."""
        self._position = step

    def refuse_all(self, which: Literal["latest", "best"] | int, reasons: Sequence[str]) -> NoReturn:
        """There is no checkpoint to load, for these reasons."""
        expected = "an intact checkpoint" if which == "latest" else f"an intact checkpoint ({which})"
        raise DataError(message(str(self.folder), expected, " | ".join(reasons) or "none"))

    def steps(self) -> list[int]:
        """The steps that seem intact, in order; their tensors are not read."""
        return [step for step in self._kept("step") if self._seems_intact(self.path(step))]

    def path(self, step: int, prefix: str = "step") -> Path:
        return self.folder / f"{prefix}-{step:08d}"

    def _kept(self, prefix: str) -> list[int]:
        """The steps of all that is named like a checkpoint."""
        matches = [match for path in self.folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        return sorted({int(number) for _, kind, number in (match.groups() for match in matches) if kind == prefix})

    def _seems_intact(self, path: Path) -> bool:
        try:
            self.open(path)
        except DataError:
            return False
        return True

    def _prune(self, step: int, best: bool) -> None:
        """Remove what is older than kept, or beyond `step`; damaged and foreign ones are left to their owner."""
        steps = self.steps()
        kept = [other for other in steps if other <= step][-self.keep :]
        gone = [self.path(other) for other in steps if other not in kept]
        if best:
            gone += [self.path(other, "best") for other in self._kept("best") if other != step]
        with writing(self.folder):
            for path in gone:
                discard(path)


def _share(source: Path, target: Path) -> None:
    """The same files in another folder: hard links where there are such, else copies."""
    for file in source.iterdir():
        try:
            os.link(file, target / file.name)
        except OSError:
            shutil.copy(file, target / file.name)
            sync(target / file.name)
