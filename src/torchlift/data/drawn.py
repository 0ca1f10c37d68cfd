"""Data that is drawn anew for every epoch: fresh noise, fresh masks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor

from torchlift.core.checks import check_size
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.data.base import Batch, Batches
from torchlift.data.passes import Stream, epoch_generator, epoch_seed, permutation
from torchlift.data.read import read_batch
from torchlift.data.tensors import batches_per_epoch, clip_size, parts, take

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
