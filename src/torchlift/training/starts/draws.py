"""Random weights for one layer: torch's own, He's, orthogonal ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchlift.networks.chain import ChainLayer
from torchlift.networks.reader import Term
from torchlift.operators import ConvTranspose2d


@dataclass(frozen=True)
class LayerStart:
    """What `initialise_weights` did to one layer.

    Arguments:
        layer: its stack and its place there, such as "hidden.0[2]".
        way: "default", "he", "orthogonal", "identity", "zero", "fit", "scaled", "matched", "lsuv" or "kept".
        error: what is left where something was to be met: the largest
            |σ(t + b) − t| of "identity", the root mean square distance to the
            target of "fit" (the mean loss for the output layer); None otherwise.
    """

    layer: str
    way: str
    error: float | None = None


def default(layer: ChainLayer, gain: float, generator: torch.Generator | None) -> None:
    """W and b uniform in ±1/√n, as torch's modules start (kaiming_uniform with a = √5); n as torch counts it."""
    weight = weight_of(layer)
    bound = 1 / math.sqrt(weight[0].numel())
    for tensor in (weight, layer.bias):
        if tensor is not None:
            _draw(tensor, lambda t: nn.init.uniform_(t, -bound, bound, generator=generator))


def as_torch_draws(weight: Tensor) -> bool:
    """Whether a matrix can be such a draw: of other starts and of trained weights some entries lie beyond the bound."""
    size = math.sqrt(weight.shape[1])
    values = size * weight.detach().double()
    spread = float(3 * values.square().mean())
    return float(values.abs().max()) <= 1 + 1e-3 and abs(spread - 1) < 4 * math.sqrt(0.8 / weight.numel())


def he(layer: ChainLayer, gain: float, generator: torch.Generator | None) -> None:
    """W normal with variance gain²/n, n the number of inputs of a unit, and b = 0."""
    deviation = gain / math.sqrt(_inputs_of_a_unit(layer))
    _draw(weight_of(layer), lambda t: nn.init.normal_(t, 0.0, deviation, generator=generator))
    clear_bias(layer)


def orthogonal(layer: ChainLayer, gain: float, generator: torch.Generator | None) -> None:
    """W with orthogonal rows or columns, whichever fit, as a matrix (first axis, all others), and b = 0."""
    _draw(weight_of(layer), lambda t: nn.init.orthogonal_(t, gain, generator=generator))
    clear_bias(layer)


#: (function, default gain) by name.
DRAWS: dict[str, tuple[Callable[[ChainLayer, float, torch.Generator | None], None], float]] = {
    "default": (default, 1.0),
    "he": (he, math.sqrt(2)),
    "orthogonal": (orthogonal, 1.0),
}


def weighted(layers: Iterable[ChainLayer]) -> dict[str, ChainLayer]:
    """The layers that have weights, by name; between them may stand maps that only reshape or pool."""
    return {layer.name: layer for layer in layers if layer.name is not None}


def last_weighted(layers: Sequence[ChainLayer], term: Term) -> ChainLayer | None:
    """The last map of a term that has weights."""
    return next((layers[k] for k in reversed(term.layers) if layers[k].name is not None), None)


def weight_of(layer: ChainLayer) -> Tensor:
    """The weight of a layer that has one, as a view of the parameter."""
    return layer.operator.tensors()["weight"]


def clear_bias(layer: ChainLayer) -> None:
    if layer.bias is not None:
        layer.bias.zero_()


def _inputs_of_a_unit(layer: ChainLayer) -> float:
    operator, weight = layer.operator, weight_of(layer)
    if not isinstance(operator, ConvTranspose2d):
        return weight[0].numel()
    stride = operator.stride
    assert isinstance(stride, tuple)  # normalised by the operator
    # a pixel of the output meets every stride-th tap of the kernel only
    return weight[:, 0].numel() / (operator.groups * stride[0] * stride[1])


def _draw(target: Tensor, fill: Callable[[Tensor], Tensor]) -> None:
    """Filled on the CPU, where generators live, and in at least single precision, which orthogonal draws need."""
    dtype = torch.promote_types(target.dtype, torch.float32)
    target.copy_(fill(torch.empty(target.shape, dtype=dtype)))
