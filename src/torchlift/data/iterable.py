"""Data that can only be read from the beginning: an `IterableDataset`, or a loader of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from torchlift.core.checks import check_size
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.data.arrays import collating
from torchlift.data.base import Batch, Batches
from torchlift.data.passes import END, Pass, Stream, check_workers, epoch_seed
from torchlift.data.read import read_batch
from torchlift.data.recut import recut
from torchlift.data.tensors import clip_size, parts

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
