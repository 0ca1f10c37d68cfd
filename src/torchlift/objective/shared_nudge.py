"""Nudges for a batch whose samples are with many processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from torchlift.distributed import Share
from torchlift.objective.nudge import Nudge, root_mean_square
from torchlift.prox import Identity, ProximalActivation


@dataclass(frozen=True)
class SharedNudge(Nudge):
    """A nudge whose sizes are those of the whole batch: one small exchange per layer.

    Arguments:
        samples: which of the batch are here.
    """

    samples: Share | None = None

    @staticmethod
    def of(nudge: Nudge, share: Share | None) -> Nudge:
        """The same settings for the samples of all processes; the nudge itself where there is one process."""
        if share is None:
            return nudge
        return SharedNudge(**{field.name: getattr(nudge, field.name) for field in fields(Nudge)}, samples=share)

    def size(self, multiplier: Tensor, v: Tensor, rms: Tensor) -> Tensor:
        return super().size(multiplier, v, rms) if self.fixed is not None else self._sizes(v, rms)(multiplier)

    def begin(self, activation: ProximalActivation, v: Tensor, rms: Tensor) -> Callable[[Tensor], Tensor]:
        if self.fixed is not None or isinstance(activation, Identity):
            return super().begin(activation, v, rms)
        return self._sizes(v, rms)

    def _sizes(self, v: Tensor, rms: Tensor) -> Callable[[Tensor], Tensor]:
        """Begin to exchange what sizes depend on; the function waits for it."""
        assert self.samples is not None  # since `of`
        sizes = torch.stack([v.mean(), root_mean_square(v).square(), rms.square()])
        sums = self.samples.start_means(sizes)

        def size(multiplier: Tensor) -> Tensor:
            sums.wait()
            mean, square, signal = sizes
            spread = (square - mean.square()).clamp(min=0).sqrt()
            tiny = torch.finfo(v.dtype).tiny ** 0.5
            return multiplier * self.gamma * spread.clamp(min=self.floor) / signal.sqrt().clamp(min=tiny)

        return size

    def adapt(self, multipliers: Tensor, awake: Tensor, rms: Tensor) -> Tensor:
        assert self.samples is not None  # since `of`
        return super().adapt(multipliers, *self.samples.mean(torch.stack([awake, rms])))
