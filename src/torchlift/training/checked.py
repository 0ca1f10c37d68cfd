"""Batches that are only known when they are drawn, checked there and then."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from torch import Tensor, nn

from torchlift.core.checks import check_batch
from torchlift.core.errors import TorchliftError
from torchlift.data import Batch, Batches
from torchlift.functions.losses import Criterion, CrossEntropy, Loss
from torchlift.networks import Network
from torchlift.training.modules import example_output


def check_fit(where: str, network: nn.Module, loss: Loss, batch: Batch) -> Batch:
    """Inputs that the network takes and targets of the loss, every value of them; `where` begins the message."""
    try:
        if isinstance(network, Network):
            check_batch("inputs", batch.y, network.in_shape)
            out_shape = network.out_shape
        else:
            out_shape = tuple(example_output("network", network, batch).shape[1:])
        loss.check((len(batch.y), *out_shape), batch.x)
    except (TorchliftError, ValueError) as error:
        raise type(error)(f"{where}: {error}") from None
    return batch


class CheckedBatches(Batches):
    """The batches of a loader or a drawing function; one that does not fit is refused by its number.

    Arguments:
        batches: the data.
        network, loss: what they must fit.
        where: what error messages call the data.
    """

    def __init__(self, batches: Batches, network: nn.Module, loss: Loss, where: str) -> None:
        self.batches, self.network, self.loss, self.where = batches, network, loss, where
        self.batch_size = batches.batch_size

    @property
    def samples(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.batches.samples

    @property
    def per_epoch(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.batches.per_epoch

    @property
    def sized(self) -> bool:
        return self.batches.sized

    def batch(self, count: int) -> Batch:
        batch = self.batches.batch(count)  # after which the length of a stream may be known
        epoch, position = divmod(count, self.per_epoch) if self.sized else (0, count)
        return self._checked(f"epoch {epoch} batch {position}", batch)

    def ordered(self, size: int | None = None) -> Iterator[Batch]:
        for number, batch in enumerate(self.batches.ordered(size)):
            yield self._checked(f"in order, batch {number}", batch)

    def indices(self, count: int) -> Tensor | None:
        return self.batches.indices(count)

    def example(self) -> Batch:
        return self.batches.example()

    def _checked(self, which: str, batch: Batch) -> Batch:
        if isinstance(self.network, Network):
            return check_fit(f"{self.where} {which}", self.network, self.loss, batch)
        # of other modules the first batch was tried; they see the rest when it is their turn
        if self._classes and batch.x.device.type == "cpu" and not batch.x.is_floating_point():
            shape = (len(batch.x), self._classes, *batch.x.shape[1:])
            try:
                if isinstance(self.loss, Criterion):
                    self.loss.check_labels(shape, batch.x)
                elif isinstance(self.loss, CrossEntropy):
                    self.loss.check(shape, batch.x)
            except ValueError as error:
                raise type(error)(f"{self.where} {which}: {error}") from None
        return batch

    @cached_property
    def _classes(self) -> int:
        """Of outputs (B, classes, …), which labels are compared with; 0 for others."""
        output = example_output("network", self.network, self.batches.example())
        return output.shape[1] if output.ndim > 1 else 0
