"""Tikhonov regularisation."""

from __future__ import annotations

from dataclasses import dataclass

from torchlift.core.checks import Shape
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.functions.base import Part, Prior
from torchlift.functions.squared_norm import Ridge
from torchlift.operators import LinearOperator


@dataclass(frozen=True, eq=False)
class Tikhonov(Prior):
    """R(x) = ½‖Ax‖²: small, or smooth where A takes differences.

    Arguments:
        operator: A; None for the identity.
    """

    operator: LinearOperator | None = None

    def __post_init__(self) -> None:
        if self.operator is not None and not isinstance(self.operator, LinearOperator):
            invalid_type("Tikhonov operator", "a LinearOperator", self.operator, "Try operators.Dense(matrix).")

    def parts(self, shape: Shape) -> tuple[Part, ...]:
        if self.operator is not None and self.operator.in_shape != shape:
            invalid_value("Tikhonov operator", f"an operator on images of shape {shape}", self.operator.in_shape)
        return (Part(Ridge(), self.operator),)
