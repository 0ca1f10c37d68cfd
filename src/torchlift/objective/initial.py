"""Where the lifted variables start."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torchlift.core.checks import check_choice
from torchlift.networks import Network
from torchlift.objective.engine import Layout, States
from torchlift.operators import Context
from torchlift.prox.base import in_domain

STARTS = ("forward", "input", "random")


@torch.no_grad()
def initialise(
    network: Network,
    layout: Layout,
    y: Tensor,
    how: str = "forward",
    context: Context = None,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    free_u: bool = False,
) -> States:
    """z for a batch y.

    - "forward": z_j = σ_j(v_j) of the forward pass; every penalty is zero.
    - "input": every layer starts as a copy of y. Where the sizes differ, the
      flattened input is cut off, or padded with zeros.
    - "random": standard normal numbers.

    Values outside the domain of a layer's Ψ, such as negative entries before
    a ReLU, are replaced by their image under σ, so that the objective is
    finite.

    Arguments:
        dtype: dtype in which the variables are stored.
        free_u: whether u_1, …, u_J are variables too; they start at M u = V z.
    """
    check_choice("initialise", how, STARTS)
    form = network.operators()
    if how == "forward":
        layers = list(network.states(y, context).z)
    elif how == "input":
        layers = [_fit(y, shape) for shape in layout.shapes]
    else:
        layers = [torch.randn(len(y), *s, generator=generator, dtype=y.dtype).to(y.device) for s in layout.shapes]
    pairs = zip(form.activations, layers, strict=True)
    layers = [torch.where(in_domain(activation, layer), layer, activation(layer)) for activation, layer in pairs]
    z = layout.hold(layers, y, dtype)
    z.set_input(y)
    if free_u:
        z.u = coupled(network, y, layers, context, dtype)
    return z


@torch.no_grad()
def coupled(
    network: Network, y: Tensor, z: Sequence[Tensor], context: Context = None, dtype: torch.dtype | None = None
) -> States:
    """u_1, …, u_J with M u = V z, stored in `dtype`."""
    form = network.operators()
    u = form.eliminate(y, [layer.to(y.dtype) for layer in z], context)[1:]
    return Layout(form.W.column_shapes[1:]).hold(u, y, dtype)


def _fit(y: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The flattened input cut off or padded with zeros to the size of `shape`."""
    flat = y.flatten(1)
    missing = math.prod(shape) - flat.shape[1]
    fitted = torch.nn.functional.pad(flat, (0, missing)) if missing >= 0 else flat[:, :missing]
    return fitted.reshape(len(y), *shape)
