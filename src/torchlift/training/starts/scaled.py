"""Networks whose outputs are on another scale than the targets: smaller weights, or an output layer that matches."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchlift.data import Batch
from torchlift.functions.losses import Loss
from torchlift.networks import Chain
from torchlift.sweeps import parameter_groups
from torchlift.training.constant_answer import constant_loss
from torchlift.training.modules import apply, in_mode
from torchlift.training.starts.draws import weight_of
from torchlift.training.starts.recording import AFFINE, affine_hooks

#: A start explodes if its loss is so many times that of the best constant answer: an answer of zero to targets in
#: [0, 1] has four times that, and is healthy. A remedy has to make the loss so many times smaller.
EXPLODING, HELPING = 10.0, 3.0
#: Factors are tried in these steps, while each leaves at most this part of the loss of the one before.
STEP, FALLING, TRIED = 2**-0.5, 0.9, 40
#: The factor is the largest one with at most so many times the least loss: smaller weights only make signals weaker.
ENOUGH = 1.2


def explodes(network: nn.Module, probe: Batch, loss: Loss) -> bool:
    """Whether the outputs are so far off that the best constant answer is better by far."""
    return mean_loss(network, loss, probe) > EXPLODING * constant_loss(loss, probe.x, probe.x)


@torch.no_grad()
def scaled_start(network: nn.Module, probe: Batch, loss: Loss) -> float:
    """Multiply weights and biases of all layers by one factor, such that the outputs are no longer too large.

    A network of L layers of too large a gain, or one layer that is applied L times, amplifies by the L-th power of
    it, so that a moderate factor suffices. Numbers that no layer owns stay as they are, such as thresholds, step sizes
    and normalisations.

    Returns:
        The factor; 1 where no factor makes the loss smaller by `HELPING`, and nothing is changed.
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
    if not HELPING * least < losses[1.0]:
        factor = 1.0
    scale(factor)
    return factor


class _Output(NamedTuple):
    """The affine layer whose output a network returns, and that output.

    Arguments:
        name: of the layer.
        weight, bias: its parameters, the bias as a vector.
        axis: of the output that counts its units.
        values: the output on some samples.
    """

    name: str
    weight: Tensor
    bias: Tensor
    axis: int
    values: Tensor


@torch.no_grad()
def matched_start(network: nn.Module, probe: Batch, loss: Loss) -> str | None:
    """Scale and shift the output layer, such that outputs have the spread of the targets and, unit by unit, their mean.

    For targets far from zero or of another size, such as prices.

    Returns:
        The name of the layer; None where the output is not that of an affine layer with a bias, called once, or where
        the loss does not become smaller by `HELPING`. Then nothing is changed.
    """
    layer = _output_layer(network, probe)
    if layer is None or probe.x.shape != layer.values.shape:
        return None
    weight, bias = layer.weight.clone(), layer.bias.clone()
    before = float(loss.mean(layer.values, probe.x))
    values, targets = (t.movedim(layer.axis, 0).flatten(1) for t in (layer.values, probe.x.to(layer.values)))
    centres, means = values.mean(1), targets.mean(1)
    spreads = [float((t - m[:, None]).square().mean().sqrt()) for t, m in ((values, centres), (targets, means))]
    factor = spreads[1] / spreads[0] if min(spreads) > 0 else 1.0
    layer.weight.mul_(factor)
    layer.bias.copy_(factor * bias + means - factor * centres)
    if HELPING * mean_loss(network, loss, probe) < before:
        return layer.name
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)
    return None


def _output_layer(network: nn.Module, probe: Batch) -> _Output | None:
    calls: list[tuple[str, nn.Module, Tensor]] = []
    with affine_hooks(network, lambda *call: calls.append(call)), in_mode(network, False):
        values = apply(network, probe.y, probe.context)
    if isinstance(network, Chain):
        last = network.layers()[-1]
        if last.name is None or last.bias is None:
            return None
        return _Output(last.name, weight_of(last), last.bias.view(-1), 1, values)
    place = values.data_ptr(), values.numel()
    for name, layer, made in calls:
        bias = getattr(layer, "bias", None)
        alone = sum(each is layer for _, each, _ in calls) == 1
        if (made.data_ptr(), made.numel()) == place and bias is not None and alone:
            return _Output(name, layer.get_parameter("weight"), bias, AFFINE[type(layer)], values)
    return None


@torch.no_grad()
def mean_loss(network: nn.Module, loss: Loss, data: Batch) -> float:
    """In evaluation mode; infinite where it is not a number."""
    with in_mode(network, False), torch.random.fork_rng(devices=()):
        value = float(loss.mean(apply(network, data.y, data.context), data.x))
    return value if math.isfinite(value) else math.inf
