"""One backward sweep from the forward pass, with two-sided nudges in place of the derivatives of σ."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import linear

from torchlift.core.checks import check_batch, check_like
from torchlift.core.errors import invalid_type
from torchlift.losses import Loss
from torchlift.networks import Network
from torchlift.networks.form import UnifiedForm
from torchlift.objective.nudge import Nudge, NudgeState, multipliers, root_mean_square, share_of_nonzero, two_sided
from torchlift.operators import Context, DenseRun
from torchlift.operators.blocks import BlockOperator
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
        output: N(y).
        gradients: of the mean loss, by the names of `network.named_parameters()`.
        layers: the dense layers, from input to output.
        state: for the next sweep.
    """

    loss: Tensor
    output: Tensor
    gradients: dict[str, Tensor]
    layers: tuple[LayerStep, ...]
    state: NudgeState


@torch.no_grad()
def backward_sweep(
    network: Network,
    loss: Loss,
    y: Tensor,
    x: Tensor,
    nudge: Nudge | None = None,
    state: NudgeState | None = None,
    context: Context = None,
) -> Sweep:
    """Estimate the gradient of the mean loss of N(y) in all parameters, without differentiating σ.

    The lifted variables start at the forward pass and each is moved once, from
    the output to the input. With g_j the signal at z_j, that is Kᵀ∇L and the
    adjoints of all that reads z_j,

        R_j = [σ_j(v_j + s_j g_j) − σ_j(v_j − s_j g_j)] / (2 s_j),   then   g += W_jᵀ R_j below,

    and ∇W_j = R_jᵀu/B, ∇b_j = mean R_j. As s → 0, R_j tends to the signal of
    back-propagation, because the Jacobian of a proximal map is symmetric; at
    finite s it also passes where σ is flat. A chain of dense layers costs the
    matrix products of back-propagation. Other blocks use their adjoints, and
    one vector–Jacobian product of all linear maps for their parameters.
    Thresholds θ of an activation get ∂_θ[Φ*(v + s g) − Φ*(v − s g)] / (2s).

    Arguments:
        network, loss: any network; a loss with a gradient.
        y, x: inputs and targets of the batch.
        nudge: sizes of the nudges; `Nudge()` by default.
        state: of the sweep before, None for the first.
        context: per-sample context of the operators.
    """
    nudge = Nudge() if nudge is None else nudge
    _check(network, loss, y, nudge)
    walk = _Walk(network, y, context)
    loss.check(tuple(walk.output.shape), x, values=False)
    old = multipliers(walk.form.depth, state, y)
    state = NudgeState(walk.backward(loss.grad(walk.output, x), nudge, old))
    value = loss.value(walk.output, x).sum() / len(y)
    return Sweep(value, walk.output, walk.gradients(network), walk.layers(), state)


@dataclass(frozen=True, eq=False)
class _Dense:
    """One layer of a run, with its own weight (out, in) and bias."""

    run: DenseRun
    index: int
    weight: Tensor
    bias: Tensor | None


@dataclass(eq=False)
class _Walk:
    """The states of one forward pass, and what the way back finds. Row J is the output."""

    network: Network
    y: Tensor
    context: Context
    v: list[Tensor] = field(default_factory=list)
    residuals: dict[int, Tensor] = field(default_factory=dict)
    taped: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dense = _dense_layers(self.network)
        with torch.enable_grad():
            self.form: UnifiedForm = self.network.operators()
        self.linear: dict[int, Tensor] = {}
        self.coupled: dict[int, Tensor] = {}
        self.u, z = [self.y], []
        for j, activation in enumerate(self.form.activations):
            self.v.append(self._affine(j))
            z.append(activation(self.v[j]).detach())
            if j in self.dense:  # a plain chain here: u = z
                self.u.append(z[j])
                continue
            with torch.enable_grad():
                self.coupled[j] = self.form.couple(j, self.u, z, self.context)
            self.u.append(self.coupled[j].detach())
        self.output = self._affine(self.form.depth)

    def backward(self, gradient: Tensor, nudge: Nudge, multipliers: Tensor) -> Tensor:
        """Fill in the residuals from output to input; returns the new multipliers."""
        depth = self.form.depth
        at_u: list[Tensor | None] = [None] * (depth + 1)
        at_z: list[Tensor | None] = [None] * depth
        each = multipliers.unbind(0)
        # Without a nudge a layer counts as awake: its multiplier stays at 1.
        self.rms, self.awake = list(torch.zeros_like(multipliers)), list(torch.ones_like(multipliers))
        self._pull(depth, gradient, at_u)
        for j in reversed(range(depth)):
            self._uncouple(j, at_u, at_z)
            if (signal := at_z[j]) is not None:
                self._pull(j, self._nudge(j, signal, nudge, each[j]), at_u)
        return nudge.adapt(multipliers, torch.stack(self.awake), torch.stack(self.rms)) if depth else multipliers

    def gradients(self, network: Network) -> dict[str, Tensor]:
        """Closed forms for dense layers, one vector–Jacobian product for all other maps."""
        found: dict[str, Tensor] = {}
        for j, layer in self.dense.items():
            self._dense_gradient(j, layer, found)
        trainable = {name: p for name, p in network.named_parameters() if p.requires_grad}
        rest = {name: p for name, p in trainable.items() if name not in found}
        if rest and self.taped:
            values, cotangents = zip(*self.taped, strict=True)
            grads = torch.autograd.grad(values, list(rest.values()), cotangents, allow_unused=True)
            found |= {name: grad for name, grad in zip(rest, grads, strict=True) if grad is not None}
        return {name: found[name] if name in found else torch.zeros_like(p) for name, p in trainable.items()}

    def layers(self) -> tuple[LayerStep, ...]:
        steps = []
        for j, layer in sorted(self.dense.items()):
            run = layer.run
            bias_name = None if run.bias is None else run.bias_name
            steps.append(LayerStep(run.weight_name, bias_name, layer.index, self.u[j], self.residuals[j]))
        return tuple(steps)

    def _affine(self, j: int) -> Tensor:
        """v of row j, or the output, without a tape; for blocks that are not dense the taped value is kept."""
        if (layer := self.dense.get(j)) is not None:
            return linear(self.u[j], layer.weight, layer.bias)
        with torch.enable_grad():
            form, context, last = self.form, self.context, j == self.form.depth
            self.linear[j] = form.output(self.u, context) if last else form.pre_activation(j, self.u, context)
        return self.linear[j].detach()

    def _pull(self, j: int, residual: Tensor, at_u: list[Tensor | None]) -> None:
        """Wᵀ of row j, or Kᵀ, added to the signals at the states it reads; y needs none."""
        self.residuals[j] = residual
        if (layer := self.dense.get(j)) is not None:
            if j > 0:
                _add(at_u, j, residual @ layer.weight)
            return
        self._tape(self.linear[j], residual)
        operator, row = (self.form.K, 0) if j == self.form.depth else (self.form.W, j)
        _add_adjoints(at_u, operator, row, residual, self.context, first=1)

    def _tape(self, value: Tensor, cotangent: Tensor) -> None:
        """Keep what reaches parameters through a linear map."""
        if value.requires_grad:
            self.taped.append((value, cotangent / len(self.y)))

    def _uncouple(self, j: int, at_u: list[Tensor | None], at_z: list[Tensor | None]) -> None:
        """From u_{j+1} = Σ V z − Σ M u of row j to the signals at z and at earlier u."""
        if (signal := at_u[j + 1]) is None:
            return
        if j in self.dense:
            _add(at_z, j, signal)
            return
        self._tape(self.coupled[j], signal)
        _add_adjoints(at_z, self.form.V, j, signal, self.context)
        _add_adjoints(at_u, self.form.M, j, -signal, self.context, first=1, end=j + 1)

    def _nudge(self, j: int, signal: Tensor, nudge: Nudge, multiplier: Tensor) -> Tensor:
        """R_j; what the layer's next multiplier needs is kept."""
        activation = self.form.activations[j]
        if isinstance(activation, Identity):
            return signal
        self.rms[j] = root_mean_square(signal)
        size = nudge.size(multiplier, self.v[j], self.rms[j])
        above, below = self._sides(j, signal, size)
        self._threshold_terms(activation, above, below, size)
        residual = two_sided(activation, above, below).mul_(0.5 / size)
        if nudge.fixed is None:
            self.awake[j] = share_of_nonzero(residual, scratch=below)
        return residual

    def _sides(self, j: int, signal: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        """v + s g and v − s g; between dense layers in the memory of v and g, which nothing reads again."""
        v = self.v[j]
        if j in self.dense and j + 1 in self.dense:
            above = v.addcmul_(signal, size)
            return above, torch.addcmul(above, signal, size, value=-2, out=signal)
        return torch.addcmul(v, signal, size), torch.addcmul(v, signal, size, value=-1)

    def _threshold_terms(self, activation: ProximalActivation, above: Tensor, below: Tensor, size: Tensor) -> None:
        """Derivatives of [Φ*(v + s g) − Φ*(v − s g)] / (2s) in the learned tensors of an activation.

        Taken at once and by themselves: the joint tape stays small, and v is never differentiated.
        """
        learned = {name: t for name, t in vars(activation).items() if isinstance(t, Tensor) and t.requires_grad}
        if not learned:
            return
        with torch.enable_grad():
            leaves = {name: value.detach().requires_grad_() for name, value in learned.items()}
            twin = replace(cast("Any", activation), **leaves)
            total = (twin.conjugate(above) - twin.conjugate(below)).sum()
        grads = torch.autograd.grad(total, list(leaves.values()))
        for value, grad in zip(learned.values(), grads, strict=True):
            self._tape(value, grad.mul_(0.5 / size))

    def _dense_gradient(self, j: int, layer: _Dense, found: dict[str, Tensor]) -> None:
        run, residual = layer.run, self.residuals[j]
        if run.weight.requires_grad:
            slot = found.setdefault(run.weight_name, torch.empty_like(run.weight))[layer.index]
            # beta=0 ignores what the memory holds; the mean costs nothing inside the product
            torch.addmm(slot, residual.T, self.u[j], beta=0, alpha=1 / len(self.y), out=slot)
        if run.bias is not None and run.bias.requires_grad:
            found.setdefault(run.bias_name, torch.empty_like(run.bias))[layer.index] = residual.mean(0)


def _dense_layers(network: Network) -> dict[int, _Dense]:
    """The dense layers by row of W; the output has the row after the last."""
    tail = network.output_run()
    found: dict[int, _Dense] = {}
    for run in (*network.dense_runs(), *(() if tail is None else (tail,))):
        weights = run.weight.detach().unbind(0)
        biases = [None] * run.count if run.bias is None else run.bias.detach().unbind(0)
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            found[run.start + i] = _Dense(run, i, weight, bias)
    return found


def _add_adjoints(
    totals: list[Tensor | None],
    operator: BlockOperator,
    row: int,
    signal: Tensor,
    context: Context,
    first: int = 0,
    end: int | None = None,
) -> None:
    """totals_k += A_kᵀ signal for the blocks of one row in columns first, …, end − 1."""
    for k, block in operator.rows[row]:
        if first <= k and (end is None or k < end):
            _add(totals, k, block.adjoint(signal, context))


def _add(totals: list[Tensor | None], k: int, term: Tensor) -> None:
    totals[k] = term if (before := totals[k]) is None else before + term


def _check(network: object, loss: object, y: Tensor, nudge: object) -> None:
    for name, value, kind in (("network", network, Network), ("loss", loss, Loss), ("nudge", nudge, Nudge)):
        if not isinstance(value, kind):
            invalid_type(f"backward_sweep {name}", f"a {kind.__name__}", value)
    assert isinstance(network, Network)
    check_batch("backward_sweep input", y, network.in_shape)
    if network.like is not None:
        check_like("backward_sweep input", y, network.like)
