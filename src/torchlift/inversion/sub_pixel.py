"""Adjoints of strided convolutions as plain convolutions, for kernels that do not change during an inversion."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import conv2d, pad, pixel_shuffle

from torchlift.core.checks import Shape
from torchlift.operators import Compose, Context, Conv2d, LinearOperator

#: Input channels up to which the plain convolution was faster: three times for 1, even for 8 to 16.
MOST_CHANNELS = 8


@dataclass(frozen=True, eq=False)
class SubPixel(LinearOperator):
    """A convolution of stride s whose adjoint makes s × s pixels at once.

    The adjoint is x[sm + a] = Σ_n w[s(m − n) + a + p] y[n] for p zeros of padding:
    for each a < s a plain convolution of y, so that s² of them and a
    rearrangement of pixels give the image.

    Arguments:
        convolution: what this is.
        kernel: (in·s², out, d, d), the convolutions of all a.
        borders: zeros before and after y.
        factor: s.

    Reference: Shi et al., Real-time single image and video super-resolution using
    an efficient sub-pixel convolutional neural network (2016).
    """

    convolution: Conv2d
    kernel: Tensor
    borders: tuple[int, int]
    factor: int

    @property
    def in_shape(self) -> Shape:
        return self.convolution.in_shape

    @property
    def out_shape(self) -> Shape:
        return self.convolution.out_shape

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        return self.convolution.forward(x, context)

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        before, after = self.borders
        padding = before if before == after else 0
        y = y if before == after else pad(y, (before, after, before, after))
        return pixel_shuffle(conv2d(y, self.kernel, None, 1, padding), self.factor)

    def norm_bound(self, context: Context = None) -> float:
        return self.convolution.norm_bound(context)


def quick(operator: LinearOperator) -> LinearOperator:
    """The same operator, with a faster adjoint where there is one."""
    if isinstance(operator, Compose):
        return Compose(*map(quick, operator.operators))
    if not isinstance(operator, Conv2d) or operator.groups > 1 or operator.in_shape[0] > MOST_CHANNELS:
        return operator
    s, p = _side(operator.stride), _side(operator.padding)
    size, sizes = _side(tuple(operator.weight.shape[2:])), operator.out_shape[1:]
    if s is None or p is None or size is None or s == 1 or _side(operator.dilation) != 1:
        return operator
    whole = p < size and operator.in_shape[1:] == (s * sizes[0], s * sizes[1])
    return _sub_pixel(operator, s, p) if whole else operator


def _sub_pixel(operator: Conv2d, s: int, p: int) -> SubPixel:
    w, size = operator.weight.detach(), operator.weight.shape[-1]
    # n − m goes from −before to after: the taps s(m − n) + a + p that exist
    before, after = (size - 1 - p) // s, (s - 1 + p) // s
    span = before + after + 1
    kernel = w.new_zeros(w.shape[1], s, s, w.shape[0], span, span)
    taps = [(a, d, s * (before - d) + a + p) for a in range(s) for d in range(span)]
    taps = [(a, d, tap) for a, d, tap in taps if 0 <= tap < size]
    for a, d, row in taps:
        for b, e, column in taps:
            kernel[:, a, b, :, d, e] = w[:, :, row, column].T
    return SubPixel(operator, kernel.reshape(-1, w.shape[0], span, span), (before, after), s)


def _side(pair: object) -> int | None:
    """The number that stands twice in a pair; None where there is none."""
    return pair[0] if isinstance(pair, tuple) and pair[0] == pair[1] else None
