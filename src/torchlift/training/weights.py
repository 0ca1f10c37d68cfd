"""How a network starts: six methods to set its weights."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor

from torchlift.core.checks import check_batch, check_finite, check_like, check_number, check_positive, check_size
from torchlift.core.errors import TorchliftError, invalid_type, invalid_value
from torchlift.functions.losses import CrossEntropy, Loss, SquaredError
from torchlift.networks import Chain
from torchlift.training.balance import balance
from torchlift.training.draws import DRAWS, LayerStart
from torchlift.training.layerwise import Sample, layer_wise
from torchlift.training.pass_through import Range, pass_through

Data: TypeAlias = Tensor | Sequence[Tensor]

#: The methods, with the options that each of them has.
METHODS: dict[str, tuple[str, ...]] = {
    "default": (),
    "he": ("gain",),
    "orthogonal": ("gain",),
    "pass-through": ("margin",),
    "layer-wise": ("loss", "samples", "ridge"),
    "balanced": ("samples",),
}


@torch.no_grad()
def initialise_weights(
    network: Chain,
    how: str = "default",
    data: Data | None = None,
    *,
    generator: torch.Generator | None = None,
    gain: float | None = None,
    margin: float | None = None,
    loss: Loss | None = None,
    samples: int | None = None,
    ridge: float | None = None,
) -> tuple[LayerStart, ...]:
    """Set the weights and biases of a chain (MLP, ResNet, Perceptron, or what `lift` made).

    - "default": as torch's own modules start.
    - "he": normal with variance gain²/inputs, biases 0; for ReLU and the like.
    - "orthogonal": orthogonal matrices (convolutions flattened), biases 0.
    - "pass-through": the network hands its input on. W is the identity and b
      undoes σ on the range of the inputs, exactly where σ permits it; branches
      of residual blocks are zero. Widths should not shrink, or entries are lost.
    - "layer-wise": each layer is fitted to the data that the ones before it
      make; where that is impossible it is scaled to be alive, and where it
      gains nothing over a fitted output behind "pass-through", that is used. For
      inverse problems, and for deep networks whose activations are zero nearly
      everywhere under random weights.
    - "balanced": the current weights, each layer's multiplied by one number and
      its bias set such that it responds to the data. The output is kept.

    See `pass_through`, `layer_wise` and `balance` in this package for the mathematics.

    Returns:
        One `LayerStart` per layer, with the `error` that remains where a layer
        was to meet something: for "pass-through" the largest |σ(t + b) − t| over
        the values t that arrive, 0 where it is exact.

    Arguments:
        network: must not have frozen parameters.
        how: the way.
        data: y, or (y, x). "pass-through" takes the range of y, [0, 1] without
            data; "layer-wise" needs (y, x) and "balanced" needs y; the others do not look at it.
        generator: source of randomness, on the CPU; torch's default otherwise.
        gain: factor of the weights; √2 for "he" and 1 for "orthogonal" by default.
        margin: taken off every b of "pass-through", so that each soft-threshold
            or ReLU shrinks its input by that much and training starts with
            some noise removed; 0 by default.
        loss: of the output layer in "layer-wise"; cross-entropy for integer
            labels, squared error otherwise.
        samples: "layer-wise" and "balanced" look at so many, drawn at random; 5,000 and 500 by default.
        ridge: strength of the pull towards pass-through in "layer-wise"; 1 by default.
    """
    _check_network(network)
    way = _check_way(how)
    options = {"gain": gain, "margin": margin, "loss": loss, "samples": samples, "ridge": ridge}
    for name, value in options.items():
        if value is not None and name not in METHODS[way]:
            able = [other for other in METHODS if name in METHODS[other]]
            invalid_value(f"initialise_weights {name}", f"none for {way!r}", value, f"It is an option of {able}.")
    if way == "pass-through":
        shrink = 0.0 if margin is None else check_number("initialise_weights margin", margin)
        values = _range(network, data)
        with _unchanged_if_refused(network):
            return pass_through(network, values, shrink, generator)
    if way == "layer-wise":
        count = 5000 if samples is None else check_size("initialise_weights samples", samples)
        strength = 1.0 if ridge is None else check_positive("initialise_weights ridge", ridge)
        return layer_wise(network, _sample(network, data, loss, count, generator), strength, generator)
    if way == "balanced":
        count = 500 if samples is None else check_size("initialise_weights samples", samples, minimum=2)
        y = _some_inputs(network, data, count, generator)
        with _unchanged_if_refused(network):
            return balance(network, y)
    draw, usual = DRAWS[way]
    factor = usual if gain is None else check_positive("initialise_weights gain", gain)
    layers = [layer for layer in network.layers() if layer.name is not None]
    for layer in layers:
        draw(layer, factor, generator)
    return tuple(LayerStart(str(layer.name), way) for layer in layers)


@contextmanager
def _unchanged_if_refused(network: Chain) -> Iterator[None]:
    """A layer far from the input may be one that cannot be set as asked: then the others get their weights back."""
    before = [parameter.detach().clone() for parameter in network.parameters()]
    try:
        yield
    except TorchliftError:
        for parameter, value in zip(network.parameters(), before, strict=True):
            parameter.copy_(value)
        raise


def _check_network(network: object) -> None:
    if not isinstance(network, Chain):
        hint = "Unrolled and shallow networks draw their weights when they are built."
        invalid_type("initialise_weights network", "a chain: MLP, ResNet, Perceptron or lift(...)", network, hint)
    frozen = [name for name, parameter in network.named_parameters() if not parameter.requires_grad]
    if frozen:
        hint = "Initialise before freezing, or call `.requires_grad_()`."
        invalid_value("initialise_weights network", "parameters that may change", f"frozen ones: {frozen}", hint)


def _check_way(how: object) -> str:
    if not isinstance(how, str):
        invalid_type("initialise_weights how", "a name such as 'layer-wise'", how)
    if how not in METHODS:
        near = difflib.get_close_matches(how.lower().replace("_", "-"), list(METHODS), n=1, cutoff=0.4)
        hint = f"Did you mean {near[0]!r}?" if near else ""
        invalid_value("initialise_weights how", f"one of {', '.join(map(repr, METHODS))}", repr(how), hint)
    return how


def _range(network: Chain, data: Data | None) -> Range:
    """The least and the largest input."""
    if data is None:
        return 0.0, 1.0
    y = _inputs(network, _first(data))
    low, high = float(y.min()), float(y.max())
    if not high > low:
        invalid_value("initialise_weights data", "inputs that differ", f"all of them {low}")
    return low, high


def _sample(
    network: Chain, data: Data | None, loss: Loss | None, count: int, generator: torch.Generator | None
) -> Sample:
    """Some pairs of the data, and the loss."""
    if data is None:
        invalid_value("initialise_weights data", "(y, x) for 'layer-wise'", "none", "Try data=(inputs, targets).")
    if isinstance(data, Tensor) or not isinstance(data, Sequence) or len(data) != 2:
        invalid_type("initialise_weights data", "a pair (y, x) for 'layer-wise'", data)
    y, x = _inputs(network, data[0]), data[1]
    if loss is None:
        labels = isinstance(x, Tensor) and not x.is_floating_point()
        loss = CrossEntropy() if labels else SquaredError()
    if not isinstance(loss, Loss):
        invalid_type("initialise_weights loss", "a Loss", loss)
    if not loss.smooth:
        invalid_value("initialise_weights loss", "a smooth loss", type(loss).__name__, "Use SquaredError or Huber.")
    loss.check((len(y), *network.out_shape), x)
    chosen = torch.randperm(len(y), generator=generator)[:count]
    return Sample(y[chosen.to(y.device)], x[chosen.to(x.device)].to(y.device), loss)


def _some_inputs(network: Chain, data: Data | None, count: int, generator: torch.Generator | None) -> Tensor:
    if data is None:
        invalid_value("initialise_weights data", "inputs for 'balanced'", "none", "Try data=inputs.")
    y = _inputs(network, _first(data))
    return y[torch.randperm(len(y), generator=generator)[:count].to(y.device)]


def _first(data: Data) -> object:
    """y of (y, x), or y itself."""
    return data[0] if isinstance(data, Sequence) and len(data) else data


def _inputs(network: Chain, y: object) -> Tensor:
    where = "initialise_weights data, inputs"
    tensor = check_finite(where, check_batch(where, y, network.in_shape))
    return tensor if network.like is None else check_like(where, tensor, network.like)
