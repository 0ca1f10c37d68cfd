"""The contract of training data: batch number k is the same whenever it is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from torchlift.operators.context import Context, select_context


class Batch(NamedTuple):
    """Inputs y, targets x, and the per-sample context of the operators (a mask, …) or None."""

    y: Tensor
    x: Tensor
    context: Context = None

    @property
    def inputs(self) -> Tensor:
        return self.y

    @property
    def targets(self) -> Tensor:
        return self.x


def select_samples(batch: Batch, which: slice | Tensor) -> Batch:
    """Some of the samples."""
    return Batch(batch.y[which], batch.x[which], select_context(batch.context, which))


class Batches(ABC):
    """Samples in numbered batches, epoch after epoch.

    A subclass sets the attributes once:

        samples: in all, as many as `ordered` gives.
        batch_size: samples per batch; the last batch of an epoch may be smaller, or larger by a single sample.
        per_epoch: batches per epoch.

    Of a stream without a length `samples` and `per_epoch` are unknown until an epoch has been read to its end. Until
    then `sized` is False, and reading them raises an error that says what to do.
    """

    samples: int
    batch_size: int
    per_epoch: int

    @property
    def sized(self) -> bool:
        """True if `samples` and `per_epoch` are known."""
        return True

    @property
    def fresh(self) -> bool:
        """True if samples are drawn anew for every epoch."""
        return False

    @abstractmethod
    def batch(self, count: int) -> Batch:
        """Batch number `count`, from 0, over all epochs.

        The same count gives the same numbers, whatever was asked for before and
        whoever else draws random numbers, so that runs can be resumed.
        """

    @abstractmethod
    def ordered(self, size: int | None = None) -> Iterator[Batch]:
        """Every sample once, in the data's own order, in parts of `size` (`batch_size` by default)."""

    def indices(self, count: int) -> Tensor | None:
        """The places of batch number `count`'s samples in `ordered`; None where a sample is not the same in each epoch.

        What is kept for each sample from epoch to epoch, such as lifted variables, is found by them.
        """
        return None

    def example(self) -> Batch:
        """One sample, for shapes and dtypes."""
        return next(self.ordered(1))
