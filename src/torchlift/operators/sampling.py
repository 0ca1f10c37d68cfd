"""Down-sampling: every n-th pixel."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchlift.core.checks import Shape
from torchlift.core.errors import invalid_value
from torchlift.operators.base import Context, OnImages, store
from torchlift.operators.geometry import Pair, check_pair


@dataclass(frozen=True, eq=False)
class DownSample(OnImages):
    """x ↦ x[:, ::s, ::t], the pixels on a coarser grid; the adjoint puts zeros between them.

    Super-resolution usually has a blur before it, `DownSample(shape, 2) @ Blur(kernel, shape)`; means over squares
    are `AveragePool2d`.

    Arguments:
        shape: (channels, height, width), of any size.
        factor: s = t, or the pair (s, t).
    """

    shape: tuple[int, int, int]
    factor: int | Pair = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        factor = check_pair("DownSample factor", self.factor)
        if factor[0] > self.shape[1] or factor[1] > self.shape[2]:
            invalid_value("DownSample factor", f"at most the size {self.shape[1:]} of the image", factor)
        store(self, factor=factor)

    @property
    def out_shape(self) -> Shape:
        down, across = self._steps
        return (self.shape[0], -(-self.shape[1] // down), -(-self.shape[2] // across))

    @property
    def _steps(self) -> Pair:
        assert isinstance(self.factor, tuple)  # normalised in __post_init__
        return self.factor

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        down, across = self._steps
        return x[..., ::down, ::across].clone()

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        down, across = self._steps
        x = y.new_zeros(y.shape[0], *self.shape)
        x[..., ::down, ::across] = y
        return x

    def norm_bound(self, context: Context = None) -> float:
        return 1.0

    def symbol(self) -> str:
        return "↓"
