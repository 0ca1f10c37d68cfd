"""A `torchlift train` of its own process, and what can happen to it: killed, paused, left without room. Linux only."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchlift.core.errors import TorchliftError, message

KINDS = ("kill", "full disk", "pause")
#: Seconds after which a child that does not do what it should is given up.
GRACE = 180.0
#: A file system of at most so many bytes is really filled; on a larger one files may not grow.
SMALL = 1 << 30
#: Seconds of a pause, at most.
PAUSE = 1.5
_POLL = 0.02


@dataclass(frozen=True)
class Event:
    """Something that was done to a run.

    Arguments:
        kind: one of `KINDS`.
        how: the signal, or how the disk was made full.
        second: since the first start.
        training: whether training had made a checkpoint since the last start; otherwise it was still starting.
        status: the child's exit status; None after a pause.
        said: the last line of its standard error.
        step: of the checkpoint that is left, 0 for none.
        expected: whether this is how such a thing should end.
    """

    kind: str
    how: str
    second: float
    training: bool
    status: int | None
    said: str
    step: int
    expected: bool


@dataclass(frozen=True)
class End:
    """How a process ended: its exit status, output and standard error."""

    status: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        """The last line of standard error."""
        return self.err.strip().rpartition("\n")[2]


class Child:
    """The command `torchlift` with these arguments, in a process of its own."""

    def __init__(self, arguments: Sequence[str]) -> None:
        command = [sys.executable, "-m", "torchlift", *arguments]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
        self._end: End | None = None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind, a paused process included."""
        if self.running:
            self.process.kill()
        self.end()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def end(self, seconds: float | None = None) -> End:
        """Wait until it ends by itself; after so many seconds it is killed."""
        if self._end is None:
            late = ""
            try:
                out, err = self.process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                out, err = self.process.communicate()
                late = f"It did not end within {seconds:g} s."
            self._end = End(self.process.returncode, out, f"{err}{late}")
        return self._end

    def answer(self) -> dict[str, Any]:
        """What it prints as JSON when it has ended well.

        Raises:
            TorchliftError: it has not.
        """
        end = self.end()
        if end.status:
            got = f"status {end.status}"
            raise TorchliftError(message("soak", "undisturbed training to end well", got, end.last_line))
        return json.loads(end.out)

    def send(self, number: int) -> None:
        """A signal, unless it has ended."""
        if self.running:
            self.process.send_signal(number)

    def memory(self) -> float | None:
        """Resident memory of its own in MiB, without pages of files, which come and go; None once it has ended."""
        with suppress(OSError):
            for line in Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8").splitlines():
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) / 1024
        return None


def last_step(folder: Path) -> int:
    """The step of the newest checkpoint; 0 for none."""
    return max((int(path.name.partition("-")[2]) for path in (folder / "checkpoints").glob("step-*")), default=0)


def wait(child: Child, until: Callable[[], bool], seconds: float = GRACE) -> bool:
    """Whether something came true while the child was running."""
    end = time.monotonic() + seconds
    while child.running and time.monotonic() < end:
        if until():
            return True
        time.sleep(_POLL)
    return False


def disturb(kind: str, child: Child, folder: Path, draws: random.Random, *, since: float, before: int) -> Event | None:
    """Do it now; None if the child had ended by itself.

    Arguments:
        kind: one of `KINDS`.
        child, folder: the process and its run.
        draws: of the length of a pause, and of the room that is left on the disk.
        since: the time of the first start.
        before: the last step when the child started.
    """
    second, training = time.monotonic() - since, last_step(folder) > before
    if kind == "pause":
        length = draws.uniform(0.1, PAUSE)
        paused = _pause(child, length)
        how = f"SIGSTOP, SIGCONT after {length:.1f} s"
        return Event(kind, how, second, training, None, "", last_step(folder), paused) if child.running else None
    if kind == "kill":
        how = "SIGKILL"
        child.send(signal.SIGKILL)
        end = child.end(GRACE)
        expected = end.status == -signal.SIGKILL
    else:
        with _full(child, folder, draws.random()) as how:
            end = child.end(GRACE)
        expected = end.status == 2 and end.err.count("\n") == 1  # one clear line
    if end.status == 0:
        return None
    return Event(kind, how, second, training, end.status, end.last_line, last_step(folder), expected)


def _pause(child: Child, seconds: float) -> bool:
    """Whether the process really stood still."""
    child.send(signal.SIGSTOP)
    stopped = wait(child, lambda: _state(child) == "T", 10.0)
    time.sleep(seconds)
    child.send(signal.SIGCONT)
    return stopped


def _state(child: Child) -> str:
    """The letter by which the system calls the state of a process; T for stopped."""
    with suppress(OSError):
        return Path(f"/proc/{child.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    return ""


@contextmanager
def _full(child: Child, folder: Path, share: float) -> Iterator[str]:
    """No room for another checkpoint: a file system filled up, or a limit of the system on the size of files.

    Arguments:
        child, folder: the process and its run.
        share: of a checkpoint's largest file, for which there still is room.
    """
    room, place = int(share * _largest_file(folder)), folder.parent
    if shutil.disk_usage(place).total > SMALL:
        import resource  # unknown to some systems

        with suppress(ProcessLookupError):
            resource.prlimit(child.process.pid, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        yield "a limit on the size of files"
        return
    ballast = place / "ballast"
    try:
        _fill(ballast, room)
        yield "no space left on the device"
    finally:
        ballast.unlink(missing_ok=True)


def _largest_file(folder: Path) -> int:
    """Its bytes, among those of the checkpoints; the run may be removing them meanwhile."""
    sizes = [1 << 16]
    for path in (folder / "checkpoints").glob("step-*/*"):
        with suppress(OSError):
            sizes.append(path.stat().st_size)
    return max(sizes)


def _fill(ballast: Path, room: int) -> None:
    """Take all space but `room` bytes, whatever the run takes or gives back meanwhile."""
    with ballast.open("wb") as file:
        for _ in range(100):
            free = shutil.disk_usage(ballast.parent).free
            if free <= room:
                return
            with suppress(OSError):  # the run was quicker
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, free - room)
