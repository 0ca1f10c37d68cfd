"""Denoisers with learned filters: unrolled proximal algorithms for ½‖x − y‖² + ‖λ ⊙ Dx‖₁ over x ∈ C."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from torchlift.core.checks import check_positive, check_size
from torchlift.core.errors import invalid_value
from torchlift.networks.form import FusedRow, UnifiedForm, assemble
from torchlift.networks.unrolled import Iterative, Positive, Tied
from torchlift.operators import Context, Conv2d, Identity, LinearOperator, Scaled, cosine_filters, filter_norm
from torchlift.operators.geometry import check_image_shape
from torchlift.prox import Box, ProximalActivation, as_activation

#: Samples of a filter's spectrum per axis, where its norm is bounded in every pass.
GRID = 64


class Denoiser(Iterative):
    """What the denoisers share: one filter bank D_j and one threshold per filter in every iteration.

    Convolutions have zero padding. The filters start as cosine waves, without the mean; more filters than there are
    waves start as random rotations of them.

    Arguments:
        shape: (channels, height, width) of images; `for_images` gives the same network for other sizes.
        iterations: T.
        features: number of filters.
        size: side of the filters, odd.
        threshold: starting value of every λ.
        tied: whether all iterations share their weights.
        generator: source of the random rotations; torch's default otherwise.
        dtype: of the parameters.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        iterations: int = 8,
        *,
        features: int = 32,
        size: int = 5,
        threshold: float = 0.05,
        tied: bool = False,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        name = type(self).__name__
        shape = check_image_shape(f"{name} shape", shape)
        if check_size(f"{name} size", size) % 2 == 0:
            invalid_value(f"{name} size", "an odd number", size)
        super().__init__(shape, shape)
        self.iterations = check_size(f"{name} iterations", iterations)
        bank = _start(check_size(f"{name} features", features), shape[0], size, generator, dtype)
        self.count = 1 if tied else self.iterations
        self.filters = Tied(Conv2d(bank, shape, padding=size // 2), self.iterations, tied)
        value = check_positive(f"{name} threshold", threshold)
        self.threshold = Positive(value, self.count, bank, (features, 1, 1, 1))

    @abstractmethod
    def operators(self) -> UnifiedForm: ...

    def forward(self, y: Tensor, context: Context = None) -> Tensor:
        """N(y) for images (B, C, H, W) of any size."""
        if y.ndim == 4 and tuple(y.shape[1:]) != self.in_shape:
            return self.for_images((y.shape[1], y.shape[2], y.shape[3]))(y, context)
        return super().forward(y, context)

    def prox(self, x: Tensor, step: Tensor) -> Tensor:
        """N(x) with all thresholds λ multiplied by a number for each image, so that N is a prior of `PlugAndPlay`.

        Step 1 is the network itself. Without a constraint step s is s·N(x/s): a network that was trained for noise
        of standard deviation σ then removes noise of standard deviation sσ.

        Arguments:
            x: (B, C, H, W).
            step: ≥ 0, (B, 1, 1, 1).
        """
        steps = step.flatten().expand(len(x))
        result = x.clone()
        for value in steps[steps > 0].unique():
            result[steps == value] = self._with_thresholds(value)(x[steps == value])
        return result

    def _with_thresholds(self, factor: Tensor) -> Self:
        twin, threshold = copy.copy(self), copy.copy(self.threshold)
        threshold._parameters = {"log": self.threshold.log + factor.log()}  # type: ignore[dict-item]
        twin._modules = {**self._modules, "threshold": threshold}
        return twin

    def for_images(self, shape: tuple[int, int, int]) -> Self:
        """The same network, sharing its parameters, for images of another size."""
        where = f"{type(self).__name__}.for_images"
        shape = check_image_shape(where, shape)
        if shape[0] != self.in_shape[0]:
            invalid_value(where, f"{self.in_shape[0]} channels", shape)
        twin = copy.copy(self)
        twin._modules = {name: _resized(module, shape) for name, module in self._modules.items()}
        twin.in_shape = twin.out_shape = shape
        return twin


class _DualDenoiser(Denoiser):
    """DDFB and ScCP: primal and dual variables, a constraint, and perhaps filters of their own for the way back."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        iterations: int = 8,
        *,
        features: int = 32,
        size: int = 5,
        threshold: float = 0.05,
        constraint: ProximalActivation | None = None,
        adjoint: bool = True,
        tied: bool = False,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(
            shape, iterations, features=features, size=size, threshold=threshold, tied=tied,
            generator=generator, dtype=dtype,
        )  # fmt: skip
        self.constraint = Box(0.0, 1.0) if constraint is None else as_activation(constraint)
        bank = self.filters.operators(1)[0]
        self.dual_step = Positive(1.0, self.count, bank.tensors()["weight"])
        self.adjoint = adjoint
        if not adjoint:
            start = bank.map_tensors(lambda _, weight: weight.detach().clone())
            self.synthesis = Tied(start, self.iterations, tied)

    def _maps(self) -> list[tuple[LinearOperator, LinearOperator]]:
        """x ↦ γ_j D_j x / λ_j and q ↦ D_jᵀ(λ_j q) of every iteration; numbers are multiplied into the filters."""
        T = self.iterations
        analysis = self.filters.operators(T)
        synthesis = analysis if self.adjoint else self.synthesis.operators(T)
        numbers = zip(self.threshold.values(T), self.dual_step.values(T), strict=True)
        return [
            (_scaled(there, gamma / bound), _scaled(back, bound).T)
            for there, back, (bound, gamma) in zip(analysis, synthesis, numbers, strict=True)
        ]


class DDFB(_DualDenoiser):
    """Deep dual forward–backward: T iterations on the dual of ½‖x − y‖² + ‖λ ⊙ Dx‖₁ over x ∈ C.

    From x_0 = y and q_0 = 0,

        q_j = proj_{[−1, 1]}(q_{j-1} + γ_j D_j x_{j-1} / λ_j)
        x_j = proj_C(y − D_jᵀ(λ_j ⊙ q_j)),

    and N(y) = x_T; q is the dual variable divided by the thresholds, one per filter. With the same weights in all
    iterations and γ‖D‖² < 2 the iteration converges to the minimiser. The states are u = (y, q_1, x_1, …, q_T, x_T).

    Arguments:
        shape, iterations, features, size, threshold, tied, generator, dtype: see `Denoiser`.
        constraint: the projection onto C; `Box(0, 1)` by default.
        adjoint: False learns filters of their own in place of D_jᵀ.

    Reference: Le, Repetti & Pustelnik, PNN: from proximal algorithms to robust unfolded image denoising networks and
    plug-and-play methods (2023).
    """

    def operators(self) -> UnifiedForm:
        T, eye = self.iterations, Identity(self.in_shape)
        W: dict[tuple[int, int], LinearOperator] = {}
        activations: list[ProximalActivation] = []
        for j, (analysis, synthesis) in enumerate(self._maps()):
            # u_{2j} = x_j and u_{2j+1} = q_{j+1}; row r computes u_{r+1}
            W[2 * j, 2 * j] = analysis
            if j > 0:
                W[2 * j, 2 * j - 1] = Identity(analysis.out_shape)
            W[2 * j + 1, 0], W[2 * j + 1, 2 * j + 1] = eye, Scaled(synthesis, -1.0)
            activations += [Box(-1.0, 1.0), self.constraint]
        return assemble(self.in_shape, W, [None] * (2 * T), activations, {2 * T: eye}, like=self.like)


class ScCP(_DualDenoiser):
    """Unrolled Chambolle–Pock for strongly convex problems: ½‖x − y‖² + ‖λ ⊙ Dx‖₁ over x ∈ C.

    From x_0 = x_{-1} = y and q_0 = 0, with α_j = 1/√(1 + 2μ_j),

        q_j = proj_{[−1, 1]}(q_{j-1} + γ_j D_j((1 + α_j) x_{j-1} − α_j x_{j-2}) / λ_j)
        x_j = proj_C((x_{j-1} + μ_j (y − D_jᵀ(λ_j ⊙ q_j))) / (1 + μ_j)),

    and N(y) = x_T. The states are u = (y, q_1, x_1, …, q_T, x_T).

    Arguments:
        shape, iterations, features, size, threshold, tied, generator, dtype: see `Denoiser`.
        constraint, adjoint: see `DDFB`.

    Reference: Chambolle & Pock, J. Math. Imaging Vis. 40 (2011), Algorithm 2; Le, Repetti & Pustelnik (2023).
    """

    def __init__(self, shape: tuple[int, int, int], iterations: int = 8, **settings: Any) -> None:
        super().__init__(shape, iterations, **settings)
        self.step = Positive(1.0, self.count, self.dual_step.log)

    def operators(self) -> UnifiedForm:
        T, eye = self.iterations, Identity(self.in_shape)
        W: dict[tuple[int, int], LinearOperator] = {}
        activations: list[ProximalActivation] = []
        fused: dict[int, FusedRow] = {}
        for j, ((analysis, synthesis), mu) in enumerate(zip(self._maps(), self.step.values(T), strict=True)):
            dual, primal, alpha = 2 * j, 2 * j + 1, (1 + 2 * mu).rsqrt()
            W[dual, dual] = Scaled(analysis, 1 + alpha) if j > 0 else analysis
            if j > 0:
                W[dual, dual - 1] = Identity(analysis.out_shape)
                W[dual, dual - 2] = Scaled(analysis, -alpha)
                fused[dual] = _extrapolated(analysis, alpha, dual)
                W[primal, dual] = Scaled(eye, 1 / (1 + mu))
            W[primal, 0] = Scaled(eye, mu / (1 + mu)) if j > 0 else eye  # x_0 = y
            W[primal, primal] = Scaled(synthesis, -mu / (1 + mu))
            activations += [Box(-1.0, 1.0), self.constraint]
        return assemble(self.in_shape, W, [None] * (2 * T), activations, {2 * T: eye}, like=self.like, fused=fused)


class Certificate(NamedTuple):
    """What is known about a denoiser for images of every size: it is firmly nonexpansive if all ‖D_j‖ ≤ 1."""

    norms: tuple[float, ...]
    """Upper bounds of ‖D_j‖."""

    @property
    def firmly_nonexpansive(self) -> bool:
        return all(norm <= 1 for norm in self.norms)


class FirmDenoiser(Denoiser):
    """A denoiser that is firmly nonexpansive, ‖Ny − Ny′‖² ≤ ⟨Ny − Ny′, y − y′⟩, whatever its weights.

    From x_0 = y, T steps of dual forward–backward with ‖D_j‖ ≤ 1, each from the dual variable 0,

        x_j = x_{j-1} − D_jᵀ proj_{[−λ_j, λ_j]}(D_j x_{j-1}),   N(y) = (1 − β) y + β x_T,   β = (T + 1) / 2T.

    Each step is firmly nonexpansive, even a proximal map, since its second part is the gradient of a convex function
    with Lipschitz constant 1. T of them in a row are averaged with constant T/(T + 1), and β makes that ½. Hence
    plug-and-play methods with N converge, without momentum. D_j is W_j / max(1, ‖W_j‖), with the bound of
    `filter_norm`, which holds for images of every size; `certificate` evaluates it again.

    Arguments:
        shape, iterations, features, size, threshold, tied, generator, dtype: see `Denoiser`.

    Reference: Bauschke & Combettes, Convex Analysis and Monotone Operator Theory (2017), propositions 4.4 and 4.46;
    Pesquet, Repetti, Terris & Wiaux, SIAM J. Imaging Sci. 14 (2021).
    """

    def operators(self) -> UnifiedForm:
        T, eye = self.iterations, Identity(self.in_shape)
        W, V, M = {}, {}, {}
        for j, (bank, bound) in enumerate(zip(self._banks(), self.threshold.values(T), strict=True)):
            # the projection onto [−λ, λ] is λ times that of v / λ onto [−1, 1]
            W[j, j], V[j, j] = _scaled(bank, 1 / bound), Scaled(_scaled(bank, bound).T, -1.0)
            M[j, j] = Scaled(eye, -1.0)
        beta = (T + 1) / (2 * T)
        K = {0: Scaled(eye, 1 - beta), T: Scaled(eye, beta)} if T > 1 else {T: eye}
        return assemble(self.in_shape, W, [None] * T, [Box(-1.0, 1.0)] * T, K, V=V, M=M, like=self.like)

    @torch.no_grad()
    def certificate(self) -> Certificate:
        """Bounds of ‖D_j‖ at the current weights, in double precision."""
        banks = self._banks()[: self.count]
        return Certificate(tuple(float(filter_norm(bank.tensors()["weight"].double(), GRID)) for bank in banks))

    def _banks(self) -> list[LinearOperator]:
        """W_j / max(1, ‖W_j‖), with room for the rounding of single precision."""
        banks = self.filters.operators(self.iterations)
        norms = [filter_norm(bank.tensors()["weight"], GRID) for bank in banks]
        return [_scaled(bank, (1 - 1e-5) / norm.clamp(min=1.0)) for bank, norm in zip(banks, norms, strict=True)]


def _scaled(bank: LinearOperator, factor: Tensor) -> LinearOperator:
    return bank.map_tensors(lambda _, weight: weight * factor)


def _extrapolated(analysis: LinearOperator, alpha: Tensor, dual: int) -> FusedRow:
    """q + D((1 + α) x_{j-1} − α x_{j-2}), with D applied once."""

    def row(u: Sequence[Tensor], context: Context) -> Tensor:
        x, before = u[dual], u[dual - 2]
        return u[dual - 1] + analysis.forward(x + alpha * (x - before), context)

    return row


def _start(features: int, channels: int, size: int, generator: torch.Generator | None, dtype: torch.dtype) -> Tensor:
    """Filters without a mean, together with a norm of about 1."""
    waves = cosine_filters(size, channels, dtype=torch.float64)
    frequency = torch.arange(size)[:, None] + torch.arange(size)
    order = frequency.flatten().repeat(channels).argsort(stable=True)
    waves = waves[order[channels:]]  # low frequencies first, without the mean of each mixture of channels
    banks = [waves]
    while sum(map(len, banks)) < features:
        noise = torch.randn(len(waves), len(waves), dtype=torch.float64, generator=generator)
        banks.append((torch.linalg.qr(noise).Q @ waves.flatten(1)).reshape(waves.shape))
    return (torch.cat(banks)[:features] / len(banks) ** 0.5).to(dtype)


def _resized(module: Any, shape: tuple[int, int, int]) -> Any:
    """A stack of filters for images of another size; everything else as it is."""
    if not isinstance(module, Tied):
        return module
    twin, stack = copy.copy(module), copy.copy(module.stack)
    stack.template = replace(stack.template, input_shape=shape)  # type: ignore[type-var]
    twin._modules = {**module._modules, "stack": stack}
    return twin
