"""Data that a `DataLoader` reads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from torchlift.core.checks import check_instance, check_size
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.data.arrays import collating
from torchlift.data.base import Batch, Batches
from torchlift.data.passes import END, Pass, Stream, check_workers, epoch_seed, generators_of, set_epoch
from torchlift.data.read import read_batch


class LoaderBatches(Batches):
    """A loader of map-style data, run anew for every epoch with random numbers of its own.

    Shuffling and random transforms that draw from the global states of torch,
    numpy or Python, or from a generator of the loader or its sampler, depend on
    the seed and the epoch only; a data set that keeps a random state of its
    own is out of reach. Asking for batch after batch keeps one iterator going;
    any other order starts the epoch again and drops batches up to the one asked
    for.

    `ordered` reads the data set itself in the order of its indices: all that
    the sampler chooses from, those included that `drop_last` leaves out.

    Arguments:
        loader: its batch size and order count. Batches are (inputs, targets) or (inputs, targets, context).
        seed: of all random numbers.
        like: a parameter of the network: inputs have its dtype, and batches are moved to its device.
        where: what error messages call the data.
    """

    def __init__(
        self, loader: DataLoader[Any], *, seed: int = 0, like: Tensor | None = None, where: str = "data"
    ) -> None:
        check_instance(where, loader, DataLoader)
        self.like, self.where = like, where
        self.seed = check_size("seed", seed, minimum=0)
        self.per_epoch = _check_loader(where, loader)
        self.loader = loader = collating(loader, like)
        with Stream(epoch_seed(self.seed, 0), generators_of(loader)).active():
            set_epoch(loader, 0)
            self._indices, self.batch_size = _plan(loader)
        self.samples = len(self._indices)
        self._pass: Pass | None = None
        self._last: tuple[int, Batch] | None = None
        self._example = self._read("sample 0", self._run_in_order(1, workers=False).draw())

    def batch(self, count: int) -> Batch:
        count = check_size("count", count, minimum=0)
        if self._last is None or self._last[0] != count:
            epoch, position = divmod(count, self.per_epoch)
            self._last = (count, self._read(f"epoch {epoch} batch {position}", self._draw(epoch, position)))
        return self._last[1]

    def ordered(self, size: int | None = None) -> Iterator[Batch]:
        return self._parts(self.batch_size if size is None else check_size("batch_size", size))

    def example(self) -> Batch:
        return self._example

    def _parts(self, size: int) -> Iterator[Batch]:
        running = self._run_in_order(size)
        for number in range(-(-self.samples // size)):
            yield self._read(f"in order, batch {number}", running.draw())

    def _draw(self, epoch: int, position: int) -> object:
        """What the loader gives at a position; batches before it are dropped."""
        running, self._pass = self._pass, None  # an error leaves none that has lost count
        if running is None or running.epoch != epoch or running.drawn > position:
            running = Pass(self.loader, epoch, self.seed)
        item: object = END
        while running.drawn <= position:
            item = running.draw()
            if item is END:
                self._refuse_length(epoch, str(running.drawn))
        if running.drawn == self.per_epoch and running.draw() is not END:
            self._refuse_length(epoch, f"more than {self.per_epoch}")
        self._pass = running
        return item

    def _refuse_length(self, epoch: int, got: str) -> None:
        hint = "Every epoch has as many batches as len(loader) says."
        invalid_value(f"{self.where} epoch {epoch}", f"{self.per_epoch} batches", got, hint)

    def _read(self, which: str, item: object) -> Batch:
        return read_batch(f"{self.where} {which}", item, self.like)

    def _run_in_order(self, size: int, *, workers: bool = True) -> Pass:
        """The same samples in the order of their indices, with the random numbers of epoch 0."""
        loader, settings = self.loader, {}
        if workers and loader.num_workers > 0:
            settings = {
                "num_workers": loader.num_workers,
                "worker_init_fn": loader.worker_init_fn,
                "multiprocessing_context": loader.multiprocessing_context,
                "prefetch_factor": loader.prefetch_factor,
                "timeout": loader.timeout,
            }
        ordered = DataLoader(loader.dataset, size, sampler=self._indices, collate_fn=loader.collate_fn, **settings)
        return Pass(ordered, 0, self.seed, generators_of(loader))


def _check_loader(where: str, loader: DataLoader[Any]) -> int:
    """The batches per epoch of a loader that can be run again."""
    check_map_style(where, loader.dataset)
    try:
        batches = len(loader)
    except (TypeError, NotImplementedError):
        hint = "Give its sampler a `__len__`."
        invalid_type(f"{where} sampler", "a loader with a length", loader.batch_sampler or loader.sampler, hint)
    if loader.batch_sampler is None:
        hint = "Set batch_size, or draw batches of indices by a batch_sampler."
        invalid_value(where, "a loader that makes batches", "one with batch_size=None", hint)
    if batches == 0:
        hint = "`drop_last` leaves nothing of less than one batch." if loader.drop_last else ""
        invalid_value(where, "at least one batch", "an empty loader", hint)
    check_workers(where, loader)
    return batches


def check_map_style(where: str, dataset: object) -> None:
    """Refuse a data set without numbered samples."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        hint = "Give it `__len__`, make it an IterableDataset, or pass a function draw(generator)."
        invalid_type(where, "a map-style data set, which has a length", dataset, hint)
    if len(dataset) == 0:  # type: ignore[arg-type]
        invalid_value(where, "at least one sample", "an empty data set")


def _plan(loader: DataLoader[Any]) -> tuple[list[Any], int]:
    """Every index that the loader may visit, in order, and the largest batch."""
    batch_sampler: Any = loader.batch_sampler
    if type(batch_sampler) is not BatchSampler:
        batches = [list(batch) for batch in islice(batch_sampler, len(loader))]
        return sorted(set(chain.from_iterable(batches))), max(map(len, batches), default=1)
    sampler: Any = batch_sampler.sampler
    if isinstance(sampler, (SequentialSampler, RandomSampler)):
        return list(range(len(sampler.data_source))), batch_sampler.batch_size
    if isinstance(sampler, WeightedRandomSampler):
        return list(range(len(sampler.weights))), batch_sampler.batch_size
    return sorted(set(islice(sampler, len(sampler)))), batch_sampler.batch_size
