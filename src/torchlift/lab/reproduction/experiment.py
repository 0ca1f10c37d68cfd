"""The contract of an experiment of the reproduction, and what it is given to work with."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from torchlift.core.checks import check_device, check_size
from torchlift.core.errors import DataError, invalid_value
from torchlift.io import load_tensors, save_tensors
from torchlift.report.records import Claim, Figure

K = TypeVar("K", bound=tuple[Any, ...])

Scale = Literal["tiny", "small", "paper"]
SCALES: tuple[Scale, ...] = ("tiny", "small", "paper")

#: What one part of an experiment found: named tensors, and JSON values.
Part = tuple[Mapping[str, Tensor], Mapping[str, Any]]

_KIND = "torchlift part"
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True)
class ExperimentResult:
    """What an experiment found.

    Arguments:
        summary: a few sentences for people who read nothing else.
        claims: one per claim.
        figures: tables, curves, pictures.
        configuration: the settings that were used, JSON values.
    """

    summary: str
    claims: Sequence[Claim]
    figures: Sequence[Figure]
    configuration: Mapping[str, Any]


@dataclass(frozen=True)
class Options:
    """What a run may ask for beyond its scale.

    Arguments:
        steps: of the long trainings; None for what the scale says. Their checkpoints are kept, so that a later run
            goes on from there.
        seeds: how many, where an experiment repeats its trainings; None for what the scale says.
        device: where trainings run.
    """

    steps: int | None = None
    seeds: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("steps", "seeds"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name))
        check_device("device", self.device)


DEFAULT = Options()


class Work:
    """Where an experiment works: its scale and seed, a folder for what is finished, and someone to tell about progress.

    Arguments:
        scale: how large.
        seed: of everything random.
        folder: finished parts are kept in `folder`/parts, so that an interrupted experiment goes on with the next one.
        tell: called with what is being done.
        done: called with (parts finished, parts in all).
        interrupted: whether Ctrl-C was pressed. Solvers and `train` return early then; the part is not kept.
        options: what was asked for beyond the scale.
    """

    def __init__(
        self,
        scale: Scale,
        seed: int,
        folder: Path,
        tell: Callable[[str], None] = lambda text: None,
        done: Callable[[int, int], None] = lambda finished, total: None,
        interrupted: Callable[[], bool] = lambda: False,
        options: Options = DEFAULT,
    ) -> None:
        self.scale, self.seed, self.folder, self.tell = scale, seed, folder, tell
        self._done, self._total, self._interrupted = done, 0, interrupted
        self._names: set[str] = set()
        self.steps, self.seeds, self.device = options.steps, options.seeds, torch.device(options.device)

    def choose(self, tiny: Any, small: Any, paper: Any) -> Any:
        """One of three values, by scale."""
        return {"tiny": tiny, "small": small, "paper": paper}[self.scale]

    def decided(self, claims: Iterable[Claim]) -> list[Claim]:
        """The claims as they are; open at scale "tiny", whose numbers are too few to decide anything."""
        if self.scale == "tiny":
            return [replace(claim, outcome="not decidable") for claim in claims]
        return list(claims)

    def expect(self, parts: int) -> None:
        """Say how many parts there will be, for the progress bar."""
        self._total = parts
        self._done(0, parts)

    def part(self, name: str, make: Callable[[], Part]) -> Part:
        """Make a part, or read it where an earlier run has finished it.

        Each part starts from torch's random state of the seed, whatever was done or read before it.

        Arguments:
            name: unique within the experiment; also what is shown while it is made.
            make: returns tensors and JSON values.

        Raises:
            DataError: A finished part is damaged.
            KeyboardInterrupt: The part was stopped from the keyboard.
        """
        folder = self.parts / file_name(name)
        if folder.name in self._names:
            invalid_value("part", "a name that no other part of the experiment has", repr(name))
        self.tell(name)
        if not folder.exists():
            with torch.random.fork_rng(devices=()):
                torch.manual_seed(self.seed)
                tensors, record = make()
            if self._interrupted():
                raise KeyboardInterrupt
            save_tensors(folder, tensors, record, kind=_KIND)
        try:
            part = load_tensors(folder, kind=_KIND)  # also what was just made: the same values as after a resumption
        except DataError as error:
            raise DataError(f"{error} Without the folder {folder} the part is made again.") from error
        self._names.add(folder.name)
        self._done(len(self._names), self._total)
        return part

    def each(self, name: str, keys: Iterable[K], make: Callable[..., Part]) -> dict[K, Part]:
        """The parts of an experiment that makes one for every key.

        Arguments:
            name: of a part, a format for the entries of its key.
            keys: tuples.
            make: called with the entries of a key.
        """
        chosen = list(keys)
        self.expect(len(chosen))
        return {key: self.part(name.format(*key), partial(make, *key)) for key in chosen}

    def training_folder(self, name: str) -> Path:
        """A folder for the checkpoints of a long `train(..., folder=…, resume=True)` inside a part."""
        return self.folder / "runs" / file_name(name)

    @property
    def parts(self) -> Path:
        return self.folder / "parts"


@dataclass(frozen=True)
class Experiment(ABC):
    """A table, a figure or a claim to reproduce.

    A subclass is one file; it is found by being listed in `torchlift.lab.reproduction.EXPERIMENTS`.
    `run` cuts the work into parts (`work.part`), of which none should take longer than about a
    minute at scale "small" without checkpoints of its own. Scales differ in the numbers of images,
    their pixels, steps and seeds only; "paper" is the published setting.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    on_devices: ClassVar[bool] = False
    """Whether it works where `work.device` says; the others stay on the processor."""
    timed: ClassVar[bool] = False
    """Whether seconds are among its results: such an experiment runs alone."""
    minutes: ClassVar[float] = 1.0
    """About what it takes at scale "small" on one thread: of several experiments the longest begin first."""
    about: ClassVar[str]
    """One line for `torchlift reproduce list`: what is done, and where the paper has it."""

    @abstractmethod
    def run(self, work: Work) -> ExperimentResult:
        """Do the work."""


def file_name(text: str) -> str:
    """Lower-case words joined by hyphens."""
    name = _NOT_IN_NAMES.sub("-", text.lower()).strip("-")
    if not name:
        invalid_value("part", "a name with letters or digits", repr(text))
    return name
