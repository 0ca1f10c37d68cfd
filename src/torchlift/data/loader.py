"""Data sets of torch and their loaders: with numbered samples, or only to be read from the beginning."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, NoReturn

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
from torchlift.data.recut import recut
from torchlift.data.tensors import clip_size, parts


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


#: Samples per batch of a stream without a length, where no size is given.
BATCH = 100


class IterableBatches(Batches):
    """The batches of a stream in its own order, which starts again after its end.

    Global random numbers depend on the seed and the epoch only, as those of `LoaderBatches`; a stream with
    `set_epoch` is told the epoch. Asking for batch after batch keeps one iterator going; any other order starts the
    epoch again and drops batches up to the one asked for. If the length is not known, epoch 0 is read to find it.

    Every epoch has the same number of batches, given by `__len__` or else by the first epoch; one that differs is
    refused. A stream that never ends has one endless epoch and is never `sized`; `ordered` then never ends either.
    With several workers `__len__` is not used, since it does not say how samples are divided among them.

    `ordered` gives epoch 0 as the loader reads it.

    Arguments:
        loader: of an `IterableDataset` whose `__iter__` returns a new iterator each time. With batch_size=None its
            items are batches already.
        seed: of all random numbers.
        like: a parameter of the network: inputs have its dtype, and batches are moved to its device.
        where: what error messages call the data.
    """

    def __init__(
        self, loader: DataLoader[Any], *, seed: int = 0, like: Tensor | None = None, where: str = "data"
    ) -> None:
        if not isinstance(loader, DataLoader) or not isinstance(loader.dataset, IterableDataset):
            invalid_type(where, "a DataLoader of an IterableDataset", getattr(loader, "dataset", loader))
        check_workers(where, loader)
        self.loader, self.like, self.where = collating(loader, like), like, where
        self.seed = check_size("seed", seed, minimum=0)
        _check_iterator(where, loader.dataset, self.seed)
        self._length = _declared(loader)
        self._last = (0, self._start())
        self.batch_size = loader.batch_size or len(self._last[1].y)
        self._example = next(parts(self._last[1], 1))

    @property
    def sized(self) -> bool:
        return self._length is not None

    @property
    def samples(self) -> int:  # type: ignore[override]
        return self._known()[0]

    @property
    def per_epoch(self) -> int:  # type: ignore[override]
        return self._known()[1]

    def batch(self, count: int) -> Batch:
        count = check_size("count", count, minimum=0)
        if self._last[0] != count:
            self._last = (count, self._draw(count))
        return self._last[1]

    def ordered(self, size: int | None = None) -> Iterator[Batch]:
        return recut(self._epoch_0(), self.batch_size if size is None else check_size("batch_size", size))

    def example(self) -> Batch:
        return self._example

    def _start(self) -> Batch:
        """Batch 0, after which the first epoch goes on."""
        self._pass = running = Pass(self.loader, 0, self.seed)
        batch = self._next(running)
        if batch is None:
            hint = "`drop_last` leaves nothing of less than one batch." if self.loader.drop_last else ""
            invalid_value(self.where, "at least one batch", "an empty stream", hint)
        self._check_last(running)
        return batch

    def _draw(self, count: int) -> Batch:
        """Batch number `count`; the batches before it in its epoch are dropped."""
        epoch, position = (0, count) if self._length is None else divmod(count, self._length[1])
        running, self._pass = self._pass, None  # an error leaves none that has lost count
        if running is None or running.epoch != epoch or running.drawn > position:
            running = Pass(self.loader, epoch, self.seed)
        batch = None
        while running.drawn <= position:
            batch = self._next(running)
            if batch is None:
                self._end(running)
                return self._draw(count)  # in a later epoch, now that the length is known
        assert batch is not None  # `drawn` was at most the position
        self._check_last(running)
        self._pass = running
        return batch

    def _epoch_0(self) -> Iterator[Batch]:
        running = Pass(self.loader, 0, self.seed)
        while (batch := self._next(running)) is not None:
            yield batch
        self._end(running)

    def _next(self, running: Pass) -> Batch | None:
        """The next batch of a pass; None after the last."""
        item = running.draw()
        if item is END:
            return None
        batch = read_batch(f"{self.where} epoch {running.epoch} batch {running.drawn - 1}", item, self.like)
        running.samples += len(batch.y)
        return batch

    def _check_last(self, running: Pass) -> None:
        """Refuse an epoch that goes on after the last batch that it should have."""
        if self._length is None or running.drawn < self._length[1]:
            return
        if running.drawn > self._length[1] or running.draw() is not END:
            self._refuse(running.epoch, f"more than {self._length[1]}")

    def _end(self, running: Pass) -> None:
        """Take the length from a pass that has ended, or compare it."""
        if self._length is None:
            self._length = (running.samples, running.drawn)
        elif running.drawn != self._length[1]:
            self._refuse(running.epoch, str(running.drawn))

    def _known(self) -> tuple[int, int]:
        """Samples and batches per epoch."""
        if self._length is None:
            hint = "Give the data set `__len__`, or end the training by steps or a time limit."
            invalid_value(self.where, "a data set of known length", "a stream whose end has not been seen", hint)
        return self._length

    def _refuse(self, epoch: int, got: str) -> NoReturn:
        length = "as `__len__` says" if _declared(self.loader) else "as many as the first"
        hint = f"Every epoch has the same number of batches, {length}: `__iter__` starts from the beginning each time."
        invalid_value(f"{self.where} epoch {epoch}", f"{self._known()[1]} batches", got, hint)


def stream_loader(dataset: IterableDataset[Any], batch_size: int | None) -> DataLoader[Any]:
    """A loader of batches; without a size all samples at once, or `BATCH` of a stream without a length."""
    samples = _samples(dataset)
    if samples is None:
        return DataLoader(dataset, BATCH if batch_size is None else check_size("batch_size", batch_size))
    return DataLoader(dataset, clip_size(batch_size, max(samples, 1)))


def _samples(dataset: object) -> int | None:
    """What `__len__` says, if there is one."""
    try:
        return len(dataset)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None


def _declared(loader: DataLoader[Any]) -> tuple[int, int] | None:
    """Samples and batches per epoch, if the stream has a length that says how many batches there are."""
    samples, size = _samples(loader.dataset), loader.batch_size
    if samples is None or size is None or loader.num_workers > 1:
        return None
    batches = samples // size if loader.drop_last else -(-samples // size)
    return min(samples, batches * size), batches


def _check_iterator(where: str, dataset: IterableDataset[Any], seed: int) -> None:
    """Refuse a stream that cannot be read twice at the same time, for training and for evaluation."""
    with Stream(epoch_seed(seed, 0)).active():
        same = iter(dataset) is iter(dataset)
    if same:
        hint = "Write `__iter__` with yield, so that every call starts from the beginning."
        invalid_value(where, "a stream whose __iter__ returns a new iterator each time", "the same one twice", hint)
