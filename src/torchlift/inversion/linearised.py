"""The network near an input: products with its derivative."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.core.derivatives import differentiable_twice
from torchlift.inversion.problem import InversionProblem


@dataclass(frozen=True, eq=False)
class Linearised:
    """N(x + v) ≈ N(x) + N'v, image by image, by back-propagation alone, which every network knows.

    Arguments:
        output: N(x).
        forward: v ↦ N'v.
        adjoint: w ↦ N'ᵀw.
    """

    output: Tensor
    forward: Callable[[Tensor], Tensor]
    adjoint: Callable[[Tensor], Tensor]

    @classmethod
    def at(cls, problem: InversionProblem, x: Tensor) -> Linearised:
        with torch.enable_grad(), differentiable_twice():
            leaf = x.detach().requires_grad_()
            output = problem.forward(leaf)
            dual = torch.zeros_like(output).requires_grad_()
            # w ↦ N'ᵀw is linear, so that its derivative in direction v is N'v
            (back,) = torch.autograd.grad(output, leaf, dual, create_graph=True)
        return cls(
            output.detach(),
            lambda v: torch.autograd.grad(back, dual, v, retain_graph=True)[0],
            lambda w: torch.autograd.grad(output, leaf, w, retain_graph=True)[0],
        )
