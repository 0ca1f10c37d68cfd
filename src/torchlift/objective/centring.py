"""Dense layers in coordinates in which weights and bias do not meet.

With ū the mean input of the batch and c = b + W ū, the layer is v = W(u − ū) + c.
Its gradients are

    ∇_W = Rᵀ(u − ū)/B = Rᵀu/B − mean(R) ūᵀ,   ∇_c = mean(R),

and a step (ΔW, Δc) is ΔW and Δb = Δc − ΔW ū in the old coordinates. A shift
of the inputs then changes nothing but the bias, and ∇_W no longer holds the
rank-one part that biased inputs add to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from torchlift.objective.sweep import Sweep


class Mean(NamedTuple):
    """ū of one dense layer."""

    weight_name: str
    bias_name: str
    layer: int
    inputs: Tensor


def centre(sweep: Sweep) -> tuple[Mean, ...]:
    """Overwrite the weight gradients of dense layers with a trained bias by their centred form; returns all ū."""
    means = []
    known = sweep.means or (None,) * len(sweep.layers)
    for layer, mean in zip(sweep.layers, known, strict=True):
        weight, bias = sweep.gradients.get(layer.weight_name), sweep.gradients.get(layer.bias_name or "")
        if layer.bias_name is None or weight is None or bias is None:
            continue
        mean = layer.inputs.mean(0) if mean is None else mean
        if not sweep.centred:
            weight[layer.index].addr_(bias[layer.index], mean, alpha=-1)
        means.append(Mean(layer.weight_name, layer.bias_name, layer.index, mean))
    return tuple(means)


def mean_inputs(means: Iterable[Mean], weight_name: str, count: int) -> Tensor:
    """ū of all `count` layers of a stack, at least one of which has it; zero where there is none, (count, n)."""
    found = {mean.layer: mean.inputs for mean in means if mean.weight_name == weight_name}
    nothing = torch.zeros_like(next(iter(found.values())))
    return torch.stack([found.get(layer, nothing) for layer in range(count)])


def centre_differences(differences: Mapping[str, Tensor], means: Iterable[Mean]) -> None:
    """Overwrite differences of b by those of c = b + W ū; the inverse of `uncentre`."""
    for weight_name, bias_name, layer, mean in means:
        differences[bias_name][layer].add_(differences[weight_name][layer] @ mean)


def uncentre(steps: Mapping[str, Tensor], means: Iterable[Mean]) -> None:
    """Overwrite the steps of c by steps of b."""
    for weight_name, bias_name, layer, mean in means:
        steps[bias_name][layer].sub_(steps[weight_name][layer] @ mean)
