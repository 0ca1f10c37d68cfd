"""Separable transforms: one matrix for the rows and one for the columns of an image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.core.checks import Shape, check_tensor
from torchlift.core.errors import invalid_value
from torchlift.operators.base import Context, OnImages
from torchlift.operators.geometry import check_image_shape
from torchlift.operators.transforms import cosines


@dataclass(frozen=True, eq=False)
class Separable(OnImages):
    """X ↦ R X Cᵀ in each channel: the matrix R ⊗ C of (HW)² entries from H² + W² numbers, which can be learned.

    Arguments:
        rows: R (h, H), which acts along the height.
        columns: C (w, W), which acts along the width.
        shape: (channels, H, W).
    """

    rows: Tensor
    columns: Tensor
    shape: tuple[int, int, int]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, matrix, size in (("rows", self.rows, self.shape[1]), ("columns", self.columns, self.shape[2])):
            if check_tensor(f"Separable {name}", matrix).ndim != 2 or matrix.shape[1] != size:
                expected = f"a matrix (any, {size}) for shape {self.shape}"
                invalid_value(f"Separable {name}", expected, tuple(matrix.shape))

    @classmethod
    def cosine(cls, shape: tuple[int, int, int], dtype: torch.dtype = torch.float32) -> Separable:
        """The orthonormal cosine transform as a start of learned transforms."""
        channels, height, width = check_image_shape("Separable.cosine shape", shape)
        return cls(cosines(height).to(dtype), cosines(width).to(dtype), (channels, height, width))

    @property
    def out_shape(self) -> Shape:
        return (self.shape[0], self.rows.shape[0], self.columns.shape[0])

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        return self.rows @ x @ self.columns.T

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        return self.rows.T @ y @ self.columns

    @torch.no_grad()
    def norm_bound(self, context: Context = None) -> float:
        """‖R‖₂ ‖C‖₂, the norm of a Kronecker product."""
        rows, columns = (float(torch.linalg.matrix_norm(side.double(), 2)) for side in (self.rows, self.columns))
        return rows * columns
