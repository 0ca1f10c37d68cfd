"""Tries wrong calls at every door and counts raw errors and nonsense that is accepted.

    PYTHONPATH=src:tests python -m fuzz.walk COUNT [part of a name] …

COUNT calls are drawn at random; 0 tries all of them.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuzz.doors import ALL, Door, arguments, call, instance
from fuzz.wrong import WRONG, admitted, kinds
from torchlift.core.errors import TorchliftError

SECONDS = 5
"""Processor time after which a call is stopped: it works, so what came was accepted."""


@dataclass(frozen=True)
class Call:
    """A door with one wrong argument."""

    door: Door
    argument: str
    kind: str

    def __str__(self) -> str:
        return f"{self.door.name}({self.argument}={self.kind})"

    @property
    def annotation(self) -> str:
        return str(self.door.parameters[self.argument].annotation)


def wrong_calls(doors: list[Door]) -> list[Call]:
    return [
        Call(door, argument, kind)
        for door in doors
        for argument, parameter in door.parameters.items()
        for kind in kinds(str(parameter.annotation))
    ]


def open_(door: Door) -> bool:
    """Whether it can be tried: for a method there must be an object."""
    with quietly(), contextlib.suppress(Exception):
        if door.owner is not None:
            instance(door.owner)
        arguments(door)
        return True
    return False


def outcome(wrong: Call) -> str:
    """What is the matter with a call; "" if nothing is: it is refused in our words, or the type is right."""
    door = wrong.door
    with quietly():
        values = arguments(door)
        value: Any = WRONG[wrong.kind][0]()
        kind = door.parameters[wrong.argument].kind
        if kind is kind.VAR_KEYWORD:
            return ""
        values[wrong.argument] = (value,) if kind is kind.VAR_POSITIONAL else value
        try:
            with _alarm():
                call(door, values)
        except TorchliftError:
            return ""
        except TooLongError:
            return "" if admitted(wrong.kind, wrong.annotation) else "accepted"
        except Exception as error:
            if _in_their_own(error):
                return ""
            return f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
    return "" if admitted(wrong.kind, wrong.annotation) else "accepted"


def _in_their_own(error: Exception) -> bool:
    """Whether it is the error of a function that was given: such errors pass unchanged."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_TORCH)]
    return frames[-1].name == "<lambda>" and Path(frames[-1].filename).parent == Path(__file__).parent


_TORCH = str(Path(torch.__file__).parent)


class TooLongError(Exception):
    pass


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooLongError(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """In an empty folder with one file, without warnings, and with nothing printed."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.chdir(folder)
        Path("file").write_text("text")
        torch.manual_seed(0)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                yield
        finally:
            os.chdir(here)


def sample(calls: list[Call], count: int, seed: int = 0) -> Iterator[Call]:
    """Some of the calls at random, of doors that can be tried."""
    known: dict[str, bool] = {}
    for wrong in random.Random(seed).sample(calls, len(calls)):
        if wrong.door.name not in known:
            known[wrong.door.name] = open_(wrong.door)
        if known[wrong.door.name]:
            yield wrong
            count -= 1
        if not count:
            return


def main(count: int, parts: list[str]) -> None:
    doors = [door for door in ALL if not parts or any(part in door.name for part in parts)]
    counts: Counter[str] = Counter()
    for wrong in sample(wrong_calls(doors), count):
        counts["calls"] += 1
        words = outcome(wrong)
        if words:
            counts["accepted" if words == "accepted" else "raw"] += 1
            print(f"{wrong} [{wrong.annotation}]: {words}", flush=True)
    print(f"{len(doors)} doors, {counts['calls']} wrong calls:", end=" ")
    print(f"{counts['raw']} raw errors, {counts['accepted']} accepted")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
