"""Convolution, its transpose and average-pooling, with the zero padding of torch, and norms from their spectra."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, conv_transpose2d, pad

from torchlift.core.checks import Shape, check_tensor
from torchlift.core.errors import invalid_value
from torchlift.operators.base import Context, LinearOperator, store
from torchlift.operators.geometry import (
    Pair,
    check_groups,
    check_image_shape,
    check_padding,
    check_pair,
    window_count,
    window_extent,
)
from torchlift.operators.norms import EXACT_UP_TO

#: Samples of the spectrum per axis, and as many as leave 7 × 7 filters 0.3 %.
GRID, FINE = 128, 256


def filter_norm(weight: Tensor, grid: int = GRID) -> Tensor:
    """A bound of ‖x ↦ w ⋆ x‖₂ for stride 1, with zero or circular padding, that holds for images of every size.

    On the whole plane the norm is the supremum over frequencies ω of the largest singular value of the matrix
    ŵ(ω) (out, in); cutting an image out of the plane, or closing it to a torus, makes it no larger. ‖ŵ(ω) a‖² is a
    trigonometric polynomial of degree (kh − 1, kw − 1) for every a, and such a polynomial of degree n exceeds its
    largest sample of N > 2n by a factor 1 / cos(πn / N) at most (Ehlich and Zeller, 1964). Differentiable.

    Arguments:
        weight: (out, in, kh, kw).
        grid: N, samples per axis; 3 × 3 filters exceed the norm by 0.1 % at most for 128, 7 × 7 filters by 1.1 %.
    """
    degrees = weight.shape[-2] - 1, weight.shape[-1] - 1
    grid = max(grid, 4 * max(degrees) + 1)
    slack = math.cos(math.pi * degrees[0] / grid) * math.cos(math.pi * degrees[1] / grid)
    return (_squares(weight, grid).max() / slack).sqrt()


def worst_waves(weight: Tensor, size: tuple[int, int]) -> Tensor:
    """Two images (2, in, *size) that the convolution enlarges most or nearly so: waves under half a period of a sine.

    Arguments:
        weight: (out, in, kh, kw).
        size: of the images.
    """
    squares = _squares(weight, FINE)
    waves, matrix = [], weight + 0j
    for pixels, number in zip(size, divmod(int(squares.argmax()), squares.shape[1]), strict=True):
        n = torch.arange(pixels, dtype=weight.dtype, device=weight.device)
        turns = torch.polar(torch.ones_like(n), 2 * math.pi * number / FINE * n)
        waves.append(turns * torch.sin(math.pi * (n + 1) / (pixels + 1)))
        matrix = (matrix.movedim(2, -1) * turns[: matrix.shape[2]]).sum(-1)  # what w ⋆ does to the wave
    channels = torch.linalg.svd(matrix, full_matrices=False).Vh[0].conj_physical()
    wave = channels[:, None, None] * waves[0][:, None] * waves[1]
    return torch.stack((wave.real, wave.imag))


def _squares(weight: Tensor, grid: int) -> Tensor:
    """The largest eigenvalue of ŵ(ω)* ŵ(ω) at grid × (grid // 2 + 1) frequencies; the others are conjugates.

    Only correlations between the channels of the smaller side are transformed, few where images have few channels.
    """
    outputs, inputs, height, width = weight.shape
    side = weight if outputs <= inputs else weight.transpose(0, 1)
    lags = conv2d(side, side, padding=(height - 1, width - 1))  # (n, n, 2kh − 1, 2kw − 1), lag 0 in the middle
    room = pad(lags, (0, grid - lags.shape[-1], 0, grid - lags.shape[-2]))
    spectrum = torch.fft.rfft2(torch.roll(room, (1 - height, 1 - width), (-2, -1)))
    if len(side) == 1:
        return spectrum[0, 0].real
    return torch.linalg.eigvalsh(spectrum.permute(2, 3, 0, 1))[..., -1]


#: Channels up to which singular values at every frequency are cheap.
FEW_CHANNELS = 8
#: A norm bound exceeds the norm by at most this factor.
SHARP = 1.01


@dataclass(frozen=True, eq=False)
class Conv2d(LinearOperator):
    """x ↦ w ⋆ x, the cross-correlation of `torch.nn.Conv2d` without bias.

    The weight has shape (out, in / groups, kh, kw). `padding` is a number, a
    pair, "same" or "valid". The adjoint is the transposed convolution, whose
    output padding stands for the last rows that the stride left unread.
    """

    weight: Tensor
    input_shape: tuple[int, int, int]
    stride: int | Pair = 1
    padding: int | Pair | str = 0
    dilation: int | Pair = 1
    groups: int = 1
    _output_size: Pair = field(init=False, repr=False)
    _lead: Pair = field(init=False, repr=False)  # zeros before the first row and column
    _trail: Pair = field(init=False, repr=False)  # and after the last ones
    _turned_padding: Pair | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        shape = check_image_shape("Conv2d input_shape", self.input_shape)
        weight = _check_weight("Conv2d weight", self.weight, "(out, in / groups, kh, kw)")
        groups = check_groups("Conv2d groups", self.groups, input=shape[0], output=weight.shape[0])
        if weight.shape[1] * groups != shape[0]:
            expected = f"{shape[0]} / {groups} input channels on axis 1 for input_shape {shape}"
            invalid_value("Conv2d weight", expected, tuple(weight.shape))
        stride = check_pair("Conv2d stride", self.stride)
        dilation = check_pair("Conv2d dilation", self.dilation)
        extent = window_extent(weight.shape[2:], dilation)
        lead, trail = check_padding("Conv2d padding", self.padding, extent, stride)
        total = lead[0] + trail[0], lead[1] + trail[1]
        size = window_count("Conv2d weight", shape[1:], extent, stride, total)
        # "same" is uneven for kernels of even extent, which no pair can say
        padding = lead if lead == trail else "same"
        store(self, input_shape=shape, stride=stride, padding=padding, dilation=dilation)
        store(self, _output_size=size, _lead=lead, _trail=trail)
        rest = extent[0] - 1 - lead[0], extent[1] - 1 - lead[1]
        plain = stride == (1, 1) and lead == trail and min(rest) >= 0
        store(self, _turned_padding=rest if plain else None)

    @property
    def in_shape(self) -> Shape:
        return self.input_shape

    @property
    def out_shape(self) -> Shape:
        return (self.weight.shape[0], *self._output_size)

    @property
    def margins(self) -> tuple[Pair, Pair]:
        """Zeros before the first row and column, and after the last ones."""
        return self._lead, self._trail

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        return self.affine(x, None)

    def affine(self, x: Tensor, bias: Tensor | None, context: Context = None) -> Tensor:
        if bias is not None and bias.shape != (self.weight.shape[0], 1, 1):
            return super().affine(x, bias, context)  # only a bias per channel can be fused
        padding = self._lead
        if self._lead != self._trail:
            x, padding = pad(x, (self._lead[1], self._trail[1], self._lead[0], self._trail[0])), 0
        bias = None if bias is None else bias.flatten()
        return conv2d(x, self.weight, bias, self.stride, padding, self.dilation, self.groups)

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        if self._turned_padding is not None:
            # Without a stride the adjoint is a plain convolution too, for few channels up to 20 times faster.
            return conv2d(y, _turn(self.weight, self.groups), None, 1, self._turned_padding, self.dilation, self.groups)
        _, height, width = self.input_shape
        reach = _transposed_size(self, self._output_size, self._lead)
        unread = height - reach[0], width - reach[1]
        spare = max(unread[0], 0), max(unread[1], 0)
        x = conv_transpose2d(y, self.weight, None, self.stride, self._lead, spare, self.groups, self.dilation)
        return x if min(unread) >= 0 else x[..., :height, :width]

    def norm_bound(self, context: Context = None) -> float:
        plain = (self.stride, self.dilation, self.groups) == ((1, 1), (1, 1), 1)
        few = min(self.weight.shape[:2]) <= FEW_CHANNELS and math.prod(self.input_shape) > EXACT_UP_TO
        if not (plain and few and max(self.weight.shape[2:]) <= FINE // 8):
            return super().norm_bound(context)
        return self._spectral_norm() or super().norm_bound(context)

    @torch.no_grad()
    def _spectral_norm(self) -> float | None:
        """The bound for images of every size, if the worst wave shows that it is sharp for this one."""
        weight = self.weight.detach().double()
        bound = float(filter_norm(weight, FINE))
        x = worst_waves(weight, self.input_shape[1:])
        y = replace(self, weight=weight).forward(x)
        reached = float((y.flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1).clamp(min=1e-300)).max())
        return bound if 0 < bound <= SHARP * reached else None


@dataclass(frozen=True, eq=False)
class ConvTranspose2d(LinearOperator):
    """x ↦ wᵀ ⋆ x, the map of `torch.nn.ConvTranspose2d` without bias.

    The weight has shape (in, out / groups, kh, kw). The adjoint is the plain
    convolution with the same weight.
    """

    weight: Tensor
    input_shape: tuple[int, int, int]
    stride: int | Pair = 1
    padding: int | Pair = 0
    output_padding: int | Pair = 0
    dilation: int | Pair = 1
    groups: int = 1
    _output_size: Pair = field(init=False, repr=False)

    def __post_init__(self) -> None:
        shape = check_image_shape("ConvTranspose2d input_shape", self.input_shape)
        weight = _check_weight("ConvTranspose2d weight", self.weight, "(in, out / groups, kh, kw)")
        check_groups("ConvTranspose2d groups", self.groups, input=shape[0])
        if weight.shape[0] != shape[0]:
            expected = f"{shape[0]} input channels on axis 0 for input_shape {shape}"
            invalid_value("ConvTranspose2d weight", expected, tuple(weight.shape))
        stride = check_pair("ConvTranspose2d stride", self.stride)
        dilation = check_pair("ConvTranspose2d dilation", self.dilation)
        padding = check_pair("ConvTranspose2d padding", self.padding, minimum=0)
        spare = check_pair("ConvTranspose2d output_padding", self.output_padding, minimum=0)
        store(self, input_shape=shape, stride=stride, dilation=dilation, padding=padding, output_padding=spare)
        if any(extra >= max(steps) for extra, *steps in zip(spare, stride, dilation, strict=True)):
            expected = f"less than the stride {stride} or the dilation {dilation}"
            invalid_value("ConvTranspose2d output_padding", expected, spare)
        reach = _transposed_size(self, shape[1:], padding)
        size = reach[0] + spare[0], reach[1] + spare[1]
        if min(size) < 1:
            invalid_value("ConvTranspose2d padding", "one that leaves an output", f"{padding}, output size {size}")
        store(self, _output_size=size)

    @property
    def in_shape(self) -> Shape:
        return self.input_shape

    @property
    def out_shape(self) -> Shape:
        return (self.weight.shape[1] * self.groups, *self._output_size)

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        spare = self.output_padding
        return conv_transpose2d(x, self.weight, None, self.stride, self.padding, spare, self.groups, self.dilation)

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        x = conv2d(y, self.weight, None, self.stride, self.padding, self.dilation, self.groups)
        # An output padding of a whole stride or more (allowed beside a dilation) adds windows of its own.
        _, height, width = self.input_shape
        return x if x.shape[-2:] == (height, width) else x[..., :height, :width]


def _check_weight(where: str, weight: object, expected: str) -> Tensor:
    tensor = check_tensor(where, weight)
    if tensor.ndim != 4 or 0 in tensor.shape:
        invalid_value(where, f"a non-empty tensor of shape {expected}", tuple(tensor.shape))
    return tensor


def _turn(weight: Tensor, groups: int) -> Tensor:
    """(out, in / groups, kh, kw) to (in, out / groups, kh, kw), with each kernel rotated by 180°."""
    turned = weight.flip(2, 3)
    if groups > 1:
        turned = turned.reshape(groups, -1, *weight.shape[1:]).transpose(1, 2)
        return turned.reshape(-1, weight.shape[0] // groups, *weight.shape[2:])
    return turned.transpose(0, 1)


def _transposed_size(operator: Conv2d | ConvTranspose2d, size: Pair, padding: Pair) -> Pair:
    """Height and width that a transposed convolution makes of `size`, without output padding."""
    stride, dilation = operator.stride, operator.dilation
    assert isinstance(stride, tuple) and isinstance(dilation, tuple)  # normalised in __post_init__
    extent = window_extent(operator.weight.shape[2:], dilation)
    height = (size[0] - 1) * stride[0] - 2 * padding[0] + extent[0]
    return height, (size[1] - 1) * stride[1] - 2 * padding[1] + extent[1]


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
