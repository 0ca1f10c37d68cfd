"""Batches that are only known when they are drawn, checked there and then."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from torchlift.core.checks import check_batch
from torchlift.core.errors import TorchliftError
from torchlift.data import Batch, Batches
from torchlift.losses import Loss
from torchlift.networks import Network


def check_fit(where: str, network: Network, loss: Loss, batch: Batch) -> Batch:
    """Inputs of the network's shape and targets of the loss, every value of them; `where` begins the message."""
    try:
        check_batch("y", batch.y, network.in_shape)
        loss.check((len(batch.y), *network.out_shape), batch.x)
    except (TorchliftError, ValueError) as error:
        raise type(error)(f"{where}: {error}") from None
    return batch


class CheckedBatches(Batches):
    """The batches of a loader or a drawing function; one that does not fit is refused by its number.

    Args:
        batches: the data.
        network, loss: what they must fit.
        where: what error messages call the data.
    """

    def __init__(self, batches: Batches, network: Network, loss: Loss, where: str) -> None:
        self.batches, self.network, self.loss, self.where = batches, network, loss, where
        self.samples, self.batch_size, self.per_epoch = batches.samples, batches.batch_size, batches.per_epoch

    def batch(self, count: int) -> Batch:
        epoch, position = divmod(count, self.per_epoch)
        return self._checked(f"epoch {epoch} batch {position}", self.batches.batch(count))

    def ordered(self, size: int | None = None) -> Iterator[Batch]:
        for number, batch in enumerate(self.batches.ordered(size)):
            yield self._checked(f"in order, batch {number}", batch)

    def indices(self, count: int) -> Tensor | None:
        return self.batches.indices(count)

    def example(self) -> Batch:
        return self.batches.example()

    def _checked(self, which: str, batch: Batch) -> Batch:
        return check_fit(f"{self.where} {which}", self.network, self.loss, batch)
