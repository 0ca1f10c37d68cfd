"""Orthogonalised steps: of narrow matrices and filters from their momentum, of wide layers from factors.

The orthogonal factor msgn(G) = UVᵀ of G = UΣVᵀ moves all directions equally
far: those that hardly change the loss as far as those that dominate it. The
Newton–Schulz iteration Y ← aY + bYYᵀY + c(YYᵀ)²Y makes it from products alone.

**Of the momentum** (`orthogonal_directions`), for matrices (out, in) and filters
(out, in · taps) with a short side: `is_narrow`. Directions that are kept for two steps or
more are cheaper and were worse wherever the step matters most: denoisers lost 1 to 3 dB.

**From the factors** (`orthogonalise`), for dense layers that are much wider than
the batch, in networks that put out many numbers. The gradient is G = RᵀX with the
signals R (samples × out) and the inputs X (samples × in) of a batch, msgn(G) = RᵀSX
with S = (XXᵀRRᵀ)^(−1/2), and the iteration keeps the form Y = RᵀSX:

    S ← aS + bTS + cT²S,   T = S XXᵀ Sᵀ RRᵀ,

so that it runs on matrices of samples × samples, at about the price of one more
product with the weights. `widest` and `many_outputs` say which layers it serves.

Kin: Muon (Jordan et al., 2024), which orthogonalises the momentum in every step;
Newton–Muon; FOOF (Benzing, 2022) and LocoProp (Amid, Anil and Warmuth, 2022), which
divide by the inputs' Gram matrix XᵀX alone. New are centred gradients and the factors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

#: Layers are orthogonalised if their shorter side is at least so many times the batch: the price of the step.
WIDE = 5
#: Relative difference up to which a gradient counts as that of its factors.
ALIKE = 1e-2
#: The shorter side of matrices and filters whose momentum is orthogonalised: at least so long, which outputs of
#: classifiers are not, and at most so long in matrices and in filters. Beyond, the iteration costs as much as the step.
LEAST_SIDE, MATRIX_SIDE, FILTER_SIDE = 16, 128, 256
#: Of the momentum: singular values from 0.03 of its norm on count in full. More were no better.
ITERATIONS = 3
#: Five iterations with Muon's coefficients lift singular values from 0.01 of the largest to between 0.6 and 1.3.
_QUICK = ((3.4445, -4.7750, 2.0315),) * 5
#: Converges to 1 from there.
_EXACT = (15 / 8, -5 / 4, 3 / 8)


class Factors(NamedTuple):
    """Of the gradient RᵀX of one dense layer.

    Arguments:
        signals: R, (samples, out).
        inputs: X, (samples, in).
    """

    signals: Tensor
    inputs: Tensor


class Orthogonalised(NamedTuple):
    """What is made of factors.

    Arguments:
        direction: about msgn(RᵀX): its large singular values lie between 0.6 and 1.3.
        square: its mean square.
        energy: the mean square of RᵀX.
    """

    direction: Tensor
    square: Tensor
    energy: Tensor


def is_narrow(shape: Sequence[int], of_all: float) -> bool:
    """Whether steps of a matrix or of filters of this shape are orthogonalised.

    Not where a matrix holds more than half of all weights: in shallow networks that is the layer that sees the data,
    and the weak directions of its gradient are noise, which would be learned as fast as the rest. Filters meet every
    place of an image, so that theirs are no noise.

    Arguments:
        shape: (out, in) or (out, in, taps, …).
        of_all: their share of all weights of the network.
    """
    if len(shape) < 2 or (len(shape) == 2 and of_all > 0.5):
        return False
    return LEAST_SIDE <= min(shape[0], math.prod(shape[1:])) <= (MATRIX_SIDE if len(shape) == 2 else FILTER_SIDE)


def orthogonal_directions(momenta: Sequence[Tensor]) -> list[Tensor]:
    """About msgn of each matrix or bank of filters, of root mean square 1; those of one shape in one iteration."""
    directions: dict[int, Tensor] = {}
    shapes = [momentum.shape for momentum in momenta]
    for shape in dict.fromkeys(shapes):
        places = [place for place, other in enumerate(shapes) if other == shape]
        alone = len(places) == 1  # products of single matrices cost less than those of a stack of one
        y = momenta[places[0]].flatten(1) if alone else torch.stack([momenta[place].flatten(1) for place in places])
        upright, dtype, size = y.shape[-2] > y.shape[-1], y.dtype, math.sqrt(y.shape[-2] * y.shape[-1])
        least, product = torch.finfo(dtype).tiny ** 0.5, torch.addmm if alone else torch.baddbmm
        y = (y / _norms(y).clamp_(min=least)).to(_quick_dtype(y))
        y = y.mT if upright else y
        for a, b, c in _QUICK[:ITERATIONS]:
            gram = y @ y.mT
            y = product(y, product(gram, gram, gram, beta=b, alpha=c), y, beta=a)
        y = (y.mT if upright else y).to(dtype)
        y = y * (size / _norms(y).clamp_(min=size * least))
        directions.update(zip(places, (y,) if alone else y.unbind(0), strict=True))
    return [directions[place].reshape(shape) for place, shape in enumerate(shapes)]


def _norms(matrices: Tensor) -> Tensor:
    """Of each, (…, 1, 1)."""
    return torch.linalg.vector_norm(matrices, dim=(-2, -1), keepdim=True)


def _quick_dtype(tensor: Tensor) -> torch.dtype:
    """bfloat16 in place of single precision where the device has instructions for it: the iteration corrects itself."""
    if tensor.dtype != torch.float32 or min(tensor.shape[-2:]) < 64:
        return tensor.dtype
    if tensor.device.type == "cpu":
        return torch.bfloat16 if _multiplies_bfloat16() else tensor.dtype
    return torch.bfloat16 if tensor.device.type == "cuda" and torch.cuda.is_bf16_supported() else tensor.dtype


@cache
def _multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for it; torch emulates them elsewhere, at a quarter of the speed."""
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()  # absent in older versions
    return any(capabilities.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))


def widest(weight: Tensor) -> int:
    """The most samples for which the gradient of a matrix, or of a stack of matrices, is orthogonalised.

    Never that of square layers: those of networks that restore what they are given start near the identity, and the
    weak directions of their gradients are noise.
    """
    rows, columns = weight.shape[-2:]
    return min(rows, columns) // WIDE if rows != columns else 0


def many_outputs(weight: Tensor, bias: Tensor, samples: int) -> bool:
    """Whether the last layer puts out so many numbers that every sample brings directions of its own.

    The few outputs of a classifier do not, and orthogonalised steps fit its training data faster and others worse.
    """
    return weight.ndim == bias.ndim + 1 and weight.shape[-2] >= WIDE * samples


def orthogonalise(factors: Sequence[Factors], polish: int = 0) -> list[Orthogonalised]:
    """msgn(RᵀX) of each, all with as many samples, in one iteration.

    Arguments:
        factors: centred, so that R takes part without its mean.
        polish: further iterations, which converge; steps need none.
    """
    signals, inputs = (torch.stack([part @ part.T for part in parts]) for parts in zip(*factors, strict=True))
    energy = (signals * inputs).sum((1, 2))
    start = energy.clamp(min=torch.finfo(energy.dtype).tiny ** 0.5).rsqrt()
    middle = torch.eye(signals.shape[1], dtype=signals.dtype, device=signals.device) * start[:, None, None]
    for a, b, c in (*_QUICK, *(_EXACT,) * polish):
        gram = middle @ inputs @ middle.mT @ signals
        once = gram @ middle
        middle = torch.baddbmm(once * b, gram, once, alpha=c).add_(middle, alpha=a)
    squares = (middle @ inputs @ middle.mT * signals).sum((1, 2)).clamp_(min=0)
    sizes = [r.shape[1] * x.shape[1] for r, x in factors]
    rows = zip(factors, middle.unbind(0), squares.unbind(0), energy.unbind(0), sizes, strict=True)
    return [Orthogonalised(r.T @ (s @ x), square / size, e / size) for (r, x), s, square, e, size in rows]
