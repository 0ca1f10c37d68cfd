"""The Euclidean norm of groups, without overflow."""

from __future__ import annotations

import torch
from torch import Tensor


def group_norm(v: Tensor, dim: int) -> Tensor:
    """‖v‖ along `dim`, which is kept with size 1.

    Each group is first divided by its largest entry, so that squares neither
    overflow nor vanish. The divisor cancels and hence counts as a constant for
    autograd. The gradient at 0 is 0, a valid subgradient.
    """
    tiny = torch.finfo(v.dtype).tiny
    scale = v.detach().abs().amax(dim, keepdim=True).clamp(min=tiny)
    return scale * torch.linalg.vector_norm(v / scale, dim=dim, keepdim=True)
