"""Several experiments at the same time, each in a process of its own with its share of the threads."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from torchlift.core.errors import TorchliftError
from torchlift.lab.reproduction.experiment import Experiment
from torchlift.lab.reproduction.run import reproduce


def reproduce_at_once(
    experiments: Sequence[Experiment],
    processes: int,
    tell: Callable[[str, str], None],
    done: Callable[[str, int, int], None],
    settings: dict[str, Any],
) -> dict[str, str | None]:
    """Do what the experiments say, as `reproduce` does, `processes` of them at a time.

    Arguments:
        experiments: in the order in which they begin.
        processes: how many at a time. Each has its share of torch's threads, one at least.
        tell: called with the name of an experiment and what it is doing.
        done: called with the name of an experiment and (parts finished, parts in all).
        settings: of `reproduce`, by their names; the same for all.

    Returns:
        by name, why an experiment failed; None where it is finished.

    Raises:
        KeyboardInterrupt: Stopped from the keyboard, after all processes have kept what was finished.
    """
    context = _context()
    threads = max(1, torch.get_num_threads() // processes)
    waiting, running, failures = deque(experiments), dict[Connection, tuple[str, Any]](), dict[str, str | None]()
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                experiment = waiting.popleft()
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(theirs, experiment, threads, settings))
                process.start()
                theirs.close()  # ours says that it is at an end when the process has gone
                running[ours] = experiment.name, process
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                name, process = running[connection]
                try:
                    kind, content = connection.recv()
                except EOFError:
                    process.join()
                    failures.setdefault(name, f"its process ended with exit code {process.exitcode}")
                    del running[connection]
                else:
                    match kind:
                        case "tell":
                            tell(name, content)
                        case "done":
                            done(name, *content)
                        case _:
                            failures[name] = content
    except BaseException:
        for _, process in running.values():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGINT)
        for _, process in running.values():
            process.join()
        raise
    return {experiment.name: failures[experiment.name] for experiment in experiments}


def _context() -> Any:
    """Where processes can be forked from one that has imported all they need, that one; else each imports it again."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def reason(error: Exception) -> str:
    """An error in one line; those that are not ours with their kind."""
    said = " ".join(str(error).split()) or "no message"
    return said if isinstance(error, TorchliftError) else f"{type(error).__name__}: {said}"


def _work(connection: Connection, experiment: Experiment, threads: int, settings: dict[str, Any]) -> None:
    """What a process does: one experiment, and the way of it into the connection."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C at the terminal goes to the first process, which hands it on: once, not twice
    torch.set_num_threads(threads)
    sys.unraisablehook = _ask_again
    failure = None
    try:
        reproduce(
            experiment,
            **settings,
            tell=lambda part: connection.send(("tell", part)),
            done=lambda finished, total: connection.send(("done", (finished, total))),
        )
    except KeyboardInterrupt:
        failure = "stopped"
    except Exception as error:
        failure = reason(error)
    with suppress(BrokenPipeError):  # the first process has gone
        connection.send(("end", failure))


def _ask_again(lost: Any) -> None:
    """An interrupt that came in a place whose errors Python drops, such as the end of an import, comes once more."""
    if lost.exc_type is KeyboardInterrupt:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(lost)
