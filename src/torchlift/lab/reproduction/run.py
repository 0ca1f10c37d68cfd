"""Runs experiments, alone or several at once: where files go, how to go on after an interruption, the record."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from torchlift import __version__
from torchlift.core.checks import check_choice, check_size
from torchlift.core.errors import DataError, TorchliftError, message
from torchlift.core.files import read_json, unlinked, write_file
from torchlift.io.folders import hold
from torchlift.lab.reproduction.experiment import DEFAULT, SCALES, Experiment, ExperimentResult, Options, Scale, Work
from torchlift.report.plot.figures import save_figure
from torchlift.report.records import (
    Record,
    Table,
    environment,
    latex,
    load_record,
    markdown,
    record_markdown,
    save_record,
)
from torchlift.report.records.files import FOLDER as RECORD
from torchlift.report.records.files import check_record

OUT = Path("runs") / "reproduce"
SETTINGS = "settings.json"
FIGURES, TABLES, SUMMARY = "figures", "tables", "summary.md"


def reproduce(
    experiment: Experiment,
    scale: Scale = "small",
    seed: int = 0,
    out: Path | str = OUT,
    *,
    resume: bool = False,
    tell: Callable[[str], None] = lambda text: None,
    done: Callable[[int, int], None] = lambda finished, total: None,
    options: Options = DEFAULT,
) -> Record:
    """Do what an experiment says, in the folder `out`/<name of the experiment>.

    The folder gets `record` (see `load_record`), `figures` (PNG, SVG and PDF; where matplotlib is
    installed), `tables` (Markdown and LaTeX) and `summary.md`. The record comes last: a folder with
    one is finished. Finished parts are kept on the way.

    Arguments:
        experiment: one of `EXPERIMENTS`.
        scale: "tiny", "small" or "paper".
        seed: of everything random.
        out: the folder for all experiments.
        resume: go on where an earlier run with the same settings stopped; one that is finished is read.
        tell: called with what is being done.
        done: called with (parts finished, parts in all).
        options: numbers of steps and seeds other than the scale's, and a device. A finished run with other
            numbers of steps or seeds is gone on with: what it has trained is used. Experiments that are not
            about trainings or run times stay on the processor, as their records say.

    Raises:
        DataError: The folder holds something else, or it cannot be written.
        KeyboardInterrupt: Stopped from the keyboard; what is finished is kept.
    """
    folder = check_folder(experiment, scale, seed, out, resume=resume)
    if finished(folder):
        record = load_record(folder)
        if all(record.configuration.get(name) == value for name, value in _asked_for(options)):
            return record
    if not experiment.on_devices:
        options = replace(options, device=DEFAULT.device)
    folder.mkdir(parents=True, exist_ok=True)
    lock = hold(folder)
    clock = _Clock.start(folder, _settings(experiment, scale, seed))

    def count(parts: int, total: int) -> None:
        clock.save()
        done(parts, total)

    try:
        with noticing_interrupts() as interrupted, torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)  # each part does the same: an experiment is the same whole or in pieces
            result = experiment.run(Work(scale, seed, folder, tell, count, interrupted, options))
            if interrupted():
                raise KeyboardInterrupt
        record = _record(experiment, scale, seed, result, clock, options)
        write_figures(folder, record)
        save_record(folder, record)
    finally:
        clock.save()
        del lock
    return load_record(folder)  # the same as for whoever reads it later


def check_folder(experiment: Experiment, scale: Scale, seed: int, out: Path | str, *, resume: bool) -> Path:
    """The folder of an experiment, if a run with these settings may begin or go on there."""
    check_choice("scale", scale, SCALES)
    check_size("seed", seed, minimum=0)
    folder = Path(out) / experiment.name
    if not folder.exists():
        return folder
    if not started(folder):
        if folder.is_dir() and {entry.name for entry in folder.iterdir()} <= {".lock"}:
            return folder
        hint = "Choose another folder for the results (--out)."
        raise DataError(message(str(folder), "nothing, or the folder of an earlier run", "something else", hint))
    if not resume:
        state = "a finished run" if finished(folder) else "an unfinished run"
        hint = "Read it by --resume" if finished(folder) else "Go on with it by --resume"
        hint = f"{hint}, choose another folder by --out, or remove this one."
        raise DataError(message(str(folder), "no earlier run", state, hint))
    _check_same(folder, _settings(experiment, scale, seed))
    return folder


def started(folder: Path) -> bool:
    """Whether a run has begun in the folder of an experiment."""
    return (folder / SETTINGS).is_file()


def finished(folder: Path) -> bool:
    """Whether the folder of an experiment holds its record."""
    return started(folder) and (folder / RECORD).is_dir()


def write_figures(folder: Path, record: Record) -> None:
    """Figures, tables and the summary of a record."""
    check_record(record)  # figures name files
    tables = [figure for figure in record.figures if isinstance(figure, Table)]
    figures = [figure for figure in record.figures if not isinstance(figure, Table)]
    if find_spec("matplotlib") is None:
        figures = []
    for name, content in ((TABLES, tables), (FIGURES, figures)):
        if content:
            unlinked(folder / name).mkdir(exist_ok=True)
    for table in tables:
        for ending, text in (("md", markdown(table)), ("tex", latex(table))):
            unlinked(folder / TABLES / f"{table.name}.{ending}").write_text(text, encoding="utf-8")
    for figure in figures:
        save_figure(figure, folder / FIGURES)
    summary = record_markdown(record, [figure.name for figure in figures])
    unlinked(folder / SUMMARY).write_text(summary, encoding="utf-8")


def _settings(experiment: Experiment, scale: Scale, seed: int) -> dict[str, Any]:
    return {"experiment": experiment.name, "scale": scale, "seed": seed, "torchlift": __version__}


def _check_same(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to mix parts of two runs."""
    earlier = _read(folder / SETTINGS)["settings"]
    for name, value in settings.items():
        if earlier.get(name) != value:
            kind = "version" if name == "torchlift" else name
            hint = "Go on with the same settings, or choose another folder by --out."
            raise DataError(message(str(folder), f"a run with {kind} {value}", earlier.get(name), hint))


def _asked_for(options: Options) -> list[tuple[str, int | None]]:
    """Numbers beyond the scale's, by their names in a record, which has those that are not None."""
    return [("steps asked for", options.steps), ("seeds asked for", options.seeds)]


def _record(
    experiment: Experiment, scale: Scale, seed: int, result: ExperimentResult, clock: _Clock, options: Options
) -> Record:
    asked = {f"--{name}": value for name, value in vars(options).items() if value != getattr(DEFAULT, name)}
    numbers = {name: value for name, value in _asked_for(options) if value is not None}
    return Record(
        name=experiment.name,
        title=experiment.title,
        summary=result.summary,
        command=f"torchlift reproduce {experiment.name} --scale {scale} --seed {seed} "
        f"--threads {torch.get_num_threads()}" + "".join(f" {name} {value}" for name, value in asked.items()),
        configuration={"scale": scale, "seed": seed, **numbers, **result.configuration},
        environment=clock.environment,
        seconds=clock.seconds(),
        claims=result.claims,
        figures=result.figures,
    )


@dataclass
class _Clock:
    """The settings of a run on disk, with the time that it has taken over all its sittings."""

    file: Path
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    earlier: float
    begin: float

    @staticmethod
    def start(folder: Path, settings: Mapping[str, Any]) -> _Clock:
        file, here, earlier = folder / SETTINGS, environment(), 0.0
        if file.is_file():
            content = _read(file)
            before, earlier = content["environment"], content["seconds"]
            changes = {name: value for name, value in here.items() if before.get(name) != value}
            here = before | ({"resumed with": changes} if changes else {})
        clock = _Clock(file, settings, here, earlier, time.perf_counter())
        clock.save()
        return clock

    def seconds(self) -> float:
        return self.earlier + time.perf_counter() - self.begin

    def save(self) -> None:
        content = {"settings": self.settings, "environment": self.environment, "seconds": self.seconds()}
        write_file(self.file, json.dumps(content, indent=2) + "\n")


def _read(file: Path) -> dict[str, Any]:
    """The content of the file of settings."""
    hint = "It is damaged: choose another folder by --out."
    content = read_json(file, hint)
    settings, here, seconds = (content.get(name) for name in ("settings", "environment", "seconds"))
    if isinstance(settings, dict) and isinstance(here, dict) and type(seconds) is float and seconds >= 0:
        return content
    raise DataError(message(str(file), "the settings of a run", "something else", hint))


@contextmanager
def noticing_interrupts() -> Iterator[Callable[[], bool]]:
    """Tells whether SIGINT has arrived since the beginning of the block.

    `train` and the solvers turn Ctrl-C into a result and return early, with
    handlers of their own. The wake-up descriptor of `signal` sees the signal
    whoever handles it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread is interrupted
        return
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)  # an event loop needs it more than we do
    seen = bytearray()

    def interrupted() -> bool:
        with suppress(BlockingIOError):
            seen.extend(os.read(reader, 4096))
        return signal.SIGINT in seen

    try:
        yield interrupted
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)


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
