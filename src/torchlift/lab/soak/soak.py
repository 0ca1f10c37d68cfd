"""`torchlift soak`: a training run that is disturbed at random moments must end where an undisturbed one ends.

| part        | share of the time | what is done                                                              |
|-------------|-------------------|---------------------------------------------------------------------------|
| rehearsal   | 4 %               | how many steps a second                                                   |
| undisturbed | 25 %              | so many steps in one process; its resident memory is watched              |
| disturbed   | the rest          | as many steps, killed, paused, left without room, and resumed every time; |
|             |                   | again from the start while there is time                                  |

All are real `torchlift train` processes on the bundled digits, with one thread.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, linear_regression
from typing import Any, ClassVar

import torch
from rich.console import Console
from rich.table import Table

from torchlift.cli.command import Command, Record
from torchlift.cli.tables import columns
from torchlift.core.checks import check_positive, check_size
from torchlift.core.errors import DataError, TorchliftError, invalid_value, message
from torchlift.io import Checkpoints, load_tensors
from torchlift.lab.soak.child import KINDS, Child, Event, disturb, last_step, wait
from torchlift.report.records.environment import environment
from torchlift.training import read_history

#: Growth of the resident memory over the watched time that is still allowed.
GROWTH = 0.01
#: Seconds that memory must be watched for before its growth is judged.
WATCHED = 60.0
#: Steps of a run at least.
LEAST = 100
#: Seconds of training from which on a rehearsal is worth the time that starting it takes.
REHEARSED = 5.0
#: The part of a run that is left out at its beginning: caches and pools fill.
WARM_UP = 0.25
#: Seconds of training between two disturbances, at most.
GAP = 8.0
#: The share of disturbances that hit a process while it is still starting.
EARLY = 0.25

Tell = Callable[[str], object]
Samples = list[tuple[float, float]]


@dataclass(frozen=True)
class Claim:
    """Whether something holds that should; None where it could not be judged."""

    statement: str
    passed: bool | None
    detail: str


def soak(folder: Path, seconds: float, seed: int = 0, tell: Tell = lambda _: None) -> dict[str, Any]:
    """Train with and without disturbances, and compare.

    Arguments:
        folder: where the runs are kept; on a file system of less than 1 GiB the disk is really filled.
        seconds: about how long everything takes, if starting a process is quick against it.
        seed: of training, and of all moments and kinds of disturbance.
        tell: is told what goes on.

    Returns:
        A record for JSON: "steps", "rounds", "memory", "disturbances", "claims", "passed".
    """
    begin, work = time.monotonic(), 0.25 * seconds
    calm, rough = folder / "undisturbed", folder / "disturbed"
    steps, settings, samples = _reference(calm, work, seed, tell)
    disturbed = Disturbed(
        rough, settings, start=samples[0][0], gap=min(GAP, work / 10), deadline=time.monotonic() + 0.6 * seconds,
        draws=random.Random(seed), tell=tell,
    )  # fmt: skip
    rounds, difference = 0, ""
    while not difference and (not rounds or disturbed.time_for_more(rounds)):
        shutil.rmtree(rough, ignore_errors=True)
        difference = disturbed.run() or ", ".join(differences(calm, rough))
        rounds += 1
    events, watched = disturbed.events, samples[int(WARM_UP * len(samples)) :]
    claims = (_each_kind(events), _came_back(events), _same(rounds, difference), _memory(watched))
    return {
        "steps": steps,
        "rounds": rounds,
        "seconds": time.monotonic() - begin,
        "memory": {"growth": growth(watched), "samples": watched},
        "disturbances": [asdict(event) for event in events],
        "claims": [asdict(claim) for claim in claims],
        "passed": all(claim.passed is not False for claim in claims),
    }


def growth(samples: Sequence[tuple[float, float]]) -> float:
    """Relative growth over all samples (second, size): the slope of the least-squares line × time / mean size."""
    if len(samples) < 2:
        return 0.0
    seconds, sizes = zip(*samples, strict=True)
    return linear_regression(seconds, sizes).slope * (seconds[-1] - seconds[0]) / fmean(sizes)


def differences(one: Path, other: Path) -> list[str]:
    """What differs between two runs: tensors of last checkpoints and models bit for bit, histories but for time."""
    first, second = (Checkpoints(folder / "checkpoints").load() for folder in (one, other))
    unequal = [] if first.step == second.step else [f"last steps {first.step} and {second.step}"]
    unequal += _unequal(first.tensors, second.tensors, "checkpoint")
    unequal += _unequal(load_tensors(one / "model")[0], load_tensors(other / "model")[0], "model")
    rows = [[{**row, "seconds": None} for row in read_history(folder / "history.jsonl")] for folder in (one, other)]
    if rows[0] != rows[1]:
        unequal.append(f"histories of {len(rows[0])} and {len(rows[1])} rows")
    return unequal


def _unequal(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor], where: str) -> list[str]:
    names = sorted(one.keys() | other.keys())
    same = (name in one and name in other and torch.equal(one[name], other[name]) for name in names)
    return [f"{where} {name}" for name, equal in zip(names, same, strict=True) if not equal]


def _settings(seed: int) -> list[str]:
    """Noise is drawn anew in every epoch, so that the state of every random stream counts."""
    return [
        "train", "--json", "--data.images", "1000", "--data.validation", "200", "--data.redraw", "True",
        "--network.widths", "128", "128", "--network.activation", "soft-threshold", "--network.threshold", "0.02",
        "--training.seed", str(seed), "--training.threads", "1",
    ]  # fmt: skip


def _reference(folder: Path, work: float, seed: int, tell: Tell) -> tuple[int, list[str], Samples]:
    """The undisturbed run: its steps, its settings, and its memory.

    A machine that is shared may be quicker than in the rehearsal. Then the run is repeated with more steps, because
    memory must be watched for long.
    """
    steps = LEAST
    if work > REHEARSED:
        tell("rehearsal")
        with Child([*_settings(seed), "--training.time-limit", str(max(1.0, work / 6))]) as child:
            answer = child.answer()
        steps = max(LEAST, round(work * answer["steps"] / answer["seconds"]))
    while True:
        tell(f"undisturbed, {steps} steps")
        settings = [
            *_settings(seed), "--training.steps", str(steps), "--training.evaluate-every", str(max(1, steps // 50)),
            "--training.checkpoint-every", str(min(2.0, work / 20)),
        ]  # fmt: skip
        samples = _undisturbed(folder, settings, every=min(1.0, work / 100))
        taken = samples[-1][0] - samples[0][0]
        if work < WATCHED or taken > work / 2:
            return steps, settings, samples
        steps = round(steps * min(10.0, work / taken))
        shutil.rmtree(folder)


def _undisturbed(folder: Path, settings: Sequence[str], every: float) -> Samples:
    """Train; returns (second, MiB) from the first checkpoint on."""
    samples: Samples = []
    with Child([*settings, "--out", str(folder)]) as child:
        start = time.monotonic()
        while child.running:
            size = child.memory()
            if size is not None and last_step(folder):
                samples.append((time.monotonic() - start, size))
            time.sleep(every)
        child.answer()
    return samples


@dataclass
class Disturbed:
    """A run that is disturbed.

    Arguments:
        folder, settings: of the run.
        start: seconds that a process needs until its first checkpoint.
        gap: seconds of training between two disturbances, at most.
        deadline: when disturbances end, if there was one of each kind.
        draws: of kinds and moments.
        tell: is told what goes on.
        events: what was done to it so far.
    """

    folder: Path
    settings: Sequence[str]
    start: float
    gap: float
    deadline: float
    draws: random.Random
    tell: Tell
    events: list[Event] = field(default_factory=list[Event])

    def __post_init__(self) -> None:
        self._kinds, self._since = self._rounds(), time.monotonic()

    def time_for_more(self, rounds: int) -> bool:
        """Whether at least half of another round of the usual length could be disturbed."""
        now = time.monotonic()
        return now + (now - self._since) / rounds / 2 < self.deadline

    def run(self) -> str:
        """Train until the run has ended; returns what was wrong with its end."""
        while True:
            before = last_step(self.folder)
            with self._begin() as child:
                end = None if self._disturb(child, before) else child.end()
            if end is not None:
                return "" if end.status == 0 else f"status {end.status}, {end.last_line}"
            if not self.events[-1].expected:
                return "the end was not reached"

    def _begin(self) -> Child:
        """A new run, or one that is resumed as soon as there is something to resume."""
        if (self.folder / "config.toml").exists():
            return Child(["train", "--json", "--resume", str(self.folder)])
        return Child([*self.settings, "--out", str(self.folder)])

    def _disturb(self, child: Child, before: int) -> bool:
        """Whether a disturbance ended this process; else it has ended by itself, or has earned its rest."""
        while time.monotonic() < self.deadline or {event.kind for event in self.events} != set(KINDS):
            self._wait(child, before)
            event = disturb(next(self._kinds), child, self.folder, self.draws, since=self._since, before=before)
            if event is None:
                return False
            self.events.append(event)
            self.tell(f"disturbed {len(self.events)} times, at step {event.step}")
            if event.status is not None or not event.expected:
                return True
        return False

    def _wait(self, child: Child, before: int) -> None:
        """Until a random moment, in the start of the process or in its training."""
        if self.draws.random() < EARLY:
            seconds = self.draws.uniform(0.0, self.start)
        else:
            wait(child, lambda: last_step(self.folder) > before)
            seconds = self.draws.uniform(0.0, self.gap)
        wait(child, lambda: False, seconds)

    def _rounds(self) -> Iterator[str]:
        """All kinds in random order, again and again."""
        while True:
            yield from self.draws.sample(KINDS, len(KINDS))


def _each_kind(events: Sequence[Event]) -> Claim:
    counts = {kind: sum(event.kind == kind for event in events) for kind in KINDS}
    detail = ", ".join(f"{kind} {count}" for kind, count in counts.items())
    return Claim("disturbed in every way", all(counts.values()), detail)


def _came_back(events: Sequence[Event]) -> Claim:
    statement = "came back every time"
    for event in events:
        if not event.expected:
            said = f"{event.kind} at {event.second:.0f} s: status {event.status}, {event.said or 'nothing said'}"
            return Claim(statement, False, said)
    return Claim(statement, True, f"after {sum(event.status is not None for event in events)} restarts")


def _same(rounds: int, difference: str) -> Claim:
    detail = f"parameters, state and history, bit for bit, in {rounds} of {rounds} runs"
    return Claim("ends with the same numbers", not difference, f"different: {difference}" if difference else detail)


def _memory(samples: Sequence[tuple[float, float]]) -> Claim:
    statement = f"memory grows by less than {GROWTH:.0%}"
    seconds = samples[-1][0] - samples[0][0] if samples else 0.0
    if seconds < WATCHED:
        return Claim(statement, None, f"not judged: watched for {seconds:.0f} s, less than {WATCHED:.0f} s")
    share, mean = growth(samples), fmean(size for _, size in samples)
    return Claim(statement, share < GROWTH, f"{share:+.2%} in {seconds:.0f} s, of {mean:.0f} MiB")


_WORDS = {True: "yes", False: "NO", None: "–"}


@dataclass(frozen=True, kw_only=True)
class Soak(Command):
    """Train for long under kills, pauses and full disks, and compare with an undisturbed run."""

    name: ClassVar[str] = "soak"

    minutes: float = 30.0
    """About how long everything takes; memory is judged from about 6 minutes on."""
    seed: int = 0
    """Seed of training, and of what happens when."""

    def check(self) -> None:
        check_positive("soak: --minutes", self.minutes)
        check_size("soak: --seed", self.seed, minimum=0)
        if not sys.platform.startswith("linux"):
            invalid_value("soak", "Linux, whose signals, limits and memory records it uses", sys.platform)
        for name in ("undisturbed", "disturbed"):
            if self.out is not None and (self.out / name).exists():
                hint = "Choose another folder, or remove it yourself."
                raise DataError(message(f"--out {self.out}", "a folder without an earlier soak", f"{name}/", hint))

    def collect(self) -> Record:
        if self.out is not None:
            return self._soak(self.out)
        with tempfile.TemporaryDirectory(prefix="torchlift-soak-") as folder:
            return self._soak(Path(folder))

    def _soak(self, folder: Path) -> Record:
        with Console(stderr=True).status("starting") as status:
            result = soak(folder, 60 * self.minutes, self.seed, status.update)
        return {"minutes": self.minutes, "seed": self.seed, **result, "environment": environment()}

    def show(self, record: Record, console: Console) -> None:
        console.print(_disturbances(record["disturbances"]))
        console.print()
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for claim in record["claims"]:
            table.add_row(_WORDS[claim["passed"]], claim["statement"], claim["detail"])
        console.print(table)
        runs, minutes = 1 + record["rounds"], record["seconds"] / 60
        console.print(f"\n{runs} runs of {record['steps']} steps, {minutes:.1f} minutes, seed {record['seed']}.")

    def run(self) -> Record:
        record = super().run()
        if not record["passed"]:
            failed = [claim["statement"] for claim in record["claims"] if claim["passed"] is False]
            hint = "" if self.out is not None else " Keep both runs by --out DIR."
            raise TorchliftError(f"soak: not true: {'; '.join(failed)}.{hint}")
        return record


def _disturbances(events: Sequence[dict[str, Any]]) -> Table:
    table = columns(["disturbance", "by"], ["times", "starting", "training", "as expected"])
    for kind in KINDS:
        chosen = [event for event in events if event["kind"] == kind]
        training = sum(event["training"] for event in chosen)
        signals = dict.fromkeys(event["how"].partition(" after ")[0] for event in chosen)
        table.add_row(
            kind, ", ".join(signals), str(len(chosen)), str(len(chosen) - training), str(training),
            str(sum(event["expected"] for event in chosen)),
        )  # fmt: skip
    return table
