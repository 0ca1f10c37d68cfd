"""The lifted inversion problem: what every algorithm for it may ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from torchlift.core.errors import TorchliftError
from torchlift.functions.base import Amount, Function, Part, Split, along
from torchlift.functions.losses import Loss, SquaredError
from torchlift.functions.priors import PlugAndPlay
from torchlift.inversion.layers import Layers, Tensors
from torchlift.liftings import Bregman
from torchlift.operators import Context
from torchlift.operators.context import select_context
from torchlift.prox import Box, Identity, ProximalActivation, ReLU

BREGMAN = Bregman()

#: Grey images without an axis of channels have at least so many rows.
SIDE = 8
#: An objective is small in comparison with so many times that of the start, at most; and a start fits to rounding where
#: its residual is at most so many eps of the outputs.
STARTED, ROUNDED = 10.0, 64.0

#: Activations whose Ψ is 0 on their range, where inversion keeps z.
FLAT = (ReLU, Box)


@dataclass(frozen=True, eq=False)
class InversionProblem:
    """For each image, minimise over the input x and the activations z_1 … z_{n−1}

        Σ_r μ_r B_r(z_r, v_r) + ρ R(x) + λ/2 ‖x − x₀‖²,   B_r(z, v) = Φ_r(z) + Φ_r*(v) − ⟨z, v⟩,

    with v = W u + b, M u = V z, u_0 = x and z_n the data. B_r ≥ 0 vanishes where
    z_r = σ_r(v_r). The objective is convex in each variable, not in all of them
    together, except for one layer. Nested methods minimise the objective of the
    network itself,

        L(N(x); y) + ρ R(x) + λ/2 Σ_i t_i (x − x₀)_i²,   L(p; y) = ½‖p − y‖² by default.

    Images of a batch have nothing to do with each other but share the network.

    Arguments:
        layers: the network in the unified form; None where only N itself is known.
        target: the data as z_n (B, …).
        output: the data as it was given, y (B, *out_shape).
        split: the prior R = h + Σ g_i ∘ A_i.
        weight: ρ ≥ 0, one per image: (B,).
        mu: μ_1 … μ_n > 0.
        anchor: λ ≥ 0.
        guess: x₀ (B, *in_shape).
        context: per-sample context of the network's operators.
        curvatures: of x, z_1, …: Lipschitz constants of the layers' gradient in each variable; none for algorithms that
            need none.
        dual_norm: a bound of Σ ‖A_i‖².
        loss: L.
        network: (inputs, context) ↦ N; by default the forward pass of the layers.
        lifted: whether the first of the two objectives is minimised.
        trust: t, how strongly every entry is held at the guess in comparison with others, like x; 1 for all alike.
    """

    layers: Layers | None
    target: Tensor
    output: Tensor
    split: Split
    weight: Tensor
    mu: tuple[float, ...]
    anchor: float
    guess: Tensor
    context: Context
    curvatures: tuple[float, ...]
    dual_norm: float
    loss: Loss = field(default_factory=SquaredError)
    network: Callable[[Tensor, Context], Tensor] | None = None
    lifted: bool = False
    trust: Tensor | float = 1.0

    @property
    def batch(self) -> int:
        return self.target.shape[0]

    @cached_property
    def weights(self) -> Tensor:
        """ρ in a shape that broadcasts against images."""
        weights = along(self.weight, self.guess)
        assert isinstance(weights, Tensor)
        return weights

    @cached_property
    def free_split(self) -> Split:
        """The prior without its constraint, which every iterate obeys."""
        return replace(self.split, proximal=None) if self.constrained else self.split

    @property
    def constrained(self) -> bool:
        """Whether the prior's part h on the input is a constraint."""
        proximal = self.split.proximal
        return proximal is not None and proximal.function.constraint

    @property
    def chain(self) -> Layers:
        """The unified form, which lifted algorithms cannot do without."""
        assert self.layers is not None
        return self.layers

    @property
    def blind(self) -> bool:
        """Whether R has no values, only a proximal map, so that objectives cannot be compared."""
        functions = [part.function for part in self.split.parts]
        return any(isinstance(function, PlugAndPlay) and function.function is None for function in functions)

    @property
    def entrywise(self) -> bool:
        """Whether R has values and its constraints hold entries one by one, which L-BFGS needs."""
        functions = [part.function for part in self.split.parts]
        return not any(isinstance(f, PlugAndPlay) or (f.constraint and not f.elementwise) for f in functions)

    @property
    def smooth_prior(self) -> bool:
        """Whether R is smooth but for constraints, so that nothing has to stand in for it."""
        return all(part.function.constraint or part.function.smooth for part in self.split.parts)

    @property
    def touching(self) -> Tensor | None:
        """Entries of the start that reach a constraint on single entries, or lie beyond it; None without any."""
        if not (self.constrained and self.entrywise):
            return None
        inside = self.split.prox(self.guess, 0.0)
        size = torch.finfo(inside.dtype).eps ** 0.5
        # a step to one of the two sides leads nowhere
        edge = (self.split.prox(inside + size, 0.0) == inside) | (self.split.prox(inside - size, 0.0) == inside)
        return edge if bool(edge.any()) else None

    def held(self) -> InversionProblem:
        """The problem in which entries of the start that touch a constraint stay where it puts them."""
        touching = self.touching
        if touching is None or self.split.proximal is None:
            return self
        function = Held(self.split.proximal.function, touching, self.split.prox(self.guess, 0.0))
        return replace(self, split=replace(self.split, proximal=Part(function)))

    def sweepable(self) -> InversionProblem | None:
        """The problem with curvatures, which sweeps need; None where a layer has none."""
        if self.curvatures or self.layers is None:
            return self if self.curvatures else None
        try:
            curvatures = tuple(each.curvature(self.mu, self.context) for each in self.layers.jacobians)
        except TorchliftError:
            return None
        return replace(self, curvatures=curvatures)

    def gaps(self, z: Sequence[Tensor], v: Sequence[Tensor]) -> list[Tensor]:
        """B_r(z_r, v_r) of every layer, one per image: (B,) each."""
        pairs = zip(self.chain.activations, (*z, self.target), v, strict=True)
        return [_gap(activation, a, b) for activation, a, b in pairs]

    def value(self, x: Tensor, z: Sequence[Tensor], v: Sequence[Tensor], products: Tensors) -> Tensor:
        """The objective of every image: (B,)."""
        total = self.prior_value(x, products)
        for mu, gap in zip(self.mu, self.gaps(z, v), strict=True):
            total = total + mu * gap
        return total

    def prior_value(self, x: Tensor, products: Tensors) -> Tensor:
        """ρ R(x) + λ/2 Σ_i t_i (x − x₀)_i²: (B,)."""
        total = self.weight * self.free_split.value(x, products)
        return total + self.anchor_value(x) if self.anchor else total

    def anchor_value(self, x: Tensor) -> Tensor:
        """λ/2 Σ_i t_i (x − x₀)_i²: (B,)."""
        apart = x - self.guess
        return 0.5 * torch.linalg.vecdot(apart.flatten(1), (self.stiffness * apart).flatten(1))

    @property
    def stiffness(self) -> Tensor | float:
        """λt, the curvature of the anchor in every entry."""
        return self.anchor * self.trust

    def vjp(self, j: int, z: Sequence[Tensor], v: Sequence[Tensor]) -> Tensor:
        """The gradient in variable j (x for 0) of the layers it feeds: Σ_r (∂v_r/∂z_j)ᵀ μ_r (σ_r(v_r) − z_r).

        Arguments:
            v: the pre-activations of the rows of Jacobian j, in their order.
        """
        jacobian = self.chain.jacobians[j]
        residuals = []
        for r, pre in zip(jacobian.rows, v, strict=True):
            clamped = z[r] if r < len(z) else self.target
            residual = self.chain.activations[r](pre) - clamped
            residuals.append(residual if self.mu[r] == 1 else self.mu[r] * residual)
        return jacobian.adjoint(residuals, self.context)

    def input_curvature(self) -> float:
        """The Lipschitz constant of the smooth part in x, the anchor included."""
        return self.curvatures[0] + float(torch.as_tensor(self.stiffness).max())

    def residual(self, x: Tensor) -> Tensor:
        """‖N(x) − y‖ through the network itself: (B,)."""
        return torch.linalg.vector_norm(as_rows(self.forward(x) - self.output), dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """N(x)."""
        if self.network is not None:
            return self.network(x, self.context)
        return self.chain.form.states(x, self.context).output

    def smooth_value(self, x: Tensor) -> Tensor:
        """L(N(x); y) and the anchor: (B,)."""
        output = self.forward(x)
        plain = type(self.loss) is SquaredError
        fit = 0.5 * square_sum(output - self.output) if plain else self.loss.value(output, self.output)
        return fit + self.anchor_value(x) if self.anchor else fit

    def smooth_gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """L(N(x); y) and the anchor with their gradient, by back-propagation: (B,) and like x."""
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            value = self.smooth_value(leaf)
            (gradient,) = torch.autograd.grad(value.sum(), leaf)
        return value.detach(), gradient

    def network_value(self, x: Tensor) -> Tensor:
        """The objective of the network itself: (B,)."""
        return self.smooth_value(x) + self.weight * self.free_split.value(x, self.split.products(x))

    def dual_gap(self, products: Tensors, duals: Tensors) -> Tensor:
        """Σ_i ρg_i(A_i x) + (ρg_i)*(p_i) − ⟨A_i x, p_i⟩ ≥ 0: how far the p_i are from ρ∂g_i(A_i x), (B,)."""
        total = torch.zeros_like(self.weight)
        for term, ax, p in zip(self.split.terms, products, duals, strict=True):
            if term.function.has_conjugate:
                inner = torch.linalg.vecdot(ax.flatten(1), p.flatten(1))
                total = total + self.weight * term.value(ax) + term.conjugate(p, self.weight) - inner
        return total.clamp_min(0)

    @cached_property
    def data_size(self) -> Tensor:
        """½‖y‖², which says what a small objective is: (B,)."""
        return 0.5 * square_sum(self.output)

    def visible_size(self, start: Tensor) -> Tensor:
        """What says that an objective is small, given that of the start: (B,).

        ½‖y‖², but where outputs hardly depend on the input, such as behind many sigmoids, ten times the objective of
        the start: a small share of ½‖y‖² would be all there is to see. A start that fits to rounding tells nothing.
        """
        fits = start.abs() <= (ROUNDED * torch.finfo(start.dtype).eps) ** 2 * self.data_size
        return torch.where(fits, self.data_size, torch.minimum(self.data_size, STARTED * start.abs()))

    def select(self, index: Tensor) -> InversionProblem:
        """The problem of some images only."""
        split = self.split
        if split.proximal is not None and isinstance(held := split.proximal.function, Held):
            split = replace(split, proximal=Part(Held(held.function, held.mask[index], held.values[index])))
        return replace(
            self,
            split=split,
            target=self.target[index],
            output=self.output[index],
            weight=self.weight[index],
            guess=self.guess[index],
            context=select_context(self.context, index),
            trust=self.trust[index] if isinstance(self.trust, Tensor) else self.trust,
        )


@dataclass(frozen=True, eq=False)
class Held(Function):
    """A constraint on single entries, some of which have one value only: where the mask is true, that of `values`."""

    elementwise: ClassVar[bool] = True
    constraint: ClassVar[bool] = True

    function: Function
    mask: Tensor
    values: Tensor

    def value(self, x: Tensor) -> Tensor:
        inside = (~self.mask | (x == self.values)).flatten(1).all(1)
        return self.function.value(x).masked_fill(~inside, torch.inf)

    def prox(self, x: Tensor, step: Amount = 1.0) -> Tensor:
        return torch.where(self.mask, self.values, self.function.prox(x))


def _gap(activation: ProximalActivation, z: Tensor, v: Tensor) -> Tensor:
    """B(z, v), one per image: (B,)."""
    if isinstance(activation, Identity):
        return 0.5 * square_sum(z - v)
    if not isinstance(activation, FLAT):
        return per_image(BREGMAN.value(activation, z, v, 1.0))
    # Ψ(z) = Ψ(p) = 0, and ½‖z − p‖² − ⟨v − p, z − p⟩ is left: a third of the work
    p = activation(v)
    gap = z - p
    return torch.linalg.vecdot(gap.flatten(1), p.sub_(v).add_(gap, alpha=0.5).flatten(1))


def per_image(terms: Tensor) -> Tensor:
    """Sums over everything but the batch axis: (B,). Groupwise activations give one term per group."""
    return terms.reshape(terms.shape[0], -1).sum(1)


def is_picture(x: Tensor) -> bool:
    """Whether inputs are images or volumes (B, channels, …), or grey images (B, side, side) without channels.

    Sequences of vectors are seldom as long as their vectors.
    """
    return x.ndim >= 4 or (x.ndim == 3 and x.shape[1] == x.shape[2] >= SIDE)


def square_sum(tensor: Tensor) -> Tensor:
    """‖·‖² of every image: (B,)."""
    flat = as_rows(tensor)
    return torch.linalg.vecdot(flat, flat)


def as_rows(tensor: Tensor) -> Tensor:
    """What belongs to one image in one row, also where that is a single number: (B, entries)."""
    return tensor.flatten(1) if tensor.ndim > 1 else tensor[:, None]
