"""Pointwise multiplication by a fixed mask or by a mask per sample."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchlift.core.checks import Shape, check_shape, check_tensor
from torchlift.core.errors import invalid_value
from torchlift.operators.base import Context, LinearOperator
from torchlift.operators.context import context_tensor


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
