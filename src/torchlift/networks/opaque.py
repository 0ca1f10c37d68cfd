"""Functions of states that are neither linear nor proximal, as blocks of W at a context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.core.checks import Shape
from torchlift.core.derivatives import differentiable_twice
from torchlift.core.errors import NotRepresentableError
from torchlift.operators import Context
from torchlift.operators.base import BetweenShapes
from torchlift.operators.context import context_tensor


def state_key(path: str, k: int) -> str:
    """Name in the context of the state u_k that an opaque row reads."""
    return f"{path}[u_{k}]"


@dataclass(frozen=True, eq=False)
class Jacobian(BetweenShapes):
    """∂g/∂u_k of an opaque row v = g(u) at the states in the context, by products with vectors.

    Arguments:
        function: g, from {k: u_k}.
        path: the call in the user's model.
        column: k.
        reads: all states that g depends on.
        from_shape, to_shape: of one sample of u_k and of v.
    """

    function: Callable[[Mapping[int, Tensor]], Tensor]
    path: str
    column: int
    reads: tuple[int, ...]
    from_shape: Shape
    to_shape: Shape

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        # y ↦ Jᵀy is linear, and its adjoint is J: reverse mode twice, because not all functions have a forward mode
        value, pull_back = self._pull_back(context)
        return torch.func.vjp(lambda y: pull_back(y)[0], torch.zeros_like(value))[1](x)[0]

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        return self._pull_back(context)[1](y)[0]

    def norm_bound(self, context: Context = None) -> float:
        raise NotRepresentableError(
            f"{self.path} is neither linear nor a proximal activation: its Jacobian changes with its argument, so that "
            "no bound holds for an inversion or a solver of lifted variables. Take the part of the network before it."
        )

    def symbol(self) -> str:
        return f"∂({self.path})"

    def _pull_back(self, context: Context) -> tuple[Tensor, Callable[..., tuple[Tensor, ...]]]:
        u = {k: context_tensor(self.path, context, state_key(self.path, k)) for k in self.reads}
        with differentiable_twice():
            return torch.func.vjp(lambda u_k: self.function({**u, self.column: u_k}), u[self.column])[:2]
