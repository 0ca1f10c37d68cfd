"""Matrix products of all layers of a stack, in one batched call or one call per layer, whichever is faster."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from statistics import median

import torch
from torch import Tensor

#: Up to this many multiplications per layer a call costs more than its arithmetic: always one for all layers.
SMALL = 1 << 18
#: Multiplications per layer from which on the arithmetic dominates: always one layer at a time.
LARGE = 1 << 26
#: Bytes of all outputs beyond which one layer at a time is better, because its temporaries stay in the cache.
CACHE = 1 << 22


def affine(inputs: Tensor, transposed: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    """out_j = inputs_j W_jᵀ + b_j for inputs (J, B, in), all W_jᵀ (J, in, out), bias (J, 1, out)."""
    if bias is None:
        return torch.bmm(inputs, transposed, out=out)
    return torch.baddbmm(bias, inputs, transposed, out=out)


def add_adjoint_(total: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    """total_j += residual_j W_j in place, for total (J, B, in), residual (J, B, out)."""
    return total.baddbmm_(residual, weight)


def weight_gradient(residual: Tensor, inputs: Tensor, out: Tensor) -> Tensor:
    """out_j = residual_jᵀ inputs_j for residual (J, B, out), inputs (J, B, in)."""
    if residual.shape[1] == 1:  # outer products: no sum over samples, and three times as fast as bmm
        return torch.mul(residual.transpose(1, 2), inputs, out=out)
    if len(out) == 1:
        torch.mm(residual[0].T, inputs[0], out=out[0])
        return out
    return torch.bmm(residual.transpose(1, 2), inputs, out=out)


def bias_gradient(residual: Tensor, out: Tensor) -> Tensor:
    """out_j = Σ_i residual_ji for residual (J, B, out)."""
    if residual.shape[1] == 1:
        return out.copy_(residual.squeeze(1))
    return torch.sum(residual, 1, out=out)


def prefer_batched(count: int, batch: int, weight: Tensor) -> bool:
    """Whether one product for all layers beats one per layer; measured once where it is not obvious."""
    outputs, inputs = weight.shape[1:]
    if count == 1:
        return False
    if batch * inputs * outputs <= SMALL or weight.device.type == "cuda":
        return True
    if batch * inputs * outputs >= LARGE or count * batch * outputs * weight.element_size() > CACHE:
        return False
    threads = torch.get_num_threads() if weight.device.type == "cpu" else 0
    return _measured(count, batch, outputs, inputs, weight.dtype, weight.device, threads)


@cache
def _measured(
    count: int, batch: int, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device, threads: int
) -> bool:
    """Interleaved medians of both ways, on zeros of the right shape."""
    layers = min(count, 8)  # enough to see the trend; a run of hundreds of layers would take too long
    with torch.no_grad():
        u = torch.zeros(layers, batch, inputs, dtype=dtype, device=device)
        w = torch.zeros(layers, outputs, inputs, dtype=dtype, device=device)
        out = torch.zeros(layers, batch, outputs, dtype=dtype, device=device)

        def together() -> None:
            affine(u, w.transpose(1, 2), None, out)

        def one_by_one() -> None:
            for j in range(layers):
                torch.mm(u[j], w[j].T, out=out[j])

        seconds: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(5):
            seconds[True].append(_seconds(together))
            seconds[False].append(_seconds(one_by_one))
    # The first repeat warms up. Near a tie the loop is the safer choice: it needs no batched kernel.
    return median(seconds[True][1:]) < 0.97 * median(seconds[False][1:])


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
