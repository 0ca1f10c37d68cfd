"""Random states of data, isolated from the global ones."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
