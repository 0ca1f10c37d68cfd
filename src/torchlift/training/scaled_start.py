"""Networks whose outputs are far too large at the start: all weights smaller by one factor."""

from __future__ import annotations

import math

import torch
from torch import nn

from torchlift.data import Batch
from torchlift.functions.losses import Loss
from torchlift.sweeps import parameter_groups
from torchlift.training.constant_answer import constant_loss
from torchlift.training.modules import apply, in_mode

#: A start explodes if its loss is so many times that of the best constant answer.
EXPLODING = 3.0
#: Factors are tried in these steps, while each leaves at most this part of the loss of the one before.
STEP, FALLING, TRIED = 2**-0.5, 0.9, 40
#: The factor is the largest one with at most so many times the least loss: smaller weights only make signals weaker.
ENOUGH = 1.2


def explodes(network: nn.Module, probe: Batch, loss: Loss) -> bool:
    """Whether the outputs are so large that the best constant answer is better by far."""
    return mean_loss(network, loss, probe) > EXPLODING * constant_loss(loss, probe.x, probe.x)


@torch.no_grad()
def scaled_start(network: nn.Module, probe: Batch, loss: Loss) -> float:
    """Multiply weights and biases of all layers by one factor, such that the outputs are no longer too large.

    A network of L layers of too large a gain, or one layer that is applied L times, amplifies by the L-th power of
    it, so that a moderate factor suffices. Numbers that no layer owns stay as they are, such as thresholds, step sizes
    and normalisations.

    Returns:
        The factor; 1 where no factor makes the loss smaller by `EXPLODING`, and nothing is changed.
    """
    owned = [p for group in parameter_groups(network) if group.get("layers", 0) for p in group["params"]]
    given = [parameter.detach().clone() for parameter in owned]

    def scale(factor: float) -> None:
        for parameter, value in zip(owned, given, strict=True):
            parameter.copy_(factor * value)

    losses = {1.0: mean_loss(network, loss, probe)}
    last = 1.0
    while owned and len(losses) <= TRIED:
        scale(last * STEP)
        losses[last * STEP] = mean_loss(network, loss, probe)
        if losses[last * STEP] > FALLING * losses[last] and math.isfinite(losses[last]):
            break
        last *= STEP
    least = min(losses.values())
    factor = max(factor for factor, value in losses.items() if value <= ENOUGH * least)
    if not EXPLODING * least < losses[1.0]:
        factor = 1.0
    scale(factor)
    return factor


@torch.no_grad()
def mean_loss(network: nn.Module, loss: Loss, data: Batch) -> float:
    """In evaluation mode; infinite where it is not a number."""
    with in_mode(network, False), torch.random.fork_rng(devices=()):
        value = float(loss.mean(apply(network, data.y, data.context), data.x))
    return value if math.isfinite(value) else math.inf
