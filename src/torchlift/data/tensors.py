"""Batches of tensors: all samples at hand, or drawn anew by a function for every epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor

from torchlift.core.checks import check_size
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.data.base import Batch, Batches, select_samples
from torchlift.data.passes import Stream, epoch_generator, epoch_seed, permutation
from torchlift.data.read import read_batch
from torchlift.operators.context import Context, map_context


class TensorBatches(Batches):
    """Tensors: each epoch visits every sample once, in an order drawn from the seed.

    Arguments:
        y, x: inputs (B, …) and targets (B, …). Tensors are not copied, arrays of numpy are.
        context: per-sample context of the operators, such as one mask per image.
        batch_size: samples per batch, at most all; None for all of them as they are, in their own order.
        seed: of the orders.
        like: a parameter of the network: inputs have its dtype, and all tensors are moved to its device.
        where: what error messages call the data.
    """

    def __init__(
        self,
        y: Tensor,
        x: Tensor,
        context: Context = None,
        *,
        batch_size: int | None = None,
        seed: int = 0,
        like: Tensor | None = None,
        where: str = "data",
    ) -> None:
        self.all = read_batch(where, (y, x, context), like)
        self.samples = len(self.all.y)
        self.shuffled = batch_size is not None
        self.batch_size = clip_size(batch_size, self.samples)
        self.per_epoch = batches_per_epoch(self.samples, self.batch_size)
        self.seed = check_size("seed", seed, minimum=0)
        self._order: tuple[int, Tensor] | None = None

    def batch(self, count: int) -> Batch:
        if type(count) is not int or count < 0:  # the usual case makes no calls, on the path of every step
            count = check_size("count", count, minimum=0)
        epoch, position = divmod(count, self.per_epoch)
        return take(self.all, self._order_of(epoch), position, self.batch_size) if self.shuffled else self.all

    def indices(self, count: int) -> Tensor:
        epoch, position = divmod(check_size("count", count, minimum=0), self.per_epoch)
        return places(self._order_of(epoch), position, self.batch_size)

    def ordered(self, size: int | None = None) -> Iterator[Batch]:
        return parts(self.all, clip_size(size, self.batch_size if size is None else self.samples))

    def _order_of(self, epoch: int) -> Tensor:
        if not self.shuffled:
            return torch.arange(self.samples, device=self.all.y.device)
        if self._order is None or self._order[0] != epoch:
            order = permutation(self.samples, epoch_generator(self.seed, epoch))
            self._order = (epoch, order.to(self.all.y.device))
        return self._order[1]


def clip_size(size: int | None, most: int) -> int:
    """A batch size >= 1, at most `most`; None for `most`."""
    return most if size is None else min(check_size("batch_size", size), most)


def batches_per_epoch(samples: int, size: int) -> int:
    """One sample that is left over joins the last batch: normalisation over a batch needs two or more."""
    return -(-samples // size) - (samples > size and samples % size == 1)


def places(order: Tensor, position: int, size: int) -> Tensor:
    """Those of batch number `position` of an epoch in this order."""
    end = (position + 1) * size
    return order[position * size : end + (size > 1 and len(order) - end == 1)]


def take(data: Batch, order: Tensor, position: int, size: int) -> Batch:
    """The samples of batch number `position` of an epoch in this order."""
    chosen = places(order, position, size)
    context = data.context
    if context is not None:
        context = map_context(context, lambda tensor: tensor.index_select(0, chosen))
    batch = (data.y.index_select(0, chosen), data.x.index_select(0, chosen), context)
    return Batch._make(batch)  # past the checks of the constructor, on the path of every step


def parts(data: Batch, size: int) -> Iterator[Batch]:
    """All samples in their own order, in views of at most `size`."""
    for first in range(0, len(data.y), size):
        yield select_samples(data, slice(first, first + size))


Draw: TypeAlias = Callable[[torch.Generator], tuple[Any, ...]]


class DrawnBatches(Batches):
    """A function of a generator, called once per epoch: draw(generator) = (inputs, targets[, context]).

    The same generator then draws the order of the samples, so a function that
    draws nothing gives the batches of `TensorBatches`. `ordered` gives the
    first epoch's draw, which is kept.

    Arguments:
        draw: all samples of one epoch; their shapes are the same in each. The generator is on the CPU.
        batch_size: samples per batch, at most all; None for all of them, in their own order.
        seed: of generators and orders.
        like: a parameter of the network: inputs have its dtype, and all tensors are moved to its device.
        where: what error messages call the data.
    """

    def __init__(
        self,
        draw: Draw,
        *,
        batch_size: int | None = None,
        seed: int = 0,
        like: Tensor | None = None,
        where: str = "data",
    ) -> None:
        if not callable(draw):
            invalid_type(where, "a function of a generator", draw)
        self.draw, self.like, self.where = draw, like, where
        self.seed = check_size("seed", seed, minimum=0)
        self._first: Batch | None = None
        self._first, order = self._epoch(0)
        self._current = (0, self._first, order)
        self.samples = len(self._first.y)
        self.shuffled = batch_size is not None
        self.batch_size = clip_size(batch_size, self.samples)
        self.per_epoch = batches_per_epoch(self.samples, self.batch_size)

    @property
    def fresh(self) -> bool:
        return True

    def batch(self, count: int) -> Batch:
        epoch, position = divmod(check_size("count", count, minimum=0), self.per_epoch)
        if self._current[0] != epoch:
            self._current = (epoch, *self._epoch(epoch))
        _, data, order = self._current
        return take(data, order, position, self.batch_size) if self.shuffled else data

    def ordered(self, size: int | None = None) -> Iterator[Batch]:
        assert self._first is not None  # since the constructor
        return parts(self._first, clip_size(size, self.batch_size if size is None else self.samples))

    def _epoch(self, epoch: int) -> tuple[Batch, Tensor]:
        """The draw of an epoch, and the order of its samples."""
        generator = epoch_generator(self.seed, epoch)
        with Stream(epoch_seed(self.seed, epoch)).active():  # for functions that forget the generator
            item = self.draw(generator)
        where = f"{self.where} epoch {epoch}"
        data = read_batch(where, item, self.like)
        if self._first is not None:
            for name, now, before in (("inputs", data.y, self._first.y), ("targets", data.x, self._first.x)):
                if now.shape != before.shape:
                    expected = f"shape {tuple(before.shape)}, as in epoch 0"
                    invalid_value(f"{where} {name}", expected, tuple(now.shape), "Every epoch draws as many samples.")
        return data, permutation(len(data.y), generator).to(data.y.device)
