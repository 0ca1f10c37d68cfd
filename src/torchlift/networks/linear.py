"""A linear forward model as a network without activations, N(x) = H x."""

from __future__ import annotations

from torchlift.networks.base import Network
from torchlift.networks.form import UnifiedForm, assemble
from torchlift.operators import LinearOperator


class Linear(Network):
    """N(x) = H x, with which `invert` solves linear inverse problems.

    Arguments:
        H: image → measurement.
    """

    def __init__(self, H: LinearOperator) -> None:
        super().__init__(H.in_shape, H.out_shape)
        self.H = H

    def operators(self) -> UnifiedForm:
        return assemble(self.in_shape, {}, [], [], {0: self.H})
