"""One running epoch of a `DataLoader`."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from torchlift.core.errors import invalid_value
from torchlift.data.streams import Stream, epoch_seed

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
