"""Processes that can be killed: run as a script, this forks one for each line it is sent.

A line is a JSON list, the name of an action and its arguments. The answer is
the number of the process, then what the action prints, then its exit status.
Forking spares every test the seconds that importing torch takes.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time

import torch

from torchlift.core.errors import DataError
from torchlift.io import Checkpoints


def tensors_of(step: int, size: int = 1000) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((size,), float(step)), "counts": torch.full((3,), step)}


def save(checkpoints: Checkpoints, step: int, best: bool = False, size: int = 1000) -> None:
    checkpoints.save(step, tensors_of(step, size), {"value": step}, best=best)


def save_forever(folder: str) -> None:
    """Go on from what is there; say which step is saved; every third is a best one, and all are saved twice."""
    checkpoints = Checkpoints(folder)
    start = checkpoints.load().step + 1 if checkpoints.steps() else 1
    for step in range(start, 10**6):
        for _ in range(2):
            save(checkpoints, step, best=step % 3 == 0, size=100_000)
            sys.stdout.write(f"{step}\n")  # at once: print makes two writes of it where output is not buffered,
            sys.stdout.flush()  # and a child killed in between would leave half a line


def die_at_operation(folder: str, step: int, number: int) -> None:
    """Save once, but be killed just before the file system is used for the `number`-th time."""
    checkpoints = Checkpoints(folder, keep=1)
    checkpoints.load()
    remaining = number

    def count(event: str, _: object) -> None:
        nonlocal remaining
        if event == "open" or event.startswith(("os.", "shutil.")):
            if remaining == 0:
                signal.raise_signal(signal.SIGKILL)
            remaining -= 1

    sys.addaudithook(count)
    save(checkpoints, step, best=True)
    os._exit(0)  # before anything else opens a file


def save_then_wait(folder: str) -> None:
    checkpoints = Checkpoints(folder)
    save(checkpoints, 1)
    print("saved", flush=True)
    time.sleep(60)


def try_to_save(folder: str, step: int, size: int) -> None:
    try:
        save(Checkpoints(folder), step, size=size)
        print("saved", flush=True)
    except DataError as error:
        print(error, flush=True)


def save_with_a_limit(folder: str, step: int, size: int) -> None:
    """Files may not grow beyond 100,000 bytes: the system refuses to write more."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try_to_save(folder, step, size)


def fork_while_holding(folder: str) -> None:
    checkpoints = Checkpoints(folder)
    save(checkpoints, 1)
    child = os.fork()
    if child == 0:
        try:
            save(checkpoints, 2)
            print("saved", flush=True)
        except DataError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)


ACTIONS = (
    save_forever,
    die_at_operation,
    save_then_wait,
    try_to_save,
    save_with_a_limit,
    fork_while_holding,
)


def main() -> None:
    actions = {action.__name__: action for action in ACTIONS}
    for line in sys.stdin:
        name, *texts = json.loads(line)
        child = os.fork()
        if child == 0:
            print(os.getpid(), flush=True)
            actions[name](*[int(text) if text.isdigit() else text for text in texts])
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(f"status {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    main()
