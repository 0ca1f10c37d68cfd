"""Weights fitted to data, one layer after the other, from the input to the output."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad, unfold

from torchlift.functions.losses import CrossEntropy, Loss, SquaredError
from torchlift.networks import Chain
from torchlift.networks.chain import ChainLayer
from torchlift.networks.reader import Site, Term
from torchlift.objective.fit import LayerFit, fit
from torchlift.operators import Conv2d, Dense
from torchlift.prox import ProximalActivation
from torchlift.training.starts.draws import LayerStart, last_weighted, orthogonal, weight_of, weighted
from torchlift.training.starts.identity import Range, centre_tap, identity_start, passing_bias

#: Iterations of a hidden layer's fit: more of them gain little on held-out data.
STEPS = 2
#: Iterations of the output's fit where the loss is not quadratic; one is exact otherwise.
OUTPUT_STEPS = 50
#: So many hidden layers must leave at most this part of the error of an output that is fitted alone.
TRIED, WORTH = 2, 0.9
#: Images at least that networks of convolutions are fitted to.
IMAGES = 100
#: Entries at most of which it is counted how many are zero.
COUNTED = 1_000_000
#: Least share of activations that are not zero.
ALIVE = 0.5
#: Patches at most that a convolution is fitted to.
PATCHES = 20_000
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
        """Targets where they are outputs, None where they are labels."""
        return None if isinstance(self.loss, CrossEntropy) else self.x

    @property
    def restores(self) -> bool:
        """Whether targets are of the shape of the inputs, so that layers can hand on estimates of them."""
        return self.target is not None and self.x.shape == self.y.shape


@dataclass(frozen=True)
class _Regression:
    """The leading units (or channels) of a layer, which are fitted by regression on its inputs (or their patches).

    Arguments:
        layer: dense, or a convolution in one group.
        units: how many of its units are fitted.
    """

    layer: ChainLayer
    units: int

    def design(self, u: Tensor) -> Tensor:
        """(rows, inputs of a unit)."""
        operator = self.layer.operator
        return _patches(operator, u) if isinstance(operator, Conv2d) else u

    def values(self, x: Tensor) -> Tensor:
        """(rows, units) of what has the shape of the layer's fitted units."""
        if not isinstance(self.layer.operator, Conv2d):
            return x.flatten(1)
        return x[: _images(self.layer.operator, len(x))].permute(0, 2, 3, 1).flatten(0, 2)

    def anchor(self, hands_on: bool) -> Weights:
        """The identity where the layer is square or its leading inputs are estimates of the target, else zero."""
        weight = torch.zeros_like(weight_of(self.layer)[: self.units])
        bias = None if self.layer.bias is None else weight.new_zeros(self.units)
        if isinstance(self.layer.operator, Conv2d):
            tap = centre_tap(self.layer.operator)
            if hands_on and tap is not None:
                for c in range(min(weight.shape[:2])):
                    weight[(c, c, *tap)] = 1.0
        elif hands_on or len(weight_of(self.layer)) == weight.shape[1]:
            weight.fill_diagonal_(1.0)
        return weight, bias

    def solve(
        self,
        u: Tensor,
        residual: Callable[[Tensor], Tensor],
        curvature: float,
        anchor: Weights,
        ridge: float,
        steps: int,
    ) -> None:
        """The ridge majoriser from the anchor, towards which the ridge pulls; `residual` maps (rows, units) to them."""
        X = self.design(u)
        count, inputs = X.shape
        square = (float(X.square().sum()) / count + 1) / (inputs + 1)
        near = anchor[0].flatten(1)[None], None if anchor[1] is None else anchor[1][None]
        strength = ridge * inputs / count * curvature * square
        problem = LayerFit(X[None], lambda v: residual(v[0])[None], curvature, near, strength)
        weight, bias = fit(problem, *near, tolerance=1e-6, steps=steps)
        weight_of(self.layer)[: self.units] = weight[0].view_as(anchor[0])
        if self.layer.bias is not None:
            self.layer.bias.view(-1)[: self.units] = bias[0]


def _images(operator: Conv2d, count: int) -> int:
    """Of how many images all patches are looked at: neighbouring patches are alike."""
    return min(count, max(1, PATCHES // math.prod(operator.out_shape[1:])))


def _patches(operator: Conv2d, u: Tensor) -> Tensor:
    """(images · positions, channels · kernel): what each output pixel of a convolution reads."""
    kernel = operator.weight.shape[2:]
    lead, trail = operator.margins
    padded = pad(u[: _images(operator, len(u))], (lead[1], trail[1], lead[0], trail[0]))
    columns = unfold(padded, kernel, dilation=operator.dilation, stride=operator.stride)
    return columns.transpose(1, 2).flatten(0, 1)


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
      there are for each weight, the closer the layer stays to (W₀, b₀). The fit of
      a convolution that keeps the size of the image is the same with patches as
      inputs. Where targets have the shape of the inputs, layers may be wider: the
      leading units or channels are fitted, the others are "scaled".
    - Any other layer is "scaled": orthogonal weights, such that the
      pre-activations have mean 0 (where there is a bias) and variance 1; then
      enlarged, or shifted by its bias, until half of the activations are not zero.
      Maps that are followed by another one without an activation in between,
      and those whose output a skip connection is added to, stay "orthogonal".
    - The output layer, dense or a convolution, is "fit" to the loss itself in the
      same way; any other one is "scaled" to the mean and variance of the target.
    - Where all layers could be "fit" but the first two of them leave more than
      90 % of the error (root mean square) that a fitted output leaves behind
      hidden layers which hand the input on, these are "identity" and only
      the output is "fit". Such hidden fits seem to lose more than they gain:
      in inpainting, training went on from them more slowly.

    References: Mishkin & Matas, All you need is a good init (2016), for the
    variances; the fits are parameter steps of the Bregman lifting.
    """
    sample = _enough(network, sample)
    layers, target = network.layers(), sample.target
    uses = Counter(k for site in network.sites for _, term in site.reads for k in set(term.layers))
    starts: dict[str, LayerStart] = {}
    hidden = [_regression(layers, site, uses, sample) for site in network.sites]
    whole = [one for one in hidden if one is not None and one.units == len(weight_of(one.layer))]
    fitted = {one.layer.name for one in whole}
    for name, layer in weighted(layers).items():
        if name not in fitted:
            orthogonal(layer, 1.0, generator)
    alone = len(whole) == len(hidden) > 0 and all(isinstance(one.layer.operator, Dense) for one in whole)
    simple = _output_alone(network, layers, whole, sample, ridge) if alone else None
    u, z, hands_on = [sample.y], [], sample.restores
    for j, site in enumerate(network.sites):
        regression = hidden[j]
        if regression not in whole and len(site.reads) == 1:
            last = last_weighted(layers, site.reads[0][1])
            if last is not None and last.name not in starts:
                _revive(last, site.activation, network.operators().pre_activation(j, u))
                starts[str(last.name)] = LayerStart(str(last.name), "scaled")
        if regression is not None and target is not None:
            _fit_hidden(regression, site.activation, u[j], target, ridge, hands_on)
        form = network.operators()  # anew: sums of biases are made when it is built
        z.append(site.activation(form.pre_activation(j, u)))
        u.append(form.couple(j, u, z))
        if regression is not None and target is not None:
            name, hands_on = str(regression.layer.name), True
            error = _distance(
                z[j][:, : regression.units], target.reshape(len(target), regression.units, *z[j].shape[2:])
            )
            starts[name] = LayerStart(name, "fit", error)
            if simple is not None and j + 1 == min(TRIED, len(hidden)) and error > WORTH * simple.error:
                _hand_on(network, whole, target)
                return simple.starts
    starts |= fit_output(network, u, sample, ridge, hands_on)
    return tuple(starts.get(name, LayerStart(name, "orthogonal")) for name in weighted(layers))


def _regression(layers: tuple[ChainLayer, ...], site: Site, uses: Counter[int], sample: Sample) -> _Regression | None:
    """The fit of the layer that is all of a row of W and stands nowhere else, if it is wide enough for the target."""
    if sample.target is None or site.skip is not None or len(site.reads) != 1:
        return None
    term = site.reads[0][1]
    layer = _single(layers, term) if uses[term.layers[0]] == 1 else None
    if layer is None or (site.activation.dim is not None and sample.restores):
        return None
    shape, made = tuple(sample.target.shape[1:]), layer.operator.out_shape
    if isinstance(layer.operator, Conv2d):
        fits = sample.restores and len(shape) == 3 and made[1:] == shape[1:] and made[0] >= shape[0]
        return _Regression(layer, shape[0]) if fits else None
    entries = math.prod(shape)
    fits = made[0] >= entries if sample.restores else made == (entries,)
    return _Regression(layer, entries) if fits else None


@dataclass(frozen=True)
class _Simple:
    """Hidden layers that hand their input on, and a fitted output whose root mean square error is `error`."""

    error: float
    starts: tuple[LayerStart, ...]


def _output_alone(
    network: Chain, layers: tuple[ChainLayer, ...], hidden: Sequence[_Regression], sample: Sample, ridge: float
) -> _Simple | None:
    """Sets the weights accordingly; None where the output is not a dense layer."""
    output = _single(layers, network.output_term)
    if sample.target is None or output is None or not isinstance(output.operator, Dense):
        return None
    starts = _hand_on(network, hidden, sample.target)
    u = network.operators().states(sample.y).u
    starts += tuple(fit_output(network, u, sample, ridge, True).values())
    return _Simple(_distance(network.operators().output(u), sample.target.flatten(1)), starts)


def identity_fit(
    network: Chain, values: Range, sample: Sample, ridge: float, generator: torch.Generator | None
) -> tuple[LayerStart, ...]:
    """Hidden layers as in `identity_start`, and an output fitted as in `layer_wise`."""
    starts = {start.layer: start for start in identity_start(network, values, 0.0, generator)}
    sample = _enough(network, sample)
    starts |= fit_output(network, network.operators().states(sample.y).u, sample, ridge, sample.restores)
    return tuple(starts.values())


def _enough(network: Chain, sample: Sample) -> Sample:
    """Fewer samples where all maps are convolutions, of which each image shows many patches."""
    operators = [layer.operator for layer in weighted(network.layers()).values()]
    if not operators or not all(isinstance(operator, Conv2d) for operator in operators):
        return sample
    count = max(IMAGES, *(_images(operator, len(sample.y)) for operator in operators if isinstance(operator, Conv2d)))
    return replace(sample, y=sample.y[:count], x=sample.x[:count])


def _hand_on(network: Chain, hidden: Sequence[_Regression], target: Tensor) -> tuple[LayerStart, ...]:
    starts = []
    for regression, site in zip(hidden, network.sites, strict=True):
        weight, bias = _anchor(regression, site.activation, target, True)
        weight_of(regression.layer).copy_(weight)
        if regression.layer.bias is not None and bias is not None:
            regression.layer.bias.copy_(bias)
        starts.append(LayerStart(str(regression.layer.name), "identity"))
    return tuple(starts)


def _distance(output: Tensor, target: Tensor) -> float:
    """Root mean square."""
    return float((output - target).square().mean().sqrt())


def _single(layers: tuple[ChainLayer, ...], term: Term) -> ChainLayer | None:
    """The dense layer or convolution, in one group, that is all of a term."""
    layer = layers[term.layers[0]]
    single = len(term.layers) == 1 and term.factor == 1.0 and layer.name is not None
    plain = isinstance(layer.operator, Dense) or (isinstance(layer.operator, Conv2d) and layer.operator.groups == 1)
    return layer if single and plain else None


# -- fits -------------------------------------------------------------------------------------------------------------


def _fit_hidden(
    regression: _Regression, activation: ProximalActivation, u: Tensor, target: Tensor, ridge: float, hands_on: bool
) -> None:
    """min over (W, b) of the mean of B_Ψ(target, W u + b), near the weights that pass u on."""
    # ∇_v B_Ψ(x, v) = σ(v) − x is 1-Lipschitz in v
    values, sigma = regression.values(target), _leading(activation, regression)
    anchor = _anchor(regression, activation, target, hands_on)
    regression.solve(u, lambda v: sigma(v) - values, 1.0, anchor, ridge, STEPS)


def _leading(activation: ProximalActivation, regression: _Regression) -> Callable[[Tensor], Tensor]:
    """σ of the fitted units, as a function of (rows, units); other units may have numbers of their own."""
    spare = len(weight_of(regression.layer)) - regression.units
    if spare == 0 or not any(isinstance(value, Tensor) and value.ndim > 0 for value in vars(activation).values()):
        return activation
    return lambda v: activation(pad(v, (0, spare)))[:, : regression.units]


def _anchor(regression: _Regression, activation: ProximalActivation, target: Tensor, hands_on: bool) -> Weights:
    """Weights that pass on what lies in the range of the target."""
    weight, bias = regression.anchor(hands_on)
    low, high = float(target.min()), float(target.max())
    passes = hands_on or len(weight_of(regression.layer)) == weight[0].numel()
    if bias is not None and passes and activation.dim is None and high > low:
        like = torch.zeros(1, len(weight_of(regression.layer)), dtype=torch.float64)
        bias.copy_(passing_bias(activation, (low, high), like)[0, : regression.units])
    return weight, bias


def fit_output(
    network: Chain, u: Sequence[Tensor], sample: Sample, ridge: float, hands_on: bool = False
) -> dict[str, LayerStart]:
    """Fit the output layer to the loss, given the states u of the sample; by name."""
    layers, loss, x = network.layers(), sample.loss, sample.x
    layer = last_weighted(layers, network.output_term)
    if layer is None or layer.name is None:
        return {}
    single, labels = _single(layers, network.output_term), sample.target is None
    if single is not None and not (labels and isinstance(single.operator, Conv2d)):
        regression, curvature = _Regression(layer, len(weight_of(layer))), loss.curvature()
        steps = 1 if isinstance(loss, SquaredError) else OUTPUT_STEPS
        values = x if labels else regression.values(x)
        anchor = regression.anchor(hands_on)
        regression.solve(u[-1], lambda v: loss.grad(v, values), curvature, anchor, ridge, steps)
        error = float(loss.value(network.operators().output(u), x).mean())
        return {layer.name: LayerStart(layer.name, "fit", error)}
    mean, deviation = (0.0, 1.0) if labels else (float(x.mean()), float(x.std()))
    _standardise(layer, network.operators().output(u), mean, deviation)
    return {layer.name: LayerStart(layer.name, "scaled")}


# -- scales -----------------------------------------------------------------------------------------------------------


def _revive(layer: ChainLayer, activation: ProximalActivation, v: Tensor) -> None:
    """Mean 0 and variance 1 of v, and at least half of the activations not zero."""
    v = _standardise(layer, v, 0.0, 1.0)
    factor = 1.0
    for _ in range(TIMES):  # a threshold is passed by larger values
        if _share(activation, factor * v) >= ALIVE:
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
    return float((activation(v[: max(1, COUNTED // v[0].numel())]) != 0).double().mean())


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
