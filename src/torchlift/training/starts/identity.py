"""Weights with which a chain hands its input on unchanged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from torchlift.core.checks import Shape
from torchlift.core.errors import TorchliftError, invalid_value
from torchlift.networks import Chain
from torchlift.networks.chain import ChainLayer
from torchlift.networks.reader import Site, Term
from torchlift.operators import Conv2d, ConvTranspose2d, Dense, Identity, LinearOperator, Reshape
from torchlift.prox import Identity as IdentityActivation
from torchlift.prox import ProximalActivation
from torchlift.training.starts.draws import LayerStart, clear_bias, default, weight_of

#: Points of a range at which σ(t + b) is compared with t.
POINTS = 513

Range = tuple[float, float]


class _Arriving(NamedTuple):
    values: Range
    entries: int


def identity_start(
    network: Chain, values: Range, margin: float, generator: torch.Generator | None
) -> tuple[LayerStart, ...]:
    """Identity weights, and the biases that undo σ on a range of values.

    Layer by layer on the range that arrives there:

    - Plain layers: W = I (for convolutions the tap that reads the pixel itself,
      from channel c to channel c) and the b of `passing_bias`, less `margin`.
      Units and channels beyond those of the input are drawn as torch does: no
      unit of the identity reads them, so the output is the same, and training
      can use them.
    - Residual blocks: a block passes its input through when its branch is
      zero. The last map of the branch is set to zero, W of the branch is
      drawn as torch does, so that the gradient of the former is not zero too.
    - The output: K = I, d = 0.
    """
    layers, starts = network.layers(), {}
    # the range of each state, and how many of its leading entries are those of the input
    arriving = [_Arriving(values, math.prod(network.in_shape))]
    for number, site in enumerate(network.sites, start=1):
        source = site.reads[0][0]
        if site.skip is not None or len(site.reads) > 1:
            starts |= _silence(layers, site, number, generator)
            arriving.append(arriving[source if site.skip is None else site.skip])
        else:
            layer_starts, state = _pass(layers, site, number, arriving[source], margin, generator)
            starts |= layer_starts
            arriving.append(state)
    starts |= _identities(layers, network.output_term, "the output", arriving[-1].entries)[0]
    return tuple(starts[name] for name in (layer.name for layer in layers) if name in starts)


def passing_bias(activation: ProximalActivation, values: Range, like: Tensor) -> Tensor:
    """b with σ(t + b) = t for all t of the range, where there is one; else the best in the least-squares sense.

    σ(v) = t means v − t ∈ ∂Ψ(t). So b serves all t exactly if and only if Ψ is
    affine on the range with slope b: soft-thresholding on t ≥ 0 has b = λ, and
    b = 0 serves ReLU on t ≥ 0, a box that holds the range, and the identity.
    If there is such a b, the secant of Ψ finds it. Otherwise a grid, refined
    around its best point, minimises the mean square of σ(t + b) − t over
    points spread evenly over the range, among b of the size of the range and
    the secant (some activations would like b → ±∞).

    Arguments:
        values: the ends of the range.
        like: zeros, (1, …), of the shape of one b per unit or channel; the answer has it too.
    """
    low, high = values
    t = torch.linspace(low, high, POINTS, dtype=like.dtype).view(-1, *[1] * (like.ndim - 1))

    def loss(b: Tensor) -> Tensor:
        return (activation(t + b) - t).square().mean(0, keepdim=True)

    ends = [activation.psi(torch.full_like(like, end)) for end in values]
    secant = ((ends[1] - ends[0]) / (high - low)).nan_to_num(0.0, 0.0, 0.0)  # 0 where Ψ is infinite at an end
    best = torch.where(loss(secant) < loss(0 * like), secant, 0 * like)
    reach = 2.0 * (1.0 + abs(low) + abs(high)) + float(secant.abs().max())
    return best if float(loss(best).max()) <= (1e-9 * reach) ** 2 else _search(loss, best, reach)


def _search(loss: Callable[[Tensor], Tensor], best: Tensor, reach: float) -> Tensor:
    """The best b of a grid over [−reach, reach], then of ever finer neighbourhoods of the best one so far."""
    least, width = loss(best), reach / 64
    while width > 1e-9 * reach:
        coarse = width == reach / 64
        centre, steps = (0 * best, range(-64, 65)) if coarse else (best, (-2, -1, 1, 2))
        for step in steps:
            b = centre + step * width
            value = loss(b)
            best, least = torch.where(value < least, b, best), torch.minimum(value, least)
        width *= 0.5
    return best


def _pass(
    layers: tuple[ChainLayer, ...],
    site: Site,
    number: int,
    state: _Arriving,
    margin: float,
    generator: torch.Generator | None,
) -> tuple[dict[str, LayerStart], _Arriving]:
    """One plain layer; the range of its activations is the next layer's."""
    (_, term), activation, values = site.reads[0], site.activation, state.values
    where = f"layer {number}"
    if activation.dim is not None:
        hint = "Use 'orthogonal' or 'layer-wise'."
        invalid_value(f"identity start, {where}", "an elementwise activation", type(activation).__name__, hint)
    for k in term.layers:
        if layers[k].name is not None:
            default(layers[k], 1.0, generator)
    starts, entries = _identities(layers, term, where, state.entries)
    holder = next((layers[k] for k in reversed(term.layers) if layers[k].bias is not None), None)
    shape = layers[term.layers[-1]].operator.out_shape
    b = like = torch.zeros(_bias_shape(activation, holder, shape), dtype=torch.float64)
    if holder is not None and holder.bias is not None and not isinstance(activation, IdentityActivation):
        b = passing_bias(activation, values, like) - margin
        holder.bias.copy_(b[0].reshape(-1, *[1] * (holder.bias.ndim - 1)).expand_as(holder.bias))
    t = torch.linspace(*values, POINTS, dtype=b.dtype).view(-1, *[1] * (b.ndim - 1))
    out = activation(t + b)
    if starts:
        last = next(reversed(starts))
        starts[last] = LayerStart(last, "identity", float((out - t).abs().max()))
    low, high = float(out.min()), float(out.max())
    if not high > low:
        hint = "Reduce the margin, or use 'layer-wise'."
        invalid_value(f"identity start, {where}", "an activation that lets the data through", "a constant output", hint)
    return starts, _Arriving((low, high), entries)


def _bias_shape(activation: ProximalActivation, holder: ChainLayer | None, shape: Shape) -> Shape:
    """(1, …): one number for all units, or one per channel where the activation has numbers of its own for each."""
    if not any(isinstance(value, Tensor) and value.ndim > 0 for value in vars(activation).values()):
        return (1,) * (len(shape) + 1)
    # the layer's own shape, since the channels may run along any axis; a convolution's bias is one per channel
    convolution = holder is not None and holder.bias is not None and holder.bias.ndim == 3
    return (1, shape[0], 1, 1) if convolution else (1, *shape)


def _identities(
    layers: tuple[ChainLayer, ...], term: Term, where: str, entries: int
) -> tuple[dict[str, LayerStart], int]:
    """The leading entries are handed on; of the output's last map all others are zero. Returns how many are left."""
    starts, output = {}, where == "the output"
    for k in term.layers:
        layer = layers[k]
        if layer.name is None:
            if not isinstance(layer.operator, Identity | Reshape):
                _cannot(where, layer.operator, "changes its input", "Use 'orthogonal' or 'layer-wise'.")
            continue
        entries = min(entries, math.prod(layer.operator.out_shape))
        _set_identity(layer.operator, where, entries, clear=output)
        clear_bias(layer)
        starts[layer.name] = LayerStart(layer.name, "identity", 0.0)
    return starts, entries


def _silence(
    layers: tuple[ChainLayer, ...], site: Site, number: int, generator: torch.Generator | None
) -> dict[str, LayerStart]:
    """Zero for the last map of a branch; the maps before it in this row as torch draws them."""
    # A branch with a bias at its end stands in W beside the skip (two reads), one without stands in V.
    inner = [k for _, term in site.reads for k in term.layers if layers[k].name is not None]
    outer = [k for term in site.outputs.values() for k in term.layers if layers[k].name is not None]
    starts: dict[str, LayerStart] = {}
    for k in dict.fromkeys([*inner, *outer]):
        default(layers[k], 1.0, generator)
        starts[str(layers[k].name)] = LayerStart(str(layers[k].name), "default")
    last = (outer or inner)[-1] if outer or inner else None
    at_rest = site.activation(torch.zeros(1, 1)) if site.activation.dim is None else torch.ones(1)
    if last is None or (not outer and site.skip is not None and float(at_rest.abs().max()) > 0):
        name = type(site.activation).__name__
        hint = "End the branch with a linear module."
        invalid_value(f"identity start, layer {number}", "a branch whose last map has weights", name, hint)
    weight_of(layers[last]).zero_()
    clear_bias(layers[last])
    name = str(layers[last].name)
    starts[name] = LayerStart(name, "zero")
    return starts


def _set_identity(operator: LinearOperator, where: str, entries: int, clear: bool) -> None:
    """The leading `entries` outputs are the leading inputs; others are zero with `clear`, and else stay as they are."""
    if isinstance(operator, Dense):
        operator.weight[: None if clear else entries] = 0.0
        operator.weight[:entries].fill_diagonal_(1.0)
    elif isinstance(operator, Conv2d | ConvTranspose2d):
        _set_identity_kernel(operator, where, -(-entries // math.prod(operator.out_shape[1:])), clear)
    else:
        _cannot(where, operator, "has no identity weights")


def _set_identity_kernel(operator: Conv2d | ConvTranspose2d, where: str, channels: int, clear: bool) -> None:
    before, after = operator.in_shape, operator.out_shape
    if operator.stride != (1, 1):
        _cannot(where, operator, f"has stride {operator.stride}", "Only stride 1 keeps all pixels.")
    if before[1:] != after[1:]:
        _cannot(where, operator, f"maps images of size {before[1:]} to {after[1:]}", "Use padding='same'.")
    groups, tap = operator.groups, tuple(_tap(operator, axis, where) for axis in (0, 1))
    # channel c of the output belongs to one group; channel c of the input must be in it
    per_input, per_output = before[0] // groups, after[0] // groups
    if any(c // per_input != c // per_output for c in range(min(before[0], channels))):
        _cannot(where, operator, f"has {groups} groups of unequal width", "Use groups=1.")
    for c in range(after[0] if clear else channels):
        group, place = divmod(c, per_output)
        if isinstance(operator, Conv2d):
            kernels = operator.weight[c]  # from the inputs of its group
        else:
            kernels = operator.weight[group * per_input : (group + 1) * per_input, place]
        kernels.zero_()
        if c < min(before[0], channels):
            kernels[(c % per_input, *tap)] = 1.0


def centre_tap(operator: Conv2d) -> tuple[int, int] | None:
    """Where the kernel reads the pixel itself; None where it does not, or where the convolution has a stride."""
    if operator.stride != (1, 1) or operator.in_shape[1:] != operator.out_shape[1:]:
        return None
    try:
        return _tap(operator, 0, ""), _tap(operator, 1, "")
    except TorchliftError:
        return None


def _tap(operator: Conv2d | ConvTranspose2d, axis: int, where: str) -> int:
    """The position in the kernel that reads the pixel itself: t with t · dilation = zeros before the first pixel."""
    assert isinstance(operator.dilation, tuple)  # normalised by the operator
    size = operator.weight.shape[2 + axis]
    # "same" stays a name only where it is uneven, and then has the smaller half in front
    padding = operator.padding
    lead = padding[axis] if isinstance(padding, tuple) else (operator.dilation[axis] * (size - 1)) // 2
    tap, rest = divmod(lead, operator.dilation[axis])
    if rest or tap >= size:
        _cannot(where, operator, "has no tap that reads the pixel itself", "Use a kernel of odd size.")
    return tap


def _cannot(where: str, operator: LinearOperator, reason: str, hint: str = "") -> NoReturn:
    name = type(operator).__name__
    invalid_value(f"identity start, {where}", "layers that can be the identity", f"{name}, which {reason}", hint)
