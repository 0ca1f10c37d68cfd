"""Any function of torch that is linear in its first argument, as an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.core.checks import Shape
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.operators.base import BetweenShapes, Context


@dataclass(frozen=True, eq=False)
class Functional(BetweenShapes):
    """x ↦ f(x, *held), or f(x, c, *held) with a tensor c of the context.

    A linear map is its own derivative, so its adjoint is its vector–Jacobian
    product, which `torch.func.vjp` finds.

    Arguments:
        function: f, linear in x for samples (B, *from_shape).
        from_shape, to_shape: shapes of one sample of x and of f(x).
        held: tensors that f needs, such as weights.
        name: what pictures show.
        key: name of a tensor in the context, such as the selection of a max-pooling; None where f needs none.
    """

    function: Callable[..., Tensor]
    from_shape: Shape
    to_shape: Shape
    held: tuple[Tensor, ...] = ()
    name: str = "f"
    key: str | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            invalid_type("Functional function", "a function", self.function)
        super().__post_init__()

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        if self.key is None:
            return self.function(x, *self.held)
        if not isinstance(context, Mapping) or self.key not in context:
            came = sorted(context) if isinstance(context, Mapping) else type(context).__name__
            hint = "Pass context=network.context(inputs), or hold it under this name."
            invalid_value(self.name, f"a per-sample context with a tensor {self.key!r}", came, hint)
        return self.function(x, context[self.key], *self.held)

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        zero = y.new_zeros(y.shape[0], *self.from_shape)
        return torch.func.vjp(lambda x: self.forward(x, context), zero)[1](y)[0]

    def symbol(self) -> str:
        return self.name
