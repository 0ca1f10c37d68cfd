"""Average pooling, the linear one among the poolings."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from torchlift.core.checks import Shape
from torchlift.core.errors import invalid_value
from torchlift.operators.base import Context, LinearOperator, store
from torchlift.operators.geometry import Pair, check_image_shape, check_pair, window_count


@dataclass(frozen=True, eq=False)
class AveragePool2d(LinearOperator):
    """x ↦ the mean over each window, as `torch.nn.AvgPool2d` with ceil_mode=False.

    `stride` defaults to the kernel size. With `count_include_pad` the zeros of
    the padding count in the means, otherwise they do not.
    """

    input_shape: tuple[int, int, int]
    kernel_size: int | Pair
    stride: int | Pair | None = None
    padding: int | Pair = 0
    count_include_pad: bool = True
    _output_size: Pair = field(init=False, repr=False)

    def __post_init__(self) -> None:
        shape = check_image_shape("AveragePool2d input_shape", self.input_shape)
        kernel = check_pair("AveragePool2d kernel_size", self.kernel_size)
        stride = check_pair("AveragePool2d stride", kernel if self.stride is None else self.stride)
        padding = check_pair("AveragePool2d padding", self.padding, minimum=0)
        if 2 * padding[0] > kernel[0] or 2 * padding[1] > kernel[1]:
            invalid_value("AveragePool2d padding", f"at most half the kernel size {kernel}", padding)
        total = 2 * padding[0], 2 * padding[1]
        size = window_count("AveragePool2d kernel_size", shape[1:], kernel, stride, total)
        store(self, input_shape=shape, kernel_size=kernel, stride=stride, padding=padding, _output_size=size)

    @property
    def in_shape(self) -> Shape:
        return self.input_shape

    @property
    def out_shape(self) -> Shape:
        return (self.input_shape[0], *self._output_size)

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        return avg_pool2d(x, self.kernel_size, self.stride, self.padding, False, self.count_include_pad)

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        # A linear map's derivative is the map, so its backward pass is the adjoint; it reads only the shape of x.
        x = y.new_empty(y.shape[0], *self.input_shape)
        geometry = (self.kernel_size, self.stride, self.padding, False, self.count_include_pad, None)
        return torch.ops.aten.avg_pool2d_backward(y, x, *geometry)

    def norm_bound(self, context: Context = None) -> float:
        """The product of the norms along both axes: a window's mean is the mean of its rows' means."""
        return self._axis_norm(0) * self._axis_norm(1)

    def _axis_norm(self, axis: int) -> float:
        """‖P‖₂ of the pooling matrix P (windows, pixels) of one axis."""
        geometry = (self.kernel_size, self.stride, self.padding)
        kernel, stride, padding = (pair[axis] for pair in geometry if isinstance(pair, tuple))  # since __post_init__
        start = torch.arange(self._output_size[axis])[:, None] * stride - padding
        pixel = torch.arange(self.input_shape[1 + axis])
        window = ((pixel >= start) & (pixel < start + kernel)).double()
        matrix = window / (kernel if self.count_include_pad else window.sum(1, keepdim=True))
        if stride >= kernel:
            return float(matrix.norm(dim=1).max())  # windows that do not overlap are orthogonal rows
        return float(torch.linalg.matrix_norm(matrix, 2))
