"""Which entries of an image are kept: a mask, or one of so many."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchlift.core.checks import Shape, check_shape, check_tensor
from torchlift.core.errors import invalid_value
from torchlift.operators.base import Context, LinearOperator, OnImages, store
from torchlift.operators.context import context_tensor
from torchlift.operators.geometry import Pair, check_pair


@dataclass(frozen=True, eq=False)
class Mask(LinearOperator):
    """x ↦ m ⊙ x.

    The mask is either fixed, a tensor with the shape of one sample, or each
    sample's own: then `mask` is None, `shape` is given, and the context carries
    (B, *shape), alone or under `key`. A mask per sample may be boolean.
    """

    mask: Tensor | None = None
    shape: Shape | None = None
    key: str = "mask"

    def __post_init__(self) -> None:
        if self.mask is None and self.shape is None:
            invalid_value("Mask", "a mask, or the shape of the masks in the context", "neither")
        fixed = self.mask is None or tuple(check_tensor("Mask mask", self.mask).shape)
        shape = check_shape("Mask shape", fixed if self.shape is None else self.shape)
        if fixed is not True and fixed != shape:
            invalid_value("Mask shape", f"the shape {fixed} of the mask", shape)
        object.__setattr__(self, "shape", shape)

    @property
    def in_shape(self) -> Shape:
        assert self.shape is not None  # set in __post_init__
        return self.shape

    @property
    def out_shape(self) -> Shape:
        return self.in_shape

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        if self.mask is not None:
            return x * self.mask
        mask = self._mask_of(context)
        if mask.shape[0] != x.shape[0]:
            invalid_value(f"Mask context {self.key!r}", f"one mask for each of {x.shape[0]} samples", mask.shape[0])
        return x * mask.to(x.dtype)

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        return self.forward(y, context)  # a diagonal matrix is its own transpose

    def norm_bound(self, context: Context = None) -> float:
        mask = self._mask_of(context) if self.mask is None else self.mask
        return float(mask.detach().abs().max()) if mask.is_floating_point() else float(mask.max())

    def _mask_of(self, context: Context) -> Tensor:
        mask = context_tensor("Mask", context, self.key)
        if tuple(mask.shape[1:]) != self.shape:
            expected = f"shape ({', '.join(map(str, ('batch', *self.in_shape)))})"
            invalid_value(f"Mask context {self.key!r}", expected, tuple(mask.shape))
        return mask


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
