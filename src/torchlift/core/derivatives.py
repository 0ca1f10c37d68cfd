"""Derivatives of derivatives, of every network."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch.nn.attention import SDPBackend, sdpa_kernel


def differentiable_twice() -> AbstractContextManager[object]:
    """In this context attention is computed by its formula: the fused kernels can be differentiated once only."""
    return sdpa_kernel(SDPBackend.MATH)
