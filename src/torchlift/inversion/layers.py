"""A network as layers that inversion can move one at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from torchlift import operators
from torchlift.core.checks import Shape
from torchlift.inversion.sub_pixel import quick
from torchlift.networks import Network
from torchlift.networks.form import UnifiedForm
from torchlift.operators import Context, LinearOperator
from torchlift.prox import Identity, ProximalActivation

Tensors: TypeAlias = tuple[Tensor, ...]
Row: TypeAlias = tuple[tuple[int, LinearOperator], ...]
"""The non-zero blocks (column, operator) of one row of a block operator."""


@dataclass(frozen=True, eq=False)
class Jacobian:
    """How one variable moves the pre-activations: the blocks of ∂v/∂z_j (of ∂v/∂x for j = 0), never multiplied out.

    In a plain chain this is the single block W_{j+1}. With skip connections
    z_j also reaches later states through M u = V z, and several rows of W.

    Arguments:
        rows: the layers r whose v_r depends on the variable, counted from 0.
        states: the states u_k that do, in increasing order.
        source: {u_k: V_kj}, where the variable enters; for the input u_0 alone, without an operator.
        coupling: (M_kl …) of each state, its own identity left out.
        reads: (W_rk …) of each row, of the states above only.
    """

    rows: tuple[int, ...]
    states: tuple[int, ...]
    source: tuple[LinearOperator | None, ...]
    coupling: tuple[Row, ...]
    reads: tuple[Row, ...]

    def forward(self, change: Tensor, context: Context = None) -> Tensors:
        """The changes of v_r that a change of the variable makes."""
        du: dict[int, Tensor] = {}
        for state, source, coupling in zip(self.states, self.source, self.coupling, strict=True):
            parts = [] if source is None else [source.forward(change, context)]
            parts += [-block.forward(du[other], context) for other, block in coupling]
            du[state] = _total(parts) if parts else change  # the input is a state itself
        return tuple(_total([block.forward(du[k], context) for k, block in row]) for row in self.reads)

    def adjoint(self, residuals: Sequence[Tensor], context: Context = None) -> Tensor:
        """Σ_r (∂v_r/∂z_j)ᵀ s_r for one residual s_r per row."""
        du: dict[int, list[Tensor]] = {state: [] for state in self.states}
        for row, residual in zip(self.reads, residuals, strict=True):
            for k, block in row:
                du[k].append(block.adjoint(residual, context))
        collected: list[Tensor] = []
        for state, source, coupling in zip(
            reversed(self.states), reversed(self.source), reversed(self.coupling), strict=True
        ):
            if not du[state]:
                continue
            gradient = _total(du[state])
            for other, block in coupling:
                du[other].append(-block.adjoint(gradient, context))
            if source is not None:
                collected.append(source.adjoint(gradient, context))
            elif not coupling:
                collected.append(gradient)  # the input is a state itself
        return _total(collected)

    def curvature(self, weights: Sequence[float], context: Context = None) -> float:
        """A bound of ‖∂v/∂z_j‖² with row r weighted by μ_r: the Lipschitz constant of the gradient in z_j."""
        single = len(self.rows) == len(self.states) == len(self.reads[0]) == 1
        if single and (self.source[0] is None or self.source[0].is_orthogonal):
            return weights[self.rows[0]] * self.reads[0][0][1].norm_bound(context) ** 2
        return _Stacked(self, tuple(math.sqrt(weights[r]) for r in self.rows)).norm_bound(context) ** 2


@dataclass(frozen=True, eq=False)
class _Stacked(LinearOperator):
    """All rows of a Jacobian on top of each other, flattened and scaled, so that its norm can be bounded."""

    jacobian: Jacobian
    scales: tuple[float, ...]

    @property
    def in_shape(self) -> Shape:
        source = self.jacobian.source[0]
        return self.jacobian.reads[0][0][1].in_shape if source is None else source.in_shape

    @property
    def out_shape(self) -> Shape:
        return (sum(math.prod(row[0][1].out_shape) for row in self.jacobian.reads),)

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        parts = self.jacobian.forward(x, context)
        return torch.cat(
            [scale * part.reshape(len(part), -1) for scale, part in zip(self.scales, parts, strict=True)], 1
        )

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        shapes = [row[0][1].out_shape for row in self.jacobian.reads]
        parts = y.split([math.prod(shape) for shape in shapes], 1)
        scaled = [
            scale * part.reshape(-1, *shape) for scale, part, shape in zip(self.scales, parts, shapes, strict=True)
        ]
        return self.jacobian.adjoint(scaled, context)


@dataclass(frozen=True, eq=False)
class Layers:
    """n layers v_r = Σ_k W_rk u_k + b_r with z_r ≈ σ_r(v_r); z_n is the data, z_1 … z_{n−1} and x = u_0 are free.

    A network that ends in an activation has its last z clamped to the data. One
    that ends in an affine map K u + d has this map as one more layer with the
    identity for σ, so that its distance is ½‖y − (K u + d)‖².

    Arguments:
        form: K, d, M, V, W, b and σ.
        activations: σ_1 … σ_n.
        jacobians: of x, z_1, …, z_{n−1}.
    """

    form: UnifiedForm
    activations: tuple[ProximalActivation, ...]
    jacobians: tuple[Jacobian, ...]

    @classmethod
    def of(cls, network: Network) -> Layers:
        form = network.operators()
        activations = form.activations
        if not ends_in_activation(form):
            activations = (*activations, Identity())
        count = len(activations)
        return cls(form, activations, tuple(_jacobian(form, count, j) for j in range(count)))

    @property
    def count(self) -> int:
        """n."""
        return len(self.activations)

    def target(self, y: Tensor) -> Tensor:
        """The data as the last layer's z: y itself, or Kᵀ(y − d) where K only reshapes the last activation."""
        if not ends_in_activation(self.form):
            return y
        ((_, block),) = self.form.K.rows[0]
        d = self.form.d[0]
        return block.adjoint(y if d is None else y - d)

    def pre_activation(self, r: int, u: Sequence[Tensor], context: Context = None) -> Tensor:
        """v_{r+1}."""
        form = self.form
        return form.output(u, context) if r == form.depth else form.pre_activation(r, u, context)

    def is_convex(self, x: Tensor, context: Context = None) -> bool:
        """Whether there is one layer and it reads x by an affine map f, so that the lifted problem is convex.

        Norms, attention and absolute values are not affine: f(a + b) + f(0) = f(a) + f(b) is tried at inputs like x.
        """
        if self.count > 1:
            return False
        generator = torch.Generator().manual_seed(0)
        a, b = torch.randn(2, *x.shape[1:], generator=generator, dtype=x.dtype).to(x)[:, None].expand(2, *x.shape)
        both, one, other, none = (self.pre_activation(0, [point], context) for point in (a + b, a, b, 0 * a))
        return bool((both + none - one - other).norm() <= 1e-3 * (both - none).norm())

    def states(self, x: Tensor, context: Context = None) -> tuple[Tensors, Tensors, Tensors]:
        """z_1 … z_{n−1}, u_0 … u_{n−1} and v_1 … v_n of a forward pass from x."""
        z, u, v = [], [x], []
        for r, activation in enumerate(self.activations):
            v.append(self.pre_activation(r, u, context))
            if r < self.count - 1:
                z.append(activation(v[r]))
                u.append(self.form.couple(r, u, z, context))
        return tuple(z), tuple(u), tuple(v)

    def lifted(self, x: Tensor, z: Sequence[Tensor], context: Context = None) -> tuple[Tensors, Tensors]:
        """u_0 … u_{n−1} and v_1 … v_n for free z."""
        u = self.form.eliminate(x, z, context)
        return u, tuple(self.pre_activation(r, u, context) for r in range(self.count))

    def update(
        self, j: int, u: list[Tensor], v: list[Tensor], z: Sequence[Tensor], context: Context = None
    ) -> list[Tensor]:
        """Bring the states and pre-activations that variable j reaches up to date; returns the changes of those v."""
        jacobian = self.jacobians[j]
        for k in jacobian.states:
            if k > 0:
                u[k] = self.form.couple(k - 1, u[:k], z, context)
        changes = []
        for r in jacobian.rows:
            new = self.pre_activation(r, u, context)
            changes.append(new - v[r])
            v[r] = new
        return changes


def ends_in_activation(form: UnifiedForm) -> bool:
    """Whether the output is the last activation itself, perhaps reshaped."""
    if form.depth == 0:
        return False
    last, blocks = form.depth - 1, form.K.rows[0]
    plain = len(form.M.rows[last]) == 1 and [k for k, _ in form.V.rows[last]] == [last]
    only = plain and isinstance(form.V.rows[last][0][1], operators.Identity)
    return only and [k for k, _ in blocks] == [form.depth] and blocks[0][1].is_orthogonal


def _jacobian(form: UnifiedForm, count: int, j: int) -> Jacobian:
    """Follow variable j through M u = V z and into the rows of W (and K)."""
    states: list[int] = []
    source: list[LinearOperator | None] = []
    coupling: list[Row] = []
    if j == 0:
        states, source, coupling = [0], [None], [()]
    for k in range(max(j, 1), count):
        enters = next((block for column, block in form.V.rows[k - 1] if column == j - 1), None)
        others = tuple((column, block) for column, block in form.M.rows[k - 1] if column in states)
        if enters is not None or others:
            states.append(k)
            source.append(enters)
            coupling.append(others)
    rows, reads = [], []
    for r in range(count):
        blocks = form.K.rows[0] if r == form.depth else form.W.rows[r]
        used = tuple((k, quick(block)) for k, block in blocks if k in states)
        if used:
            rows.append(r)
            reads.append(used)
    return Jacobian(tuple(rows), tuple(states), tuple(source), tuple(coupling), tuple(reads))


def _total(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
