"""How far the lifted variables are moved to either side, and how that adapts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.core.checks import check_like, check_number, check_positive
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.prox import Identity, ProximalActivation

#: Entries of a layer that are treated together: 128 KiB in single precision.
CHUNK = 1 << 15


@dataclass(frozen=True)
class Nudge:
    """How far each layer is moved to either side.

        s = m · γ · max(std v, floor) / rms g,   g the signal that arrives at the layer

    with one multiplier m ≥ 1 per layer, which grows while fewer than `share` of
    the layer's residuals differ from zero and relaxes towards 1 otherwise. So
    σ is probed over about a γ-th of the spread of its arguments, and further
    where it is flat.

    Arguments:
        gamma: γ > 0.
        floor: least spread, for layers that hardly vary yet.
        share: least share of non-zero residuals, in [0, 1].
        growth: factor ≥ 1 of m while there are fewer.
        relax: divisor ≥ 1 of m otherwise.
        limit: largest m, for layers that cannot be woken.
        fixed: s itself, for all layers; nothing is measured and m is left alone.
    """

    gamma: float = 0.1
    floor: float = 0.03
    share: float = 0.1
    growth: float = 2.0
    relax: float = 1.2
    limit: float = 1e6
    fixed: float | None = None

    def __post_init__(self) -> None:
        check_positive("Nudge gamma", self.gamma)
        check_positive("Nudge floor", self.floor)
        if not 0 <= check_number("Nudge share", self.share) <= 1:
            invalid_value("Nudge share", "a number in [0, 1]", self.share)
        for name in ("growth", "relax", "limit"):
            if check_number(f"Nudge {name}", getattr(self, name)) < 1:
                invalid_value(f"Nudge {name}", "a number >= 1", getattr(self, name))
        if self.fixed is not None:
            check_positive("Nudge fixed", self.fixed)

    def size(self, multiplier: Tensor, v: Tensor, rms: Tensor) -> Tensor:
        """s as a 0-d tensor, for a signal of the given size; finite where the signal vanishes."""
        if self.fixed is not None:
            return torch.full_like(multiplier, self.fixed)
        tiny = torch.finfo(v.dtype).tiny ** 0.5
        return multiplier * self.gamma * _spread(v).clamp(min=self.floor) / rms.clamp(min=tiny)

    def begin(self, activation: ProximalActivation, v: Tensor, rms: Tensor) -> Callable[[Tensor], Tensor]:
        """`size` as a function of the multiplier, so that processes can exchange what it needs before it is called."""
        if isinstance(activation, Identity):
            return torch.zeros_like  # nothing is nudged
        return lambda multiplier: self.size(multiplier, v, rms)

    def adapt(self, multipliers: Tensor, awake: Tensor, rms: Tensor) -> Tensor:
        """m for the next sweep, from the share of non-zero residuals and the size of the signal, all (J,)."""
        if self.fixed is not None:
            return multipliers
        # A layer without a signal says nothing about σ and must not grow for ever.
        asleep = (awake < self.share) & (rms > 0)
        grown, relaxed = multipliers * self.growth, multipliers / self.relax
        return torch.where(asleep, grown.clamp(max=self.limit), relaxed.clamp(min=1.0))

    def response(self, activation: ProximalActivation, v: Tensor, signal: Tensor, multiplier: Tensor) -> Response:
        """What the layer does when a signal arrives; v and the signal are left alone."""
        if isinstance(activation, Identity):
            zero = torch.zeros_like(multiplier)
            return Response(signal, zero, torch.ones_like(multiplier), {})
        rms = root_mean_square(signal)
        size = self.size(multiplier, v, rms)
        above, below = torch.addcmul(v, signal, size), torch.addcmul(v, signal, size, value=-1)
        high, low = activation.conjugate_slopes(above), activation.conjugate_slopes(below)
        slopes = {name: (slope - low[name]).mul_(0.5 / size) for name, slope in high.items()}
        return self.differences(activation, above, below, size, rms, slopes)

    def differences(
        self,
        activation: ProximalActivation,
        above: Tensor,
        below: Tensor,
        size: Tensor,
        rms: Tensor,
        slopes: dict[str, Tensor],
    ) -> Response:
        """R from v + s g and v − s g, whose memory is overwritten."""
        residual = two_sided(activation, above, below).mul_(0.5 / size)
        awake = torch.ones_like(rms) if self.fixed is not None else share_of_nonzero(residual, scratch=below)
        return Response(residual, rms, awake, slopes)


@dataclass(frozen=True, eq=False)
class Response:
    """What a nudged layer does.

    Arguments:
        residual: R = [σ(v + s g) − σ(v − s g)] / (2s).
        rms: root mean square of g; 0 where nothing was nudged.
        awake: share of the entries of R that are not zero.
        slopes: derivatives of Σ [Φ*(v + s g) − Φ*(v − s g)] / (2s) in the learned tensors of σ.
    """

    residual: Tensor
    rms: Tensor
    awake: Tensor
    slopes: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class NudgeState:
    """One multiplier per layer, (J,); all ones at the start."""

    multipliers: Tensor


def multipliers(depth: int, state: NudgeState | None, like: Tensor) -> Tensor:
    """The multipliers of a state made for `depth` layers; ones without a state."""
    if state is None:
        return like.new_ones(depth)
    if not isinstance(state, NudgeState):
        invalid_type("backward_sweep state", "the NudgeState of an earlier sweep", state)
    if tuple(state.multipliers.shape) != (depth,):
        invalid_value("backward_sweep state", f"{depth} multipliers, one per layer", len(state.multipliers))
    return check_like("backward_sweep state", state.multipliers, like)


def two_sided(activation: ProximalActivation, above: Tensor, below: Tensor) -> Tensor:
    """σ(above) − σ(below), written over `above`.

    Some rows at a time, so that the values of σ stay in the cache and need no
    new memory, which would cost more than the arithmetic.
    """
    rows = max(1, CHUNK * len(above) // above.numel()) if _rows_apart(activation, above) else len(above)
    for high, low in zip(above.split(rows), below.split(rows), strict=True):
        torch.sub(activation(high), activation(low), out=high)
    return above


def share_of_nonzero(residual: Tensor, scratch: Tensor) -> Tensor:
    """0-d; twenty times as fast as `count_nonzero` where zeros are scattered. Overwrites `scratch`."""
    return torch.ne(residual, 0, out=scratch).mean()


def root_mean_square(signal: Tensor) -> Tensor:
    return torch.linalg.vector_norm(signal) / signal.numel() ** 0.5


def _rows_apart(activation: ProximalActivation, v: Tensor) -> bool:
    """Whether σ treats samples one by one and holds nothing that runs along an axis."""
    per_channel = any(isinstance(value, Tensor) and value.ndim > 0 for value in vars(activation).values())
    return not per_channel and (activation.dim is None or activation.dim % v.ndim != 0)


def _spread(v: Tensor) -> Tensor:
    """Standard deviation over all entries, by one pass each for the mean and the square."""
    return (root_mean_square(v).square() - v.mean().square()).clamp(min=0).sqrt()
