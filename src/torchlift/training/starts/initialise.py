"""How a network starts: methods to set its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor, nn

from torchlift.core.checks import (
    check_batch,
    check_choice,
    check_finite,
    check_instance,
    check_like,
    check_number,
    check_positive,
    check_size,
    check_tensor,
)
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.data import Batch
from torchlift.functions.losses import CrossEntropy, Loss, LossLike, SquaredError, as_loss
from torchlift.networks import Chain, Network
from torchlift.training.modules import like
from torchlift.training.starts.chains import twin, unchanged_if_refused
from torchlift.training.starts.choose import HELD_OUT, Trial, choose, rescale
from torchlift.training.starts.draws import DRAWS, LayerStart, weighted
from torchlift.training.starts.identity import Range, identity_start
from torchlift.training.starts.layerwise import Sample, identity_fit, layer_wise
from torchlift.training.starts.lsuv import lsuv
from torchlift.training.starts.recording import lsuv_of_module

Data: TypeAlias = Tensor | Sequence[Tensor]

#: The methods, with the options that each of them has.
METHODS: dict[str, tuple[str, ...]] = {
    "default": (),
    "he": ("gain",),
    "orthogonal": ("gain",),
    "identity": ("margin",),
    "identity-fit": ("loss", "samples", "ridge"),
    "layer-wise": ("loss", "samples", "ridge"),
    "lsuv": ("samples",),
    "scaled": ("loss", "samples"),
    "matched": ("loss", "samples"),
}
#: Methods that take any module; the others take chains.
ANY_MODULE = ("lsuv", "scaled", "matched")
#: Other names of some of them.
ALIASES = {"pass-through": "identity", "balanced": "lsuv"}
#: Methods that look at inputs and targets, with their usual pull towards the identity.
RIDGE = {"identity-fit": 0.1, "layer-wise": 1.0}


@torch.no_grad()
def initialise_weights(
    network: nn.Module,
    data: Data | str | None = None,
    how: str | Data | None = None,
    *,
    generator: torch.Generator | None = None,
    gain: float | None = None,
    margin: float | None = None,
    loss: LossLike | None = None,
    samples: int | None = None,
    ridge: float | None = None,
) -> tuple[LayerStart, ...]:
    """Set the weights and biases of a network, by the data that it will see or by a method of one's choice.

    `initialise_weights(module, inputs)` or `initialise_weights(module, (inputs,
    targets))` looks for dead layers, which respond to no input, and revives
    them. With targets it scales weights whose outputs are far off, and with
    targets of the shape of the inputs it fits the network to them where that is
    better than the weights that it has and than the input itself. Other networks
    stay as they are. It is what `train` does by default, but for the short runs by
    which that compares starts, and serves any optimiser.

    The methods:

    - "default": as torch's own modules start.
    - "he": normal with variance gain²/inputs, biases 0; for ReLU and the like.
    - "orthogonal": orthogonal matrices (convolutions flattened), biases 0.
    - "identity" (or "pass-through"): the network hands its input on. W is the
      identity and b undoes σ on the range of the inputs, exactly where σ permits
      it; branches of residual blocks are zero. Widths should not shrink, or
      entries are lost.
    - "identity-fit": the same, with an output layer that is fitted to the targets.
    - "layer-wise": each layer is fitted to the data that the ones before it
      make; where that is impossible it is scaled to be alive, and where it
      gains nothing over a fitted output behind "identity", that is used. For
      inverse problems, and for deep networks whose activations are zero nearly
      everywhere under random weights.
    - "lsuv" (or "balanced"): the current weights, each layer's multiplied by one
      number and its bias set such that it responds to the data. The output is kept.
    - "scaled": the current weights, all multiplied by one number such that outputs
      are no longer too large; kept where no number makes the loss three times smaller.
    - "matched": the current weights, the output layer scaled and shifted such that
      outputs have the spread and the mean of the targets; kept likewise.

    "lsuv", "scaled" and "matched" take any module of `nn.Linear` and convolutions, the others take chains (MLP, ResNet,
    Perceptron, what `lift` made) and an `nn.Sequential` that can be lifted to one. See `identity_start`, `layer_wise`,
    `lsuv`, `scaled_start` and `matched_start` in this package for the mathematics.

    Returns:
        One `LayerStart` per layer, with the `error` that remains where a layer
        was to meet something: for "identity" the largest |σ(t + b) − t| over
        the values t that arrive, 0 where it is exact. Layers that nothing was done to are "kept".

    Arguments:
        network: must not have frozen parameters.
        data: y, or (y, x). "identity" takes the range of y, [0, 1] without data; the fits need (y, x) and "lsuv" needs
            y; the others do not look at it. The name of a method may stand here too, with the data after it.
        how: the method; chosen by the data if it is left out.
        generator: source of randomness, on the CPU; torch's default otherwise.
        gain: factor of the weights; √2 for "he" and 1 for "orthogonal" by default.
        margin: taken off every b of "identity", so that each soft-threshold
            or ReLU shrinks its input by that much and training starts with
            some noise removed; 0 by default.
        loss: of the fits; cross-entropy for integer labels, squared error otherwise.
        samples: fits and "lsuv" look at so many, drawn at random; 5,000 and 500 by default.
        ridge: strength of the pull towards the identity in fits; 1 by default, 0.1 for "identity-fit".

    Example:
        >>> module = nn.Sequential(nn.Linear(20, 50), nn.Softshrink(0.3), nn.Linear(50, 50), nn.Softshrink(0.3))
        >>> [start.way for start in initialise_weights(module, torch.randn(100, 20))]
        ['lsuv', 'lsuv']
    """
    if isinstance(data, str):
        if how is not None and isinstance(how, str):
            invalid_value("initialise_weights", "one method", f"{data!r} and {how!r}")
        data, how = how, data
    _check_network(network)
    request = _Request(network, data, generator, gain, margin, loss, samples, ridge)
    if how is None and data is not None:
        return request.by_data()
    return request.by(_check_method("default" if how is None else how))


def looks_at_loss(how: str) -> bool:
    """Whether a method takes the option `loss`."""
    return "loss" in METHODS[ALIASES.get(how, how)]


def check_initialises(where: str, network: nn.Module, how: str, y: object) -> nn.Module:
    """The network, or a chain that stands for it; refuses what a method cannot serve.

    Arguments:
        where: what errors begin with.
        network: of any kind.
        how: the method.
        y: some inputs, or None where there are none.
    """
    if isinstance(network, Chain) or ALIASES.get(how, how) in ANY_MODULE:
        return network
    shape = None if y is None else tuple(check_tensor("initialise_weights data, inputs", y).shape[1:])
    chain = twin(network, shape)
    if chain is None:
        hint = "Other networks start as they are built, or by 'lsuv', 'scaled' or 'matched'."
        expected = "a chain: MLP, ResNet, Perceptron, lift(...) or an nn.Sequential like it"
        invalid_type(where, expected, network, hint)
    return chain


def _check_network(network: object) -> None:
    network = check_instance("initialise_weights network", network, nn.Module, "an nn.Module")
    frozen = [name for name, parameter in network.named_parameters() if not parameter.requires_grad]
    if frozen:
        hint = "Initialise before freezing, or call `.requires_grad_()`."
        invalid_value("initialise_weights network", "parameters that may change", f"frozen ones: {frozen}", hint)


def _check_method(how: object) -> str:
    how = check_instance("initialise_weights how", how, str, "a name such as 'layer-wise'")
    check_choice("initialise_weights how", how, (*METHODS, *ALIASES))
    return ALIASES.get(how, how)


@dataclass(frozen=True, eq=False)
class _Request:
    """What `initialise_weights` was asked for; see there."""

    network: nn.Module
    data: Data | None
    generator: torch.Generator | None
    gain: float | None
    margin: float | None
    loss: LossLike | None
    samples: int | None
    ridge: float | None

    def by_data(self) -> tuple[LayerStart, ...]:
        """The start that `train` would choose if it made no short runs."""
        data, y = self.data, self._inputs()
        x = data[1] if isinstance(data, Sequence) and len(data) > 1 else None
        loss = None if x is None else self._loss(y, x)
        count, strength = self._count(5000, minimum=2), self._strength(1.0)
        y, x = self._drawn(count + HELD_OUT, y, y if x is None else x)
        return choose(self.network, Trial(lambda _: Batch(y, x), loss, strength, count), self.generator).layers

    def by(self, method: str) -> tuple[LayerStart, ...]:
        """The start of a method, by which chains are set in place of modules that can be lifted to one."""
        for name in ("gain", "margin", "loss", "samples", "ridge"):
            if (value := getattr(self, name)) is not None and name not in METHODS[method]:
                able = [other for other in METHODS if name in METHODS[other]]
                hint = f"It is an option of {able}."
                invalid_value(f"initialise_weights {name}", f"none for {method!r}", value, hint)
        network = self.network
        if method in ANY_MODULE:
            return self._any_module(network, method)
        if isinstance(network, Chain):
            return self._chain(network, method)
        y = None if self.data is None else _first(self.data)
        chain = check_initialises("initialise_weights network", network, method, y)
        assert isinstance(chain, Chain)  # for these methods
        starts = replace(self, network=chain)._chain(chain, method)
        chain.load_back(network)
        return starts

    def _any_module(self, network: nn.Module, method: str) -> tuple[LayerStart, ...]:
        count = self._count(500, minimum=2)
        if method != "lsuv":
            sample = self._sample(method, count)
            return rescale(network, method, Batch(sample.y, sample.x), sample.loss)
        if self.data is None:
            invalid_value("initialise_weights data", "inputs for 'lsuv'", "none", "Try data=inputs.")
        (y,) = self._drawn(count, self._inputs())
        with unchanged_if_refused(network):
            return lsuv(network, y) if isinstance(network, Chain) else lsuv_of_module(network, y)

    def _chain(self, network: Chain, method: str) -> tuple[LayerStart, ...]:
        if method == "identity":
            margin = 0.0 if self.margin is None else check_number("initialise_weights margin", self.margin)
            values = (0.0, 1.0) if self.data is None else _range(self._inputs())
            with unchanged_if_refused(network):
                return identity_start(network, values, margin, self.generator)
        if method in RIDGE:
            count, strength = self._count(5000), self._strength(RIDGE[method])
            sample = self._sample(method, count)
            if method == "layer-wise":
                return layer_wise(network, sample, strength, self.generator)
            with unchanged_if_refused(network):
                return identity_fit(network, _range(sample.y), sample, strength, self.generator)
        draw, usual = DRAWS[method]
        gain = usual if self.gain is None else check_positive("initialise_weights gain", self.gain)
        layers = weighted(network.layers())
        for layer in layers.values():
            draw(layer, gain, self.generator)
        return tuple(LayerStart(name, method) for name in layers)

    def _count(self, usual: int, minimum: int = 1) -> int:
        return usual if self.samples is None else check_size("initialise_weights samples", self.samples, minimum)

    def _strength(self, usual: float) -> float:
        return usual if self.ridge is None else check_positive("initialise_weights ridge", self.ridge)

    def _inputs(self) -> Tensor:
        assert self.data is not None  # the caller knows
        where, y = "initialise_weights data, inputs", _first(self.data)
        if isinstance(self.network, Network):
            tensor, some = check_batch(where, y, self.network.in_shape), self.network.like
        else:
            tensor, some = check_tensor(where, y), like(self.network)
        check_finite(where, tensor)
        return tensor if some is None else check_like(where, tensor, some)

    def _loss(self, y: Tensor, x: object) -> Loss:
        where, network, loss = "initialise_weights data, targets", self.network, self.loss
        x = check_instance(where, x, Tensor, "a torch.Tensor", "Try torch.as_tensor(targets).")
        if loss is None:
            loss = SquaredError() if x.is_floating_point() else CrossEntropy()
        loss = as_loss("initialise_weights loss", loss, x)
        if not loss.smooth:
            invalid_value("initialise_weights loss", "a smooth loss", type(loss).__name__, "Use SquaredError or Huber.")
        shape = network.out_shape if isinstance(network, Network) else tuple(network(y[:2]).shape[1:])
        loss.check((len(y), *shape), x)
        return loss

    def _sample(self, method: str, count: int) -> Sample:
        """Some pairs of the data, and the loss."""
        data = self.data
        if data is None:
            invalid_value("initialise_weights data", f"(y, x) for {method!r}", "none", "Try data=(inputs, targets).")
        if isinstance(data, Tensor) or not isinstance(data, Sequence) or len(data) != 2:
            invalid_type("initialise_weights data", f"a pair (y, x) for {method!r}", data)
        y, x = self._inputs(), data[1]
        loss = self._loss(y, x)
        y, x = self._drawn(count, y, x)
        return Sample(y, x, loss)

    def _drawn(self, count: int, y: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """So many samples, drawn at random, on the device of y."""
        chosen = torch.randperm(len(y), generator=self.generator)[:count]
        return tuple(tensor[chosen.to(tensor.device)].to(y.device) for tensor in (y, *others))


def _range(y: Tensor) -> Range:
    """The least and the largest input."""
    low, high = float(y.min()), float(y.max())
    if not high > low:
        invalid_value("initialise_weights data", "inputs that differ", f"all of them {low}")
    return low, high


def _first(data: Data) -> object:
    """y of (y, x), or y itself."""
    return data[0] if isinstance(data, Sequence) and len(data) else data
