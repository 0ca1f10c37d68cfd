"""LSUV: weights keep their directions and get the size at which every layer responds to the data.

After Mishkin & Matas, All you need is a good init (2016), who scale each layer
to unit variance. Here the mean is taken off as well, and thresholds are passed.
Only the mean of all units is taken off, not that of each unit. Test accuracy
in per cent after 8 epochs of `SweepDescent` with annealed steps on the 5,000
bundled digits, mean of three seeds:

                          kept   each unit   no unit   all units
    ReLU, 50 × 128          11          34        77          81
    tanh, 30 × 128          22*         89        90          90
    soft (0.3), 10 × 256    38          91        92          91

"kept" are torch's default weights (* one seed); "no unit" has biases 0. Runs
that ended in infinities count with what they had reached: three of "kept" and
one of "each unit". The seeds of the last two columns differ by up to 14 for
ReLU and by up to 3 otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchlift.core.checks import check_batch, check_finite, check_instance
from torchlift.core.errors import invalid_value
from torchlift.networks import Chain, Network
from torchlift.operators import Context
from torchlift.operators.context import select_context
from torchlift.training.starts.draws import LayerStart, clear_bias, last_weighted, weight_of, weighted

#: Least share of responses that a rescaled layer has alive, where a spread of at most `WIDEST` permits it.
ALIVE, WIDEST = 0.3, 2.0**10
#: The offsets of the units differ by at most so many times what the data makes of them.
OFFSETS = 5.0
#: A response counts as flat where its slope over ±ε is less; ε is this part of the size of v.
FLAT, EPSILON = 1e-3, 1e-3
#: A layer is dead when less than this part of v varies with the input, or more than that share of responses is flat.
STILL, DEAD = 0.1, 0.97
#: `dead_layers` looks at no more samples.
SAMPLES = 500
#: Entries of a layer that are looked at.
MANY = 1 << 17


@torch.no_grad()
def lsuv(network: Chain, y: Tensor) -> tuple[LayerStart, ...]:
    """Scale W and set b, layer by layer on what the ones before it make of the inputs y.

    With v = W u, the mean v̄_i of unit i (over samples, and positions of a
    convolution), their mean v̄, and the spreads s² = mean (v − v̄_i)² within
    and r² = mean (v̄_i − v̄)² between units,

        c_i = v̄ + (1 − κ)(v̄_i − v̄),   κ = min(1, 5 s/r),
        W ← (t/q) W,   b_i ← −(t/q) c_i,   q² = mean (v − c_i)².

    So the pre-activations have mean 0 and size t, and no more than 5 times
    the spread within units comes from units that differ from each other.
    t is the first of 1, 2, 4, …, 2¹⁰ for which 30 % of the responses are alive,
    else the one with most of them: thresholds are passed by larger values.
    Layers without a bias are only scaled.

    Of a product of maps without an activation in between, the last one is
    changed; layers that several rows of W share are set by the first of them.
    Kept as they are: sums of a branch and a skip connection, V, and the output.
    """
    layers = network.layers()
    starts: dict[str, LayerStart] = {}
    u, z = [y], []
    for j, site in enumerate(network.sites):
        # sums of several terms stay as they are
        last = last_weighted(layers, site.reads[0][1]) if len(site.reads) == 1 else None
        if last is not None and last.name is not None and last.name not in starts:
            clear_bias(last)
            where, v = f"layer {j + 1} ({last.name})", network.operators().pre_activation(j, u)
            units, has_bias = last.operator.out_shape[0], last.bias is not None
            factor, centres = rescaling(v, units, has_bias, site.activation, site.activation.dim, where)
            weight_of(last).mul_(factor)
            if last.bias is not None:
                last.bias.copy_((-factor * centres).view_as(last.bias))
            starts[last.name] = LayerStart(last.name, "lsuv")
        form = network.operators()  # anew: sums of biases are made when it is built
        z.append(site.activation(form.pre_activation(j, u)))
        u.append(form.couple(j, u, z))
    return tuple(starts.get(name, LayerStart(name, "kept")) for name in weighted(layers))


@torch.no_grad()
def dead_layers(network: Network, y: Tensor, context: Context = None) -> tuple[int, ...]:
    """The layers, counted from 1, that (nearly) ignore the input: training from there hardly moves.

    Those with rms(v − v̄) < 0.1 rms(v), v̄ the mean over the samples, and those
    where σ(v ± ε), ε = rms(v)/1000, is flat for more than 97 % of the entries.
    One forward pass on at most 500 samples.

    Arguments:
        network: any network in the unified form.
        y: two or more inputs; a larger batch is thinned out evenly.
        context: what the network's operators need to know of each sample.
    """
    check_instance("dead_layers network", network, Network, "a Network", "Lift it: lift(nn.Sequential(...)).")
    y = check_finite("dead_layers inputs", check_batch("dead_layers inputs", y, network.in_shape))
    if len(y) < 2:
        invalid_value("dead_layers inputs", "two samples or more", len(y))
    every = -(-len(y) // SAMPLES)
    states = network.states(y[::every], select_context(context, slice(None, None, every)))
    rows = zip(states.v, network.operators().activations, strict=True)
    return tuple(j for j, (v, activation) in enumerate(rows, start=1) if is_dead(v, activation, activation.dim))


def is_dead(v: Tensor, activation: Callable[[Tensor], Tensor], dim: int | None = None) -> bool:
    """Whether σ(v) (nearly) ignores the samples of v; `dim` is the axis along which σ treats entries together."""
    if dim is None and v.numel() > MANY:  # some of the features of every sample tell as much
        v = v.reshape(len(v), -1)[:, :: v.numel() // MANY]
    size = _rms(v)
    still = size == 0 or _rms(v - v.mean(0)) < STILL * size
    return still or _alive(activation, dim, v, EPSILON * size) < 1 - DEAD


class Rescaling(NamedTuple):
    """(t/q) and c of `lsuv`, (1, units, 1)."""

    factor: float
    centres: Tensor


def rescaling(
    v: Tensor, units: int, has_bias: bool, activation: Callable[[Tensor], Tensor], dim: int | None, where: str
) -> Rescaling:
    """What to do to a layer with v = W u, (samples, …), whose units come first in each sample."""
    # (samples, units, positions): maps after the weights only reshape or pool
    parts = v.reshape(len(v), units, -1)
    means = parts.mean((0, 2), keepdim=True)
    within = _rms(parts - means)
    if within <= 100 * torch.finfo(v.dtype).eps * _rms(v):
        hint = "Are all inputs equal, or all weights zero? Try 'he' or 'orthogonal' first."
        invalid_value(f"lsuv, {where}", "pre-activations that vary with the data", "none", hint)
    centres = _centres(means, within) if has_bias else torch.zeros_like(means)
    size = _rms(parts - centres)
    spread = _spread(activation, dim, ((parts - centres) / size).view_as(v), where)
    return Rescaling(spread / size, centres)


def _centres(means: Tensor, within: float) -> Tensor:
    """c: what is left of the units' means once their differences are cut to `OFFSETS` · within."""
    middle = means.mean()
    between = _rms(means - middle)
    kept = min(1.0, OFFSETS * within / between) if between > 0 else 1.0
    return middle + (1 - kept) * (means - middle)


def _spread(activation: Callable[[Tensor], Tensor], dim: int | None, v: Tensor, where: str) -> float:
    """t: the first of 1, 2, 4, … with enough alive responses at t v, else the best."""
    best, share, spread = 1.0, 0.0, 1.0
    while share < ALIVE and spread <= WIDEST:
        alive = _alive(activation, dim, spread * v, EPSILON * spread)
        if alive > share:
            best, share = spread, alive
        spread *= 2
    if share == 0:
        name = getattr(activation, "__name__", type(activation).__name__)
        hint = "Pre-activations of mean 0 do not reach where it rises; try 'layer-wise'."
        invalid_value(f"lsuv, {where}", "an activation that responds to its input", f"a flat {name}", hint)
    return best


def _alive(activation: Callable[[Tensor], Tensor], dim: int | None, v: Tensor, epsilon: float) -> float:
    """Share of the entries of σ that change between v + ε and v − ε, with a slope above `FLAT`."""
    shift = epsilon * _signs(v, dim)
    change = activation(v + shift) - activation(v - shift)
    return float((change.abs() > 2 * epsilon * FLAT).double().mean())


def _signs(v: Tensor, dim: int | None) -> Tensor:
    """1, −1, 1, … along a group, since softmax and the like ignore a shift of all its entries; else 1."""
    if dim is None:
        return v.new_ones(())
    shape = [1] * v.ndim
    shape[dim] = -1
    return (1 - 2 * (torch.arange(v.shape[dim], device=v.device) % 2)).to(v).view(shape)


def _rms(v: Tensor) -> float:
    return float(v.square().mean().sqrt())
