"""The unified form N(y) = K u + d, M u = V z, z = σ(W u + b) and its forward substitution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from torchlift.core.checks import Shape
from torchlift.core.errors import invalid_value
from torchlift.operators import BlockOperator, BlockVector, Context, Identity, LinearOperator
from torchlift.operators.blocks import Blocks
from torchlift.prox import ProximalActivation

FusedRow: TypeAlias = Callable[[Sequence[Tensor], Context], Tensor]
"""(states u_0, …, u_j; context) ↦ v_{j+1}."""


class ForwardStates(NamedTuple):
    """Everything a forward pass computes."""

    u: tuple[Tensor, ...]
    """States u_0 = y, u_1, …, u_J."""
    v: tuple[Tensor, ...]
    """Pre-activations v_j = (W u + b)_j, j = 1, …, J."""
    z: tuple[Tensor, ...]
    """Activations z_j = σ_j(v_j), j = 1, …, J."""
    output: Tensor
    """N(y) = K u + d."""

    def __repr__(self) -> str:
        shapes = ", ".join(str(tuple(part.shape)) for part in self.u)
        return f"ForwardStates(u {shapes}; output {tuple(self.output.shape)})"


@dataclass(frozen=True, eq=False, repr=False)
class UnifiedForm:
    """The block operators of a network, assembled from its current parameters.

    Row j of W reads only u_0, …, u_{j-1}; row j of M is the identity on u_j
    plus blocks on earlier states; row j of V reads z_1, …, z_j. Hence the
    states follow from y by one forward substitution,

        v_j = Σ_{k<j} W_jk u_k + b_j,   z_j = σ_j(v_j),   u_j = Σ_{k≤j} V_jk z_k − Σ_{k<j} M_jk u_k.

    Rows are counted from 0 in the code: row j belongs to layer j + 1.
    """

    K: BlockOperator
    d: BlockVector
    M: BlockOperator
    V: BlockOperator
    W: BlockOperator
    b: BlockVector
    activations: tuple[ProximalActivation, ...]
    fused: Mapping[int, FusedRow] = field(default_factory=dict)
    """Rows of W u + b that are evaluated in another way than block by block; number J is K u + d."""

    def __repr__(self) -> str:
        sizes = [str(shape) for shape in (*self.W.column_shapes, *self.K.row_shapes)]
        sizes = sizes if len(sizes) < 9 else [*sizes[:4], "…", *sizes[-3:]]
        return f"UnifiedForm({self.depth} layers, {' → '.join(sizes)})"

    @property
    def depth(self) -> int:
        """J, the number of activation layers."""
        return len(self.activations)

    def states(self, y: Tensor, context: Context = None) -> ForwardStates:
        """Forward substitution from the input y of shape (B, *in_shape)."""
        u, v, z = [y], [], []
        for j, activation in enumerate(self.activations):
            v.append(self.pre_activation(j, u, context))
            z.append(activation(v[j]))
            u.append(self.couple(j, u, z, context))
        return ForwardStates(tuple(u), tuple(v), tuple(z), self.output(u, context))

    def pre_activation(self, j: int, u: Sequence[Tensor], context: Context = None) -> Tensor:
        """v_{j+1} = Σ_k W_jk u_k + b_j."""
        if j in self.fused:
            return self.fused[j](u, context)
        return _affine_row(self.W, j, u, self.b[j], context)

    def output(self, u: Sequence[Tensor], context: Context = None) -> Tensor:
        """N = K u + d."""
        if self.depth in self.fused:
            return self.fused[self.depth](u, context)
        return _affine_row(self.K, 0, u, self.d[0], context)

    def eliminate(self, y: Tensor, z: Sequence[Tensor], context: Context = None) -> tuple[Tensor, ...]:
        """u_0 = y, u_1, …, u_J from M u = V z, for free z."""
        u = [y]
        for j in range(len(z)):
            u.append(self.couple(j, u, z[: j + 1], context))
        return tuple(u)

    def couple(self, j: int, u: Sequence[Tensor], z: Sequence[Tensor], context: Context = None) -> Tensor:
        """u_{j+1} from row j of M u = V z, given u_0, …, u_j and z_1, …, z_{j+1}."""
        driven = self.V.row(j, z, context)
        earlier = self.M.row(j, u, context)
        if driven is None:
            invalid_value(f"row {j} of V", "at least one block", "none")
        return driven if earlier is None else driven - earlier


class RecordedForm(UnifiedForm):
    """A form with M = V = I and fused rows only, whose operators are put together when they are first asked for.

    Evaluating the rows needs none of them, and solvers of lifted variables evaluate the rows many times.

    Arguments:
        activations: one per layer.
        fused: every row, and the output.
        build: gives the whole form.
    """

    def __init__(
        self,
        activations: Sequence[ProximalActivation],
        fused: Mapping[int, FusedRow],
        build: Callable[[], UnifiedForm],
    ) -> None:
        vars(self).update(activations=tuple(activations), fused=fused, _build=build)  # past a frozen __setattr__

    def __getattr__(self, name: str) -> Any:
        if name not in ("K", "d", "M", "V", "W", "b"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        whole: UnifiedForm = vars(self)["_build"]()
        vars(self).update({item.name: getattr(whole, item.name) for item in fields(whole)})
        return vars(self)[name]

    def couple(self, j: int, u: Sequence[Tensor], z: Sequence[Tensor], context: Context = None) -> Tensor:
        return z[j]


def _affine_row(
    operator: BlockOperator, j: int, x: Sequence[Tensor], bias: Tensor | None, context: Context = None
) -> Tensor:
    """Σ_k A_jk x_k + bias; the bias joins the first block, where most operators fuse it."""
    total = None
    for k, block in operator.rows[j]:
        total = block.affine(x[k], bias, context) if total is None else total + block.forward(x[k], context)
    if total is None:
        invalid_value(f"row {j}", "at least one block", "none")
    return total


def assemble(
    in_shape: Shape,
    W: Blocks,
    b: Sequence[Tensor | None],
    activations: Sequence[ProximalActivation],
    K: Mapping[int, LinearOperator],
    d: Tensor | None = None,
    V: Blocks | None = None,
    M: Blocks | None = None,
    like: Tensor | None = None,
    fused: Mapping[int, FusedRow] | None = None,
) -> UnifiedForm:
    """Fill in what is always the same: identity blocks of M and V, shapes, labels, order checks.

    Arguments:
        in_shape: shape of one input y.
        W: blocks {(j, k): W_{j+1,k}} with k ≤ j.
        b: one bias per layer, or None.
        activations: one per layer.
        K: blocks {k: K_k} that read u_k.
        d: the output's bias.
        V: blocks {(j, k): V_{j+1,k+1}} of the rows that are not the identity.
        M: blocks {(j, k): M_{j+1,k}} with k ≤ j, next to the identities on u_{j+1}.
        like: a parameter, whose dtype and device the dense matrices follow.
        fused: faster ways to evaluate some rows of W u + b; they must agree with the blocks.
    """
    depth = len(activations)
    V, M = dict(V or {}), dict(M or {})
    for name, blocks in (("W", W), ("V", V), ("M", M)):
        for j, k in blocks:
            if k > j:
                invalid_value(f"{name} block {(j, k)}", "a block-triangular pattern (column <= row)", f"column {k}")
    z_shapes = _row_shapes("W", W, depth)
    for j in set(range(depth)) - {j for j, _ in V}:
        V[j, j] = Identity(z_shapes[j])
    u_shapes = (in_shape, *_row_shapes("V", V, depth))
    M |= {(j, j + 1): Identity(u_shapes[j + 1]) for j in range(depth)}
    out_shape = next(iter(K.values())).out_shape
    output = {(0, k): block for k, block in K.items()}
    return UnifiedForm(
        K=BlockOperator(output, (out_shape,), u_shapes, "N(y)", "u_{0}", like),
        d=BlockVector((d,), (out_shape,), like),
        M=BlockOperator(M, u_shapes[1:], u_shapes, "u_{1}", "u_{0}", like),
        V=BlockOperator(V, u_shapes[1:], z_shapes, "u_{1}", "z_{1}", like),
        W=BlockOperator(W, z_shapes, u_shapes, "z_{1}", "u_{0}", like),
        b=BlockVector(tuple(b), z_shapes, like),
        activations=tuple(activations),
        fused=fused or {},
    )


def _row_shapes(name: str, blocks: Blocks, depth: int) -> tuple[Shape, ...]:
    shapes = {j: block.out_shape for (j, _), block in blocks.items()}
    missing = sorted(set(range(depth)) - set(shapes))
    if missing:
        invalid_value(f"{name}", f"at least one block in each of {depth} rows", f"none in rows {missing}")
    return tuple(shapes[j] for j in range(depth))
