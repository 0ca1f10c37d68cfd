"""Optimisers of others, put together as people use them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Several(torch.optim.Optimizer):
    """Optimisers that each own some of the parameters; their memory is kept here, so that it is saved."""

    def __init__(self, *optimisers: torch.optim.Optimizer) -> None:
        self.optimisers = optimisers
        groups = [group for optimiser in optimisers for group in optimiser.param_groups]
        super().__init__([parameter for group in groups for parameter in group["params"]], {})
        self.param_groups = groups  # shared, so that schedules reach them

    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else closure()
        first = 0
        for optimiser in self.optimisers:
            count = len(optimiser.param_groups)
            optimiser.state, optimiser.param_groups = self.state, self.param_groups[first : first + count]
            optimiser.step()
            first += count
        return loss


class Muon(Several):
    """Matrices by Muon, at the scale of AdamW's steps, and the rest by AdamW.

    Filters (out, in, height, width) are matrices with one row for each output, and a stack (layers, out, in) is one
    matrix for each layer; both share their memory with the parameters.

    Arguments:
        parameters: all that are trained.
        lr: the learning rate of both.
    """

    def __init__(self, parameters: Sequence[Tensor], lr: float) -> None:
        pairs = [(parameter, _matrices(parameter.detach())) for parameter in parameters]
        self.owners = [(owner, [nn.Parameter(matrix) for matrix in matrices]) for owner, matrices in pairs if matrices]
        matrices = [matrix for _, owned in self.owners for matrix in owned]
        others = [owner for owner, matrices in pairs if not matrices]
        optimisers: list[torch.optim.Optimizer] = []
        if matrices:
            optimisers.append(torch.optim.Muon(matrices, lr=lr, adjust_lr_fn="match_rms_adamw"))
        if others:
            optimisers.append(torch.optim.AdamW(others, lr=lr, fused=True))
        super().__init__(*optimisers)

    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else closure()
        for owner, matrices in self.owners:
            gradients = [None] * len(matrices) if owner.grad is None else _matrices(owner.grad)
            for matrix, gradient in zip(matrices, gradients, strict=True):
                matrix.grad = gradient
        super().step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for owner, _ in self.owners:
            owner.grad = None


def _matrices(tensor: Tensor) -> list[Tensor]:
    """The matrices that a parameter consists of, as views; none of vectors and of numbers."""
    if tensor.ndim == 4:
        channels_last = tensor.is_contiguous(memory_format=torch.channels_last)
        tensor = (tensor.permute(0, 2, 3, 1) if channels_last else tensor).flatten(1)
    matrices = list(tensor.unbind(0)) if tensor.ndim == 3 else [tensor]
    return matrices if matrices[0].ndim == 2 and min(matrices[0].shape) > 1 else []
