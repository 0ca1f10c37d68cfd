"""One backward sweep from the forward pass, with two-sided nudges in place of the derivatives of σ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear

from torchlift.core.checks import check_batch, check_like
from torchlift.core.errors import invalid_type
from torchlift.distributed import Share
from torchlift.losses import Loss
from torchlift.networks import Network
from torchlift.objective.nudge import Nudge, NudgeState, Response, multipliers, root_mean_square
from torchlift.objective.shared_nudge import SharedNudge
from torchlift.objective.taped_sweep import TapedSweep
from torchlift.operators import Context, DenseRun
from torchlift.prox import Identity, ProximalActivation


@dataclass(frozen=True, eq=False)
class LayerStep:
    """What a step of one dense layer v = W u + b needs.

    Arguments:
        weight_name, bias_name: names of the stacked parameters; no bias name where there is no bias.
        index: the layer's place in the stack.
        inputs: u, (B, n).
        residual: R, (B, m): the gradient of each sample's loss in v, without 1/B.
    """

    weight_name: str
    bias_name: str | None
    index: int
    inputs: Tensor
    residual: Tensor


@dataclass(frozen=True, eq=False)
class Sweep:
    """What one sweep finds.

    Arguments:
        loss: mean over the batch, 0-d.
        output: N(y); empty where it is with another process.
        gradients: of the mean loss, by the names of `network.named_parameters()`.
        layers: the dense layers, from input to output.
        state: for the next sweep.
        means: the mean input of each dense layer; None where it is that of the inputs here.
        share: which samples these are, where many processes share the batch. Output, inputs and residuals are those of
            this process's samples then, and all else is that of the whole batch.
        centred: whether the gradients of dense weights are those of `centring` already.
    """

    loss: Tensor
    output: Tensor
    gradients: dict[str, Tensor]
    layers: tuple[LayerStep, ...]
    state: NudgeState
    means: tuple[Tensor, ...] | None = None
    share: Share | None = None
    centred: bool = False

    def shared(self, share: Share | None) -> Sweep:
        """From means over this process's samples, which are overwritten, to means over all."""
        if share is None:
            return self
        means = tuple(layer.inputs.mean(0) for layer in self.layers)
        share.mean_(self.loss, *self.gradients.values(), *means)
        return replace(self, means=means, share=share)


@torch.no_grad()
def backward_sweep(
    network: Network,
    loss: Loss,
    y: Tensor,
    x: Tensor,
    nudge: Nudge | None = None,
    state: NudgeState | None = None,
    context: Context = None,
    share: Share | None = None,
    centred: bool = False,
) -> Sweep:
    """Estimate the gradient of the mean loss of N(y) in all parameters, without differentiating σ.

    The lifted variables start at the forward pass and each is moved once, from
    the output to the input. With g_j the signal at z_j, that is Kᵀ∇L and the
    adjoints of all that reads z_j,

        R_j = [σ_j(v_j + s_j g_j) − σ_j(v_j − s_j g_j)] / (2 s_j),   then   g += W_jᵀ R_j below,

    and ∇W_j = R_jᵀu/B, ∇b_j = mean R_j. As s → 0, R_j tends to the signal of
    back-propagation, because the Jacobian of a proximal map is symmetric; at
    finite s it also passes where σ is flat. The matrix products are those of
    back-propagation: in closed form for chains of dense layers, by autograd
    through the linear maps of other networks.
    Thresholds θ of an activation get ∂_θ[Φ*(v + s g) − Φ*(v − s g)] / (2s).

    Arguments:
        network, loss: any network; a loss with a gradient.
        y, x: inputs and targets of the batch.
        nudge: sizes of the nudges; `Nudge()` by default.
        state: of the sweep before, None for the first.
        context: per-sample context of the operators.
        share: which samples of a batch these are, where many processes share it.
        centred: whether gradients of dense weights may come centred, where that costs nothing.
    """
    nudge = Nudge() if nudge is None else nudge
    _check(network, loss, y, nudge)
    old = multipliers(network.depth, state, y)
    dense = _dense_layers(network)
    nudge = SharedNudge.of(nudge, share)
    if len(dense) < len(old) + 1:
        return _taped(network, dense, loss, y, x, context, nudge, old).shared(share)
    return _chain(network, dense, loss, y, x, nudge, old, centred and share is None).shared(share)


@dataclass(frozen=True, eq=False)
class _Dense:
    """One layer of a run, with its own weight (out, in) and bias."""

    run: DenseRun
    index: int
    weight: Tensor
    bias: Tensor | None


Layers: TypeAlias = dict[int, _Dense]
"""By row of W; the output has the row after the last."""


def _chain(
    network: Network, dense: Layers, loss: Loss, y: Tensor, x: Tensor, nudge: Nudge, old: Tensor, centred: bool
) -> Sweep:
    """Dense layers only: closed forms, no tape."""
    u, v = [y], []
    activations = network.activations
    for j, activation in enumerate(activations):
        v.append(linear(u[j], dense[j].weight, dense[j].bias))
        u.append(activation(v[j]).detach())
    depth = len(v)
    output = linear(u[depth], dense[depth].weight, dense[depth].bias)
    loss.check(tuple(output.shape), x, values=False)
    residuals = {depth: loss.grad(output, x)}
    responses: dict[int, Response] = {}
    gradients: dict[str, Tensor] = {}
    for j in reversed(range(depth)):
        signal = residuals[j + 1] @ dense[j + 1].weight
        rms = root_mean_square(signal)
        sizes = nudge.begin(activations[j], v[j], rms)
        # many processes hear of each other's signals meanwhile
        _dense_gradient(dense[j + 1], u[j + 1], residuals[j + 1], gradients, centred)
        responses[j] = _in_place(nudge, activations[j], v[j], signal, rms, sizes(old[j]))
        residuals[j] = responses[j].residual
    _dense_gradient(dense[0], u[0], residuals[0], gradients, centred)
    value = loss.value(output, x).sum() / len(y)
    found = {name: gradients[name] for name, p in network.named_parameters() if p.requires_grad}
    steps, state = _steps(dense, u, residuals), _adapted(nudge, old, responses)
    return Sweep(value, output, found, steps, state, centred=centred)


def _taped(
    network: Network, dense: Layers, loss: Loss, y: Tensor, x: Tensor, context: Context, nudge: Nudge, old: Tensor
) -> Sweep:
    """Any network: autograd through its linear maps."""
    sweep = TapedSweep(network, y, context, nudge, old, set(dense))
    loss.check(tuple(sweep.output.shape), x, values=False)
    cotangent = loss.grad(sweep.output, x)
    parameters = {name: p for name, p in network.named_parameters() if p.requires_grad}
    gradients = sweep.gradients(cotangent, parameters)
    residuals = {j: response.residual for j, response in sweep.responses.items()} | {len(old): cotangent}
    value = loss.value(sweep.output, x).sum() / len(y)
    layers = _steps(dense, sweep.u, residuals)
    return Sweep(value, sweep.output, gradients, layers, _adapted(nudge, old, sweep.responses))


def _in_place(
    nudge: Nudge, activation: ProximalActivation, v: Tensor, signal: Tensor, rms: Tensor, size: Tensor
) -> Response:
    """`Nudge.response` of a given size in the memory of v and the signal, which nothing reads again."""
    if isinstance(activation, Identity):
        return nudge.response(activation, v, signal, size)
    above = v.addcmul_(signal, size)
    below = torch.addcmul(above, signal, size, value=-2, out=signal)
    return nudge.differences(activation, above, below, size, rms, {})


def _adapted(nudge: Nudge, old: Tensor, responses: Mapping[int, Response]) -> NudgeState:
    """Layers that were not reached count as awake: their multipliers relax."""
    if not len(old):
        return NudgeState(old)
    one, zero = torch.ones_like(old[0]), torch.zeros_like(old[0])
    awake = [responses[j].awake if j in responses else one for j in range(len(old))]
    rms = [responses[j].rms if j in responses else zero for j in range(len(old))]
    return NudgeState(nudge.adapt(old, torch.stack(awake), torch.stack(rms)))


def _steps(dense: Layers, u: Sequence[Tensor], residuals: Mapping[int, Tensor]) -> tuple[LayerStep, ...]:
    steps = []
    for j, layer in sorted(dense.items()):
        if j in residuals:
            run = layer.run
            bias_name = None if run.bias is None else run.bias_name
            steps.append(LayerStep(run.weight_name, bias_name, layer.index, u[j].detach(), residuals[j]))
    return tuple(steps)


def _dense_gradient(layer: _Dense, inputs: Tensor, residual: Tensor, found: dict[str, Tensor], centred: bool) -> None:
    run = layer.run
    if run.bias is not None and run.bias.requires_grad:
        mean = residual.mean(0)
        found.setdefault(run.bias_name, torch.empty_like(run.bias))[layer.index] = mean
        residual = residual - mean if centred else residual  # Rᵀ(u − ū) = (R − mean R)ᵀu
    if run.weight.requires_grad:
        slot = found.setdefault(run.weight_name, torch.empty_like(run.weight))[layer.index]
        # beta=0 ignores what the memory holds; the mean costs nothing inside the product
        torch.addmm(slot, residual.T, inputs, beta=0, alpha=1 / len(inputs), out=slot)


def _dense_layers(network: Network) -> Layers:
    """The dense layers by row of W; the output has the row after the last."""
    tail = network.output_run()
    found: Layers = {}
    for run in (*network.dense_runs(), *(() if tail is None else (tail,))):
        weights = run.weight.detach().unbind(0)
        biases = [None] * run.count if run.bias is None else run.bias.detach().unbind(0)
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            found[run.start + i] = _Dense(run, i, weight, bias)
    return found


def _check(network: object, loss: object, y: Tensor, nudge: object) -> None:
    for name, value, kind in (("network", network, Network), ("loss", loss, Loss), ("nudge", nudge, Nudge)):
        if not isinstance(value, kind):
            invalid_type(f"backward_sweep {name}", f"a {kind.__name__}", value)
    assert isinstance(network, Network)
    check_batch("backward_sweep input", y, network.in_shape)
    if network.like is not None:
        check_like("backward_sweep input", y, network.like)
