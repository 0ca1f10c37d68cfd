"""A Gram-preconditioned implicit step for dense layers, from their inputs and residuals alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from torchlift.core.checks import check_like, check_number, check_positive, check_size, check_tensor
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.distributed import Share

#: Attempts at a Cholesky factor, each with ten times the damping, before a step is given up.
ATTEMPTS = 12


@dataclass(frozen=True, eq=False)
class GramState:
    """What the steps of J equal layers remember; every tensor has a leading axis of length J.

    Arguments:
        count: steps made so far.
        taken: batches that the average has taken in.
        covariance: running average of the batches' covariances, (J, n, n), not yet divided by 1 − decay^taken.
        mean: running average of the inputs, (J, n), not yet divided by 1 − decay^(count).
        ridge: multiple of the identity in the metric, (J,).
        inverse: P, the inverse of the metric, (J, n, n).
        weight_momentum, bias_momentum: moving sums of the steps, (J, m, n) and (J, m).
    """

    count: int
    taken: int
    covariance: Tensor
    mean: Tensor
    ridge: Tensor
    inverse: Tensor
    weight_momentum: Tensor
    bias_momentum: Tensor


@dataclass(frozen=True, eq=False)
class GramUpdate:
    """A step.

    Arguments:
        weight, bias: what is to be added to the parameters; shaped like them.
        state: for the next step.
        raised: how many times the damping had to grow for a Cholesky factor.
        ok: false where there was none, or the step was not finite; then the step is zero and the state as before.
    """

    weight: Tensor
    bias: Tensor | None
    state: GramState
    raised: int
    ok: bool


class _Moments(NamedTuple):
    """Means over a batch: x̄x̄ᵀ, x̄rᵀ, x̄ and r, with a leading axis of length J."""

    gram: Tensor
    cross: Tensor
    mean: Tensor
    residual: Tensor


@dataclass(frozen=True, eq=False)
class _Batch:
    """Centred inputs x̄ (J, B, n) and residuals r (J, B, m), and which samples of a batch they are."""

    x: Tensor
    r: Tensor
    share: Share | None

    @property
    def few(self) -> bool:
        """Whether there are fewer samples than inputs; never where many processes share the batch."""
        return self.share is None and self.x.shape[1] < self.x.shape[2]

    @cached_property
    def moments(self) -> _Moments:
        xt, count = self.x.transpose(1, 2), self.x.shape[1]
        own = (xt @ self.x / count, xt @ self.r / count, self.x.mean(1), self.r.mean(1))
        return _Moments(*_shared(self.share, *own))


@dataclass(frozen=True)
class GramStep:
    """An implicit step for v = W u + b whose proximal term knows the inputs seen so far.

    With residuals R, the gradients of the samples' losses in v, which are
    1-Lipschitz in v (squared error, cross-entropy, Bregman penalties), the mean
    loss of a batch is at most, up to a constant, the first sum of

        min over A = (ΔW, c)  1/B Σ_i [⟨r_i, A x̄_i⟩ + ½‖A x̄_i‖²] + 1/(2τ) [tr(ΔW P⁻¹ ΔWᵀ) + ‖c‖²],

    where x̄_i = (u_i − ū, 1), c = Δb + ΔW ū and P⁻¹ = C + δI, C the running
    covariance. The second sum keeps what earlier batches taught. Setting the
    gradient to zero gives, with Q = diag(P, 1) and X̄ (B, n + 1),

        E = (I + τ/B X̄ Q X̄ᵀ)⁻¹ R,  A = −τ/B Eᵀ X̄ Q        (B × B: batches smaller than the layer)
        A (X̄ᵀX̄/B + Q⁻¹/τ) = −RᵀX̄/B                        (n × n: all others)

    As the batch itself stands in the system, no step moves its predictions
    further than its own minimiser, for every τ > 0 and however stale C is.
    Centring (ū the running mean) eliminates the bias: a shift of the inputs
    changes nothing but b. The step is then averaged, A ← βA_old + A, and
    scaled to ‖ΔW‖ ≤ ρ‖W‖.

    Arguments:
        step: τ > 0; use `dataclasses.replace` for a schedule.
        decay: weight of the past in the running averages, in [0, 1]. 1 keeps C = 0: a multiple of the
            identity as metric, which is the plain implicit step.
        damping: δ as a multiple of the mean diagonal of C, or of the batch's covariance where that is larger.
        momentum: β in [0, 1).
        centring: whether to eliminate the bias; layers without a bias are never centred.
        limit: ρ, None for no limit. Zero weights are not limited.
        refresh: steps between two updates of C and of its inverse, which cost more than the step itself.

    Reference: Toulis and Airoldi, Ann. Statist. 45 (2017), for implicit stochastic gradients;
    Martens and Grosse, Optimizing neural networks with Kronecker-factored curvature (2015), for the metric.
    """

    step: float = 0.3
    decay: float = 0.95
    damping: float = 1.0
    momentum: float = 0.9
    centring: bool = True
    limit: float | None = 0.05
    refresh: int = 10

    def __post_init__(self) -> None:
        check_positive("GramStep step", self.step)
        if not 0 <= check_number("GramStep decay", self.decay) <= 1:
            invalid_value("GramStep decay", "a number in [0, 1]", self.decay)
        check_positive("GramStep damping", self.damping)
        if not 0 <= check_number("GramStep momentum", self.momentum) < 1:
            invalid_value("GramStep momentum", "a number in [0, 1)", self.momentum)
        if not isinstance(self.centring, bool):
            invalid_type("GramStep centring", "True or False", self.centring)
        if self.limit is not None:
            check_positive("GramStep limit", self.limit)
        check_size("GramStep refresh", self.refresh)

    def init(self, weight: Tensor) -> GramState:
        """The state before the first step of layers with weights (m, n) or (J, m, n)."""
        layers, outputs, inputs = _stacked("weight", weight).shape

        def zeros(*shape: int) -> Tensor:
            return weight.new_zeros(layers, *shape)

        square = (inputs, inputs)
        return GramState(
            0, 0, zeros(*square), zeros(inputs), zeros(), zeros(*square), zeros(outputs, inputs), zeros(outputs)
        )

    @torch.no_grad()
    def update(
        self,
        state: GramState,
        weight: Tensor,
        bias: Tensor | None,
        inputs: Tensor,
        residual: Tensor,
        share: Share | None = None,
    ) -> GramUpdate:
        """The step of one layer, or of J equal layers at once.

        Arguments:
            weight, bias: W (m, n) and b (m,) or None; (J, m, n) and (J, m) for a stack.
            inputs: u, (B, n) or (J, B, n).
            residual: R, (B, m) or (J, B, m), without 1/B.
            share: which samples of a batch these are, where many processes share it. The n × n system is used then,
                whose matrices are sums over the samples of all.
        """
        w, x, r = _stacked("weight", weight), _stacked("inputs", inputs), _stacked("residual", residual)
        _check_shapes(state, weight, bias, w, x, r)
        mean = self._average_mean(state, *_shared(share, x.mean(1)))
        centred = self.centring and bias is not None
        x = x - self._mean(mean, state.count + 1)[:, None] if centred else x
        batch = _Batch(x, r, share)
        new, raised, ok = self._average(replace(state, count=state.count + 1, mean=mean), batch)
        solve = self._by_samples if batch.few else self._by_features
        step, shift, more, solved = solve(new, batch, bias is not None)
        if not (ok and solved):
            still = None if bias is None else torch.zeros_like(bias)
            return GramUpdate(torch.zeros_like(weight), still, state, raised + more, False)
        new, step, shift = self._move(new, w, step, shift)
        if centred:
            shift = shift - (step @ self._mean(mean, new.count)[:, :, None]).squeeze(-1)
        return GramUpdate(step.view_as(weight), None if bias is None else shift.view_as(bias), new, raised + more, True)

    def _average_mean(self, state: GramState, mean: Tensor) -> Tensor:
        # With decay 1 the mean would stay zero: it is then the plain average of all batches.
        weight = 1 - self.decay if self.decay < 1 else 1.0
        return (state.mean * self.decay).add_(mean, alpha=weight)

    def _mean(self, average: Tensor, count: int) -> Tensor:
        return average / (1 - self.decay**count if self.decay < 1 else count)

    def _average(self, state: GramState, batch: _Batch) -> tuple[GramState, int, bool]:
        """The state with this batch in its average and a new metric, every `refresh` steps."""
        if (state.count - 1) % self.refresh:
            return state, 0, True
        x, covariance = batch.x, state.covariance
        own = x.square().mean((1, 2)) if batch.few else batch.moments.gram.diagonal(dim1=1, dim2=2).mean(1)
        if self.decay < 1:
            gram = x.transpose(1, 2) @ x / x.shape[1] if batch.few else batch.moments.gram
            covariance = (covariance * self.decay).add_(gram, alpha=1 - self.decay)
        state = replace(state, covariance=covariance, taken=state.taken + 1)
        metric = self._metric(state)
        seen = metric.diagonal(dim1=1, dim2=2).mean(1)
        tiny = torch.finfo(x.dtype).tiny ** 0.5
        factor, ridge, raised, ok = _factor(metric, (self.damping * torch.maximum(seen, own)).clamp(min=tiny))
        inverse = torch.cholesky_inverse(factor) if ok else state.inverse
        return replace(state, ridge=ridge, inverse=inverse), raised, ok

    def _metric(self, state: GramState) -> Tensor:
        """C, without the ridge."""
        return state.covariance / (1 - self.decay**state.taken) if self.decay < 1 else state.covariance

    def _by_samples(self, state: GramState, batch: _Batch, biased: bool) -> tuple[Tensor, Tensor, int, bool]:
        """(ΔW, c) by the B × B system."""
        x, r = batch.x, batch.r
        scale = self.step / x.shape[1]
        xp = x @ state.inverse
        system = (xp @ x.transpose(1, 2)).add_(1.0 if biased else 0.0).mul_(scale)
        system.diagonal(dim1=1, dim2=2).add_(1.0)
        factor, _, raised, ok = _factor(system, system.new_zeros(len(x)))
        e = torch.cholesky_solve(r, factor)
        step, shift = -scale * (e.transpose(1, 2) @ xp), -scale * e.sum(1)
        return step, shift, raised, ok and _finite(step, shift)

    def _by_features(self, state: GramState, batch: _Batch, biased: bool) -> tuple[Tensor, Tensor, int, bool]:
        """(ΔW, c) by the n × n system, with one row more for the bias."""
        moments, n = batch.moments, batch.x.shape[2]
        system, right = self._metric(state) / self.step + moments.gram, moments.cross
        system.diagonal(dim1=1, dim2=2).add_(state.ridge[:, None] / self.step)
        if biased:
            system = torch.nn.functional.pad(system, (0, 1, 0, 1))
            system[:, n, :n] = system[:, :n, n] = moments.mean
            system[:, n, n] = 1 + 1 / self.step
            right = torch.cat([right, moments.residual[:, None]], 1)
        factor, _, raised, ok = _factor(system, system.new_zeros(len(system)))
        solution = -torch.cholesky_solve(right, factor).transpose(1, 2)
        step = solution[:, :, :n].contiguous()
        shift = solution[:, :, n].contiguous() if biased else torch.zeros_like(solution[:, :, 0])
        return step, shift, raised, ok and _finite(step, shift)

    def _move(self, state: GramState, w: Tensor, step: Tensor, shift: Tensor) -> tuple[GramState, Tensor, Tensor]:
        """Momentum, then the limit of the relative step."""
        step = step.add_(state.weight_momentum, alpha=self.momentum)
        shift = shift.add_(state.bias_momentum, alpha=self.momentum)
        if self.limit is not None:
            size, moved = (torch.linalg.vector_norm(t, dim=(1, 2)) for t in (w, step))
            factor = torch.where((size > 0) & (moved > 0), self.limit * size / moved, 1.0).clamp(max=1.0)
            step, shift = step * factor[:, None, None], shift * factor[:, None]
        return replace(state, weight_momentum=step, bias_momentum=shift), step, shift


def _shared(share: Share | None, *means: Tensor) -> tuple[Tensor, ...]:
    """Means over the whole batch from those over the samples here, in one exchange."""
    if share is not None:
        share.mean_(*means)
    return means


def _factor(matrix: Tensor, ridge: Tensor) -> tuple[Tensor, Tensor, int, bool]:
    """Cholesky factors of matrix + ridge·I, the ridges with which they exist, how often those grew, and success."""
    least = torch.finfo(matrix.dtype).eps * matrix.diagonal(dim1=1, dim2=2).mean(1)
    for raised in range(ATTEMPTS):
        damped = matrix.clone()
        damped.diagonal(dim1=1, dim2=2).add_(ridge[:, None])
        factor, info = torch.linalg.cholesky_ex(damped)
        failed = (info != 0) | ~torch.isfinite(factor).flatten(1).all(1)
        if not bool(failed.any()):
            return factor, ridge, raised, True
        ridge = torch.where(failed, 10 * torch.maximum(ridge, least), ridge)
    return matrix, ridge, ATTEMPTS, False


def _finite(*tensors: Tensor) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def _stacked(name: str, tensor: Tensor) -> Tensor:
    """One layer as a stack of one."""
    if check_tensor(f"GramStep {name}", tensor).ndim not in (2, 3):
        invalid_value(f"GramStep {name}", "a matrix, or a stack of matrices", f"shape {tuple(tensor.shape)}")
    return tensor.detach()[None] if tensor.ndim == 2 else tensor.detach()


def _check_shapes(state: GramState, weight: Tensor, bias: Tensor | None, w: Tensor, x: Tensor, r: Tensor) -> None:
    layers, outputs, n = w.shape
    batch = x.shape[1]
    if not isinstance(state, GramState):
        invalid_type("GramStep state", "the GramState of `init`", state)
    if tuple(state.weight_momentum.shape) != tuple(w.shape):
        made = tuple(state.weight_momentum.shape)
        invalid_value("GramStep state", f"one for weights of shape {tuple(w.shape)}", made, "Use `init(weight)`.")
    if bias is not None and tuple(bias.shape) != tuple(weight.shape[:-1]):
        invalid_value("GramStep bias", f"shape {tuple(weight.shape[:-1])}", tuple(bias.shape))
    if tuple(x.shape) != (layers, batch, n) or batch == 0:
        invalid_value("GramStep inputs", f"{layers} x (batch, {n}) with at least one sample", tuple(x.shape))
    if tuple(r.shape) != (layers, batch, outputs):
        invalid_value("GramStep residual", f"shape {(layers, batch, outputs)}", tuple(r.shape))
    for name, tensor in (("inputs", x), ("residual", r)):
        check_like(f"GramStep {name}", tensor, w)
