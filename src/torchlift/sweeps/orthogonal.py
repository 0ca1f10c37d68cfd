"""Orthogonalised gradients of dense layers, from the factors of the gradient.

The gradient of a layer is G = RᵀX with the signals R (samples × out) and the
inputs X (samples × in) of a batch. Its orthogonal factor msgn(G) = UVᵀ, with
G = UΣVᵀ, moves all directions of the batch equally far: those that hardly change
the loss as far as those that dominate it. It is msgn(G) = RᵀSX with
S = (XXᵀRRᵀ)^(−1/2), and the Newton–Schulz iteration Y ← aY + bYYᵀY + c(YYᵀ)²Y
keeps the form Y = RᵀSX:

    S ← aS + bTS + cT²S,   T = S XXᵀ Sᵀ RRᵀ,

so that it runs on matrices of samples × samples. Where a layer is much wider
than the batch this costs about one more product with its weights; on the
matrix itself it costs many times such a product. `widest` and `many_outputs`
say which layers it serves.

Kin: Muon (Jordan et al., 2024), which orthogonalises the momentum by the same
iteration on the matrix; Newton–Muon; FOOF (Benzing, 2022) and LocoProp (Amid,
Anil and Warmuth, 2022), which divide by the inputs' Gram matrix XᵀX alone. New
are the factors: the batch's own gradient is orthogonalised, centred, and
momentum averages afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

#: Layers are orthogonalised if their shorter side is at least so many times the batch: the price of the step.
WIDE = 5
#: Relative difference up to which a gradient counts as that of its factors.
ALIKE = 1e-2
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
