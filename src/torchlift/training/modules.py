"""What training asks of any module, and batches that are only known when they are drawn, checked there and then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor, nn

from torchlift.core.checks import check_batch
from torchlift.core.errors import TorchliftError, invalid_value
from torchlift.data import Batch, Batches
from torchlift.data.base import select_samples
from torchlift.functions.losses import Criterion, CrossEntropy, Loss
from torchlift.networks import Network
from torchlift.operators import Context


def like(module: nn.Module) -> Tensor | None:
    """Some floating-point parameter, whose dtype and device inputs must have."""
    return next((parameter for parameter in module.parameters() if parameter.is_floating_point()), None)


def apply(module: nn.Module, y: Tensor, context: Context = None) -> Tensor:
    """The outputs; the context is given to modules that there is one for.

    Modules of one's own may begin with `x -= mean`: they get a copy, since the inputs are views of somebody's data.
    """
    if not isinstance(module, Network):
        y = y.clone()
    return module(y) if context is None else module(y, context)


@contextmanager
def in_mode(module: nn.Module, training: bool) -> Iterator[None]:
    """All parts in training or evaluation mode, and afterwards each in its own again."""
    modes = [(part, part.training) for part in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


@torch.no_grad()
def example_output(where: str, module: nn.Module, batch: Batch, samples: int = 8) -> Tensor:
    """The outputs of the first samples, in evaluation mode; what a module of one's own raises is told in a sentence."""
    y, _, context = select_samples(batch, slice(samples))
    try:
        with in_mode(module, False), torch.random.fork_rng(devices=()):
            output = apply(module, y, context)
    except TorchliftError:
        raise
    except Exception as error:
        name, reason = type(module).__name__, str(error).strip().splitlines()[0:1] or [type(error).__name__]
        hint = "Does it take the shape and the dtype of these inputs?"
        if context is not None:
            hint = "It is called with inputs and context: data of three parts are (inputs, targets, context)."
        shape = f"inputs of shape {tuple(y.shape)} and dtype {y.dtype}"
        invalid_value(where, f"data that {name} can be applied to", f"{shape}: {reason[0]}", hint)
    if not isinstance(output, Tensor):
        hint = "Wrap the module so that it returns the tensor that the loss compares with the targets."
        invalid_value(where, "a module that returns one tensor", f"a {type(output).__name__}", hint)
    if output.ndim == 0 or len(output) != len(y):
        invalid_value(where, f"one output per sample, shape ({len(y)}, …)", tuple(output.shape))
    return output


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

    @property
    def fresh(self) -> bool:
        return self.batches.fresh

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
