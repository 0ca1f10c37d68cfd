"""One pass through a loader, whose random numbers depend on the seed and the epoch only."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from torchlift.core.errors import invalid_value

_SEEDS = 2**63  # what torch takes


def epoch_seed(seed: int, epoch: int) -> int:
    """One seed for each epoch of each run."""
    return (seed * 1_000_003 + epoch) % _SEEDS


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """A generator on the CPU, at the start of an epoch."""
    return torch.Generator().manual_seed(epoch_seed(seed, epoch))


def permutation(samples: int, generator: torch.Generator) -> Tensor:
    """An order of all samples; on the CPU, so that it is the same for every device."""
    return torch.randperm(samples, generator=generator, device="cpu")


class Stream:
    """The global random states of torch (CPU), numpy and Python, as a data source left them.

    While the stream is active the source draws from its own states; outside,
    everybody else finds theirs as they were. So neither moves the other.

    Arguments:
        seed: of all states when the stream is first active.
        generators: further torch generators that the source draws from.
    """

    def __init__(self, seed: int, generators: Iterable[torch.Generator] = ()) -> None:
        self.seed = seed
        self.generators = [torch.default_generator, *generators]
        self._own: list[Any] | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        others = self._states()
        if self._own is None:
            for generator in self.generators:
                generator.manual_seed(self.seed)
            random.seed(self.seed)
            np.random.seed(self.seed % 2**32)  # noqa: NPY002
        else:
            self._put(self._own)
        try:
            yield
        finally:
            self._own = self._states()
            self._put(others)

    # Data sets of other people draw from numpy's old global stream, so it is swapped too.

    def _states(self) -> list[Any]:
        of_generators = [generator.get_state() for generator in self.generators]
        return [*of_generators, random.getstate(), np.random.get_state()]  # noqa: NPY002

    def _put(self, states: list[Any]) -> None:
        *of_generators, plain, numeric = states
        for generator, state in zip(self.generators, of_generators, strict=True):
            generator.set_state(state)
        random.setstate(plain)
        np.random.set_state(numeric)  # noqa: NPY002


#: What comes after the last batch.
END: Any = object()


class Pass:
    """One epoch of a loader, with random numbers that depend on the seed and the epoch only.

    Arguments:
        loader: run from its beginning.
        epoch: its number, which samplers and streams with `set_epoch` are told.
        seed: of the run.
        generators: torch generators, besides the global one, that the loader draws from.
    """

    def __init__(
        self, loader: DataLoader[Any], epoch: int, seed: int, generators: list[torch.Generator] | None = None
    ) -> None:
        self.epoch, self.drawn, self._loader = epoch, 0, loader
        self.samples = 0  # counted by those who read the batches
        self._stream = Stream(epoch_seed(seed, epoch), generators if generators is not None else generators_of(loader))
        with self._stream.active():
            set_epoch(loader, epoch)
            self._iterator = iter(loader)

    def draw(self) -> object:
        """The next batch as the loader makes it; `END` after the last."""
        with self._stream.active():
            _tell(self._loader.dataset, self.epoch)  # another pass may have told it otherwise
            item = next(self._iterator, END)
        self.drawn += item is not END
        return item


def check_workers(where: str, loader: DataLoader[Any]) -> None:
    """Refuse workers whose batches differ from run to run."""
    if loader.num_workers > 0 and loader.persistent_workers:
        hint = "Workers that stay alive carry random numbers from epoch to epoch, so runs could not be resumed."
        invalid_value(where, "a loader with persistent_workers=False", "True", hint)
    if loader.num_workers > 0 and not loader.in_order:
        invalid_value(where, "a loader with in_order=True", "False", "Else the batches differ from run to run.")


def generators_of(loader: DataLoader[Any]) -> list[torch.Generator]:
    """The generators, each once, that a loader and its samplers draw from."""
    generators = [getattr(part, "generator", None) for part in (loader, *_samplers(loader))]
    return list({id(g): g for g in generators if isinstance(g, torch.Generator)}.values())


def set_epoch(loader: DataLoader[Any], epoch: int) -> None:
    """Tell samplers and streams that count epochs themselves, as `DistributedSampler` does."""
    for sampler in _samplers(loader):
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
    _tell(loader.dataset, epoch)


def _tell(dataset: Any, epoch: int) -> None:
    if isinstance(dataset, IterableDataset) and hasattr(dataset, "set_epoch"):
        dataset.set_epoch(epoch)  # type: ignore[attr-defined]


def _samplers(loader: DataLoader[Any]) -> list[Any]:
    return [loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)]
