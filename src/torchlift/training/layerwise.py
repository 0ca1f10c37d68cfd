"""Weights fitted to data, one layer after the other, from the input to the output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.functions.losses import CrossEntropy, Loss, SquaredError
from torchlift.networks import Chain
from torchlift.networks.chain import ChainLayer
from torchlift.networks.reader import Site, Term
from torchlift.objective.fit import LayerFit, fit
from torchlift.operators import Dense
from torchlift.prox import ProximalActivation
from torchlift.training.draws import LayerStart, orthogonal, weight_of
from torchlift.training.pass_through import passing_bias

#: Iterations of a hidden layer's fit: more of them gain little on held-out data.
STEPS = 2
#: Iterations of the output's fit where the loss is not quadratic; one is exact otherwise.
OUTPUT_STEPS = 50
#: So many hidden layers must leave at most this part of the error of an output that is fitted alone.
TRIED, WORTH = 2, 0.9
#: Least share of activations that are not zero.
AWAKE = 0.5
#: A layer is enlarged by this factor at most so many times.
ENLARGE, TIMES = 1.25, 40

Weights = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class Sample:
    """The data of the fits: inputs, targets and the loss that compares them with the output."""

    y: Tensor
    x: Tensor
    loss: Loss

    @property
    def target(self) -> Tensor | None:
        """Flat targets where they are outputs, None where they are labels."""
        return None if isinstance(self.loss, CrossEntropy) else self.x.flatten(1)


@torch.no_grad()
def layer_wise(
    network: Chain, sample: Sample, ridge: float, generator: torch.Generator | None
) -> tuple[LayerStart, ...]:
    """Fit layer j to what layers 1, …, j − 1 make of the inputs.

    - A dense layer as wide as the target x is "fit": the convex problem

          min over (W, b) of the mean of B_Ψ(x, W u + b) + ρ/2 ‖(W, b) − (W₀, b₀)‖²

      by two iterations of the ridge majoriser. (W₀, b₀) hands the input on
      unchanged where the layer is square and is zero elsewhere. With N samples
      and n inputs, ρ = ridge · n/N · the mean square of (u, 1): the fewer samples
      there are for each weight, the closer the layer stays to (W₀, b₀).
    - Any other layer is "scaled": orthogonal weights, such that the
      pre-activations have mean 0 (where there is a bias) and variance 1; then
      enlarged, or shifted by its bias, until half of the activations are not zero.
      Maps that are followed by another one without an activation in between,
      and those whose output a skip connection is added to, stay "orthogonal".
    - A dense output layer is "fit" to the loss itself in the same way; any
      other one is "scaled" to the mean and variance of the target.
    - Where all layers could be "fit" but the first two of them leave more than
      90 % of the error (root mean square) that a fitted output leaves behind
      hidden layers which hand the input on, these are "pass-through" and only
      the output is "fit". Such hidden fits seem to lose more than they gain:
      in inpainting, training went on from them more slowly.

    References: Mishkin & Matas, All you need is a good init (2016), for the
    variances; the fits are parameter steps of the Bregman lifting.
    """
    layers, target = network.layers(), sample.target
    uses = Counter(k for site in network.sites for _, term in site.reads for k in set(term.layers))
    starts: dict[str, LayerStart] = {}
    hidden = [_alone(layers, site, uses, target) for site in network.sites]
    fitted = {layer.name for layer in hidden if layer is not None}
    for layer in layers:
        if layer.name is not None and layer.name not in fitted:
            orthogonal(layer, 1.0, generator)
    simple = _output_alone(network, layers, hidden, sample, ridge) if hidden and all(hidden) else None
    u, z = [sample.y], []
    for j, site in enumerate(network.sites):
        if (layer := hidden[j]) is not None and target is not None:
            _fit_hidden(layer, site.activation, u[j], target, ridge)
        elif len(site.reads) == 1 and (last := _last(layers, site.reads[0][1])) and last.name not in starts:
            _wake(last, site.activation, network.operators().pre_activation(j, u))
            starts[str(last.name)] = LayerStart(str(last.name), "scaled")
        form = network.operators()  # anew: sums of biases are made when it is built
        z.append(site.activation(form.pre_activation(j, u)))
        u.append(form.couple(j, u, z))
        if layer is not None and target is not None:
            error = _distance(z[j], target)
            starts[str(layer.name)] = LayerStart(str(layer.name), "fit", error)
            if simple is not None and j + 1 == min(TRIED, len(hidden)) and error > WORTH * simple.error:
                _hand_on(network, hidden, target)
                return simple.starts
    starts |= _output(network, layers, u, sample, ridge)
    names = [layer.name for layer in layers if layer.name is not None]
    return tuple(starts.get(name, LayerStart(name, "orthogonal")) for name in names)


def _alone(layers: tuple[ChainLayer, ...], site: Site, uses: Counter[int], target: Tensor | None) -> ChainLayer | None:
    """The dense layer that is all of a row of W, stands nowhere else, and is as wide as the target."""
    if target is None or site.skip is not None or len(site.reads) != 1:
        return None
    term = site.reads[0][1]
    layer = _single_dense(layers, term) if uses[term.layers[0]] == 1 else None
    return layer if layer is not None and layer.operator.out_shape == tuple(target.shape[1:]) else None


@dataclass(frozen=True)
class _Simple:
    """Hidden layers that hand their input on, and a fitted output whose root mean square error is `error`."""

    error: float
    starts: tuple[LayerStart, ...]


def _output_alone(
    network: Chain, layers: tuple[ChainLayer, ...], hidden: list[ChainLayer | None], sample: Sample, ridge: float
) -> _Simple | None:
    """Sets the weights accordingly; None where the output is not a dense layer."""
    target = sample.target
    if target is None or _single_dense(layers, network.output_term) is None:
        return None
    starts = _hand_on(network, hidden, target)
    u, z, form = [sample.y], [], network.operators()
    for j, site in enumerate(network.sites):
        z.append(site.activation(form.pre_activation(j, u)))
        u.append(form.couple(j, u, z))
    starts += tuple(_output(network, layers, u, sample, ridge).values())
    return _Simple(_distance(network.operators().output(u), target), starts)


def _hand_on(network: Chain, hidden: list[ChainLayer | None], target: Tensor) -> tuple[LayerStart, ...]:
    starts = []
    for layer, site in zip(hidden, network.sites, strict=True):
        assert layer is not None
        weight, bias = _anchor(layer, site.activation, target)
        weight_of(layer).copy_(weight)
        if layer.bias is not None and bias is not None:
            layer.bias.copy_(bias)
        starts.append(LayerStart(str(layer.name), "pass-through"))
    return tuple(starts)


def _distance(found: Tensor, target: Tensor) -> float:
    """Root mean square."""
    return float((found - target).square().mean().sqrt())


def _single_dense(layers: tuple[ChainLayer, ...], term: Term) -> ChainLayer | None:
    layer = layers[term.layers[0]]
    single = len(term.layers) == 1 and term.factor == 1.0 and layer.name is not None
    return layer if single and isinstance(layer.operator, Dense) else None


def _last(layers: tuple[ChainLayer, ...], term: Term) -> ChainLayer | None:
    """The last map of a term that has weights."""
    return next((layers[k] for k in reversed(term.layers) if layers[k].name is not None), None)


# -- fits -------------------------------------------------------------------------------------------------------------


def _fit_hidden(layer: ChainLayer, activation: ProximalActivation, u: Tensor, target: Tensor, ridge: float) -> None:
    """min over (W, b) of the mean of B_Ψ(target, W u + b), near the weights that pass u on."""
    # ∇_v B_Ψ(x, v) = σ(v) − x is 1-Lipschitz in v
    anchor = _anchor(layer, activation, target)
    _solve(layer, u, lambda v: activation(v[0])[None] - target, 1.0, anchor, ridge, STEPS)


def _anchor(layer: ChainLayer, activation: ProximalActivation, target: Tensor) -> Weights:
    """Weights that pass on what lies in the range of the target, where the layer is square."""
    weight, bias = _identity_like(layer)
    low, high = float(target.min()), float(target.max())
    if bias is not None and weight.shape[0] == weight.shape[1] and activation.dim is None and high > low:
        like = torch.zeros(1, len(bias), dtype=torch.float64)
        bias.copy_(passing_bias(activation, (low, high), like)[0])
    return weight, bias


def _output(
    network: Chain, layers: tuple[ChainLayer, ...], u: list[Tensor], sample: Sample, ridge: float
) -> dict[str, LayerStart]:
    layer, loss, x = _last(layers, network.output_term), sample.loss, sample.x
    if layer is None or layer.name is None:
        return {}
    if _single_dense(layers, network.output_term) is not None:
        anchor, curvature = _identity_like(layer), loss.curvature()
        steps = 1 if isinstance(loss, SquaredError) else OUTPUT_STEPS
        _solve(layer, u[-1], lambda v: loss.grad(v[0], x)[None], curvature, anchor, ridge, steps)
        error = float(loss.value(network.operators().output(u), x).mean())
        return {layer.name: LayerStart(layer.name, "fit", error)}
    mean, deviation = (0.0, 1.0) if sample.target is None else (float(x.mean()), float(x.std()))
    _standardise(layer, network.operators().output(u), mean, deviation)
    return {layer.name: LayerStart(layer.name, "scaled")}


def _identity_like(layer: ChainLayer) -> Weights:
    """The identity where W is square, else zero; no bias."""
    weight = torch.zeros_like(weight_of(layer))
    if weight.shape[0] == weight.shape[1]:
        weight.fill_diagonal_(1.0)
    return weight, None if layer.bias is None else torch.zeros_like(layer.bias)


def _solve(
    layer: ChainLayer,
    u: Tensor,
    residual: Callable[[Tensor], Tensor],
    curvature: float,
    anchor: Weights,
    ridge: float,
    steps: int,
) -> None:
    """The ridge majoriser from the anchor, towards which the ridge pulls."""
    count, inputs = u.shape
    square = (float(u.square().sum()) / count + 1) / (inputs + 1)
    near = anchor[0][None], None if anchor[1] is None else anchor[1][None]
    problem = LayerFit(u[None], residual, curvature, near, ridge * inputs / count * curvature * square)
    weight, bias = fit(problem, *near, tolerance=1e-6, steps=steps)
    weight_of(layer).copy_(weight[0])
    if layer.bias is not None:
        layer.bias.copy_(bias[0])


# -- scales -----------------------------------------------------------------------------------------------------------


def _wake(layer: ChainLayer, activation: ProximalActivation, v: Tensor) -> None:
    """Mean 0 and variance 1 of v, and at least half of the activations not zero."""
    v = _standardise(layer, v, 0.0, 1.0)
    factor = 1.0
    for _ in range(TIMES):  # a threshold is passed by larger values
        if _share(activation, factor * v) >= AWAKE:
            break
        factor *= ENLARGE
    else:  # a rectifier only by other signs
        factor = 1.0
        if layer.bias is not None:
            rows = _rows(v, layer.bias)
            layer.bias.sub_(rows.kthvalue(1 + int(0.4 * rows.shape[1]), dim=1).values.view_as(layer.bias))
    weight_of(layer).mul_(factor)
    if layer.bias is not None:
        layer.bias.mul_(factor)


def _share(activation: ProximalActivation, v: Tensor) -> float:
    return float((activation(v) != 0).double().mean())


def _standardise(layer: ChainLayer, v: Tensor, mean: float, deviation: float) -> Tensor:
    """Scale W, and shift b, so that v has the given mean (of each unit) and deviation (of all); returns the new v."""
    if layer.bias is None:
        factor = deviation / _deviation(v)
        weight_of(layer).mul_(factor)
        return v * factor
    rows = _rows(v, layer.bias)
    centre = rows.mean(1, keepdim=True)
    factor = deviation / _deviation(rows - centre)
    weight_of(layer).mul_(factor)
    layer.bias.mul_(factor).add_((mean - factor * centre).view_as(layer.bias))
    shifted = ((rows - centre) * factor + mean).view(layer.bias.numel(), len(v), -1)
    return shifted.transpose(0, 1).reshape(v.shape)


def _rows(v: Tensor, bias: Tensor) -> Tensor:
    """(entries of the bias, values that each of them is added to): maps after the bias only reshape or pool."""
    return v.reshape(len(v), bias.numel(), -1).transpose(0, 1).flatten(1)


def _deviation(v: Tensor) -> float:
    return float(v.std().clamp(min=torch.finfo(v.dtype).tiny ** 0.5))
