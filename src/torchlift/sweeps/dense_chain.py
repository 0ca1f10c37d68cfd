"""The sweep through a chain of dense layers in closed form: one node of autograd, gradients where the stacks lie.

Equal to the same chain with perturbed activations, and faster: autograd would
collect the gradients of layers that share one parameter by copying them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from torchlift.networks.dense_chain import DenseStack, dense_chain
from torchlift.prox import Identity, ProximalActivation
from torchlift.sweeps.activation import perturbed, plain_functions
from torchlift.sweeps.perturbation import Activation, Mean, Perturbation


def perturbed_dense_chain(
    y: Tensor,
    stacks: Sequence[DenseStack],
    activations: Sequence[ProximalActivation],
    perturbation: Perturbation,
    mean: Mean | None,
) -> Tensor:
    """`dense_chain` whose way back is a sweep."""
    tensors = [tensor for stack in stacks for tensor in (stack.weight, stack.bias)]
    if not torch.is_grad_enabled() or not any(t is not None and t.requires_grad for t in (y, *tensors)):
        return dense_chain(y, stacks, activations)
    learned = any(isinstance(value, Tensor) for activation in activations for value in vars(activation).values())
    if learned or torch.is_autocast_enabled(y.device.type):  # left to autograd, which knows what to do with them
        wrapped = [lambda v, a=activation: perturbed(a, v, perturbation, mean) for activation in activations]
        return dense_chain(y, stacks, wrapped)  # type: ignore[arg-type]
    return _DenseChain.apply(y, (stacks, activations, perturbation, mean), *tensors)


class _DenseChain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, setting: tuple[Any, ...], *tensors: Tensor | None) -> Tensor:
        stacks, activations, *_ = setting
        inputs, before = [y], []
        layers = [(stack, i, weight, bias) for stack in stacks for i, (weight, bias) in enumerate(stack.pairs())]
        for j, (_, _, weight, bias) in enumerate(layers):
            v = linear(inputs[-1], weight, bias)
            if j == len(activations):
                with torch.enable_grad():  # observers listen to recorded passes only
                    for (listened, place, *_), u in zip(layers, inputs, strict=True):
                        listened.observe(place, u)
                ctx.setting, ctx.depth = setting, len(activations)
                ctx.save_for_backward(*inputs, *before, *tensors)
                return v
            before.append(v)
            value = activations[j](v)
            inputs.append(value.view_as(v) if value is v else value)
        raise AssertionError("one layer more than activations")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *signals: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        saved = ctx.saved_tensors  # which may repeat a checkpointed part of the forward pass
        with plain_functions():
            return _sweep(ctx, saved, signals[0])


def _sweep(ctx: Any, saved: Sequence[Tensor], signal: Tensor) -> tuple[Tensor | None, ...]:
    stacks, activations, perturbation, mean = ctx.setting
    depth = ctx.depth
    inputs, before, tensors = saved[: depth + 1], saved[depth + 1 : 2 * depth + 1], saved[2 * depth + 1 :]
    needed = ctx.needs_input_grad[2:]
    gradients = [torch.empty_like(t) if wanted else None for t, wanted in zip(tensors, needed, strict=True)]
    places = [(2 * number, layer) for number, stack in enumerate(stacks) for layer in range(stack.layers)]
    residual = signal
    for j in reversed(range(depth + 1)):
        number, layer = places[j]
        if (weight := gradients[number]) is not None:
            torch.mm(residual.T, inputs[j], out=weight if weight.ndim == 2 else weight[layer])
        if (bias := gradients[number + 1]) is not None:
            torch.sum(residual, 0, out=bias if bias.ndim == 1 else bias[layer])
        if j == 0 and not ctx.needs_input_grad[0]:
            break
        weights = tensors[number]
        residual = residual @ (weights if weights.ndim == 2 else weights[layer])
        if j > 0 and not isinstance(activation := activations[j - 1], Identity):
            sigma = Activation(activation, activation.apply_, activation.dim is None)
            residual, _ = perturbation.response(sigma, before[j - 1], residual, mean)
    return residual if ctx.needs_input_grad[0] else None, None, *gradients
