"""The sweep through a chain of dense layers in closed form, gradients where the stacks lie.

Equal to the same chain with perturbed activations, and faster: autograd would
collect the gradients of layers that share one parameter by copying them, and
its nodes cost as much as the arithmetic of small layers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear

from torchlift.core.shard import Shard
from torchlift.networks.dense_chain import DenseStack, dense_chain
from torchlift.prox import Identity, ProximalActivation
from torchlift.sweeps.activation import as_sigma, perturbed, plain_functions
from torchlift.sweeps.perturbation import Mean, Perturbation, mean_squares, transformed

_Setting: TypeAlias = tuple[Sequence[DenseStack], Sequence[ProximalActivation], Perturbation, Mean | None]


def perturbed_dense_chain(
    y: Tensor,
    stacks: Sequence[DenseStack],
    activations: Sequence[ProximalActivation],
    perturbation: Perturbation,
    mean: Mean | None,
) -> Tensor:
    """`dense_chain` whose way back is a sweep: one node of autograd."""
    tensors = _tensors(stacks)
    if not torch.is_grad_enabled() or not any(t is not None and t.requires_grad for t in (y, *tensors)):
        return dense_chain(y, stacks, activations)
    if _left_to_autograd(y, activations):
        wrapped = [lambda v, a=activation: perturbed(a, v, perturbation, mean) for activation in activations]
        return dense_chain(y, stacks, wrapped)  # type: ignore[arg-type]
    return _DenseChain.apply(y, (stacks, activations, perturbation, mean), *tensors)


def differentiate_dense_chain(
    y: Tensor,
    stacks: Sequence[DenseStack],
    activations: Sequence[ProximalActivation],
    perturbation: Perturbation,
    shard: Shard,
    loss: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor] | None:
    """Write the sweep's gradients of loss(chain(y)) over `.grad`; returns the loss and chain(y).

    Memory of earlier gradients is used again: to ask the system for it costs as much as a pass over it.
    Autograd sees nothing but the loss. None, and nothing is done, where it is needed for more: for the gradient of y,
    learned activations, autocast, hooks of parameters, layers that share them.

    Where many processes share a batch, loss and gradients are sums over all of them. Products with inputs, for
    gradients, are made while statistics of signals are exchanged, and the sum of a gradient begins once it is there.
    """
    tensors = _tensors(stacks)
    if y.requires_grad or transformed() or _left_to_autograd(y, activations) or any(map(_has_hooks, tensors)):
        return None
    if len({id(tensor) for tensor in tensors if tensor is not None}) < sum(tensor is not None for tensor in tensors):
        return None
    with torch.no_grad(), plain_functions():
        output, inputs, before, followed = _forward(y, stacks, activations)
    output.requires_grad_()
    value = loss(output)
    (signal,) = torch.autograd.grad(value, output)
    value = value.detach()
    with torch.no_grad(), plain_functions(), nullcontext() if shard.whole else shard.summing() as add:
        needed = [tensor is not None and tensor.requires_grad for tensor in tensors]
        buffers = [_buffer(tensor) if n else None for tensor, n in zip(tensors, needed, strict=True)]
        later: deque[Callable[[], None]] = deque()
        mean = None if shard.whole else partial(shard.mean, meanwhile=lambda: later and later.popleft()())
        setting = stacks, activations, perturbation, mean
        gradients, _ = _sweep(setting, inputs, before, followed, tensors, buffers, False, signal, later, add)
        if add is not None:
            add(value)
    for tensor, gradient in zip(tensors, gradients, strict=True):
        if tensor is not None:
            tensor.grad = gradient
    return value, output.detach()


class _DenseChain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, setting: _Setting, *tensors: Tensor | None) -> Tensor:
        output, inputs, before, ctx.followed = _forward(y, *setting[:2])
        ctx.setting, ctx.depth = setting, len(before)
        ctx.save_for_backward(*inputs, *before, *tensors)
        return output

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> Any:
        saved, depth = ctx.saved_tensors, ctx.depth  # which may repeat a checkpointed part of the forward pass
        inputs, before, tensors = saved[: depth + 1], saved[depth + 1 : 2 * depth + 1], saved[2 * depth + 1 :]
        of_input, _, *needed = ctx.needs_input_grad
        if torch.is_grad_enabled():
            return _differentiate(ctx, inputs[0], tensors, signals[0])
        with plain_functions():
            followed = ctx.followed
            buffers = [torch.empty_like(t) if n else None for t, n in zip(tensors, needed, strict=True)]
            gradients, residual = _sweep(ctx.setting, inputs, before, followed, tensors, buffers, of_input, signals[0])
        return residual, None, *gradients


def _differentiate(ctx: Any, y: Tensor, tensors: Sequence[Tensor | None], signal: Tensor) -> tuple[Tensor | None, ...]:
    """Derivatives of the chain itself, for a way back that is recorded: see `PerturbedActivation`."""
    stacks, activations, *_ = ctx.setting
    wanted = [tensor for tensor, n in zip((y, None, *tensors), ctx.needs_input_grad, strict=True) if n]
    with plain_functions():
        found = iter(torch.autograd.grad(dense_chain(y, stacks, activations), wanted, signal, create_graph=True))  # type: ignore[arg-type]
    return tuple(next(found) if n else None for n in ctx.needs_input_grad)


def _forward(
    y: Tensor, stacks: Sequence[DenseStack], activations: Sequence[ProximalActivation]
) -> tuple[Tensor, list[Tensor], list[Tensor], list[bool]]:
    """The output, the inputs of all layers, the pre-activations, and whose signals observers ask for."""
    inputs, before = [y], []
    layers = [(stack, i, weight, bias) for stack in stacks for i, (weight, bias) in enumerate(stack.pairs())]
    for (_, _, weight, bias), activation in zip(layers, activations, strict=False):
        v = linear(inputs[-1], weight, bias)
        before.append(v)
        value = activation(v)
        inputs.append(value.view_as(v) if value is v else value)
    with torch.enable_grad():  # observers listen to recorded passes only
        followed = [stack.observe(place, u) for (stack, place, *_), u in zip(layers, inputs, strict=True)]
    _, _, weight, bias = layers[-1]
    return linear(inputs[-1], weight, bias), inputs, before, followed


def _sweep(
    setting: _Setting,
    inputs: Sequence[Tensor],
    before: Sequence[Tensor],
    followed: Sequence[bool],
    tensors: Sequence[Tensor | None],
    gradients: list[Tensor | None],
    of_input: bool,
    residual: Tensor,
    later: deque[Callable[[], None]] | None = None,
    add: Callable[..., None] | None = None,
) -> tuple[list[Tensor | None], Tensor | None]:
    """Gradients of the tensors that need them, written where there is room for them, and of the input.

    Arguments:
        later: takes the gradients of a layer or two, for `mean` to make while it waits; what is left is made here.
        add: is told gradients that are complete.
    """
    stacks, activations, perturbation, mean = setting
    later = deque() if later is None else later
    sigmas = {id(activation): None if isinstance(activation, Identity) else as_sigma(activation)
              for activation in activations}  # fmt: skip
    squares = mean_squares(before)
    places = [(2 * number, layer) for number, stack in enumerate(stacks) for layer in range(stack.layers)]
    for j in reversed(range(len(inputs))):
        number, layer = places[j]
        weights = tensors[number]
        assert weights is not None
        weight, bias = (g if g is None or weights.ndim == 2 else g[layer] for g in gradients[number : number + 2])
        if followed[j]:
            stacks[number // 2].answer(layer, inputs[j], residual)
        later.append(partial(_differentiate_weight, residual, inputs[j], weight))
        later.append(partial(_differentiate_bias, residual, weight, bias, add))
        while later if mean is None or j == 0 else len(later) > 3:
            later.popleft()()
        if j == 0 and not of_input:
            return gradients, None
        residual = torch.mm(residual, weights if weights.ndim == 2 else weights[layer])
        if j > 0 and (sigma := sigmas[id(activations[j - 1])]) is not None:
            residual, _ = perturbation.response(sigma, before[j - 1], residual, mean, square=squares[j - 1])
    return gradients, residual


def _differentiate_weight(residual: Tensor, u: Tensor, weight: Tensor | None) -> None:
    if weight is not None:
        torch.mm(residual.T, u, out=weight)


def _differentiate_bias(
    residual: Tensor, weight: Tensor | None, bias: Tensor | None, add: Callable[..., None] | None
) -> None:
    """The last of a layer's gradients; then both are told."""
    if bias is not None:
        torch.sum(residual, 0, out=bias)
    if add is not None:
        add(*(gradient for gradient in (weight, bias) if gradient is not None))


def _buffer(tensor: Tensor | None) -> Tensor | None:
    """Room for a gradient: the last one's."""
    if tensor is None:
        return None
    last = tensor.grad
    if last is None or last.requires_grad or not last.is_contiguous() or last.dtype is not tensor.dtype:
        return torch.empty_like(tensor)
    return last


def _tensors(stacks: Sequence[DenseStack]) -> list[Tensor | None]:
    return [tensor for stack in stacks for tensor in (stack.weight, stack.bias)]


def _left_to_autograd(y: Tensor, activations: Sequence[ProximalActivation]) -> bool:
    """Learned activations, autocast and samples that are not vectors, which autograd knows what to do with."""
    if y.ndim != 2 or torch.is_autocast_enabled(y.device.type):
        return True
    different = {id(activation): activation for activation in activations}.values()
    return any(isinstance(value, Tensor) for activation in different for value in vars(activation).values())


def _has_hooks(tensor: Tensor | None) -> bool:
    if tensor is None:
        return False
    late = getattr(tensor, "_post_accumulate_grad_hooks", None)
    return tensor.grad_fn is not None or bool(tensor._backward_hooks) or bool(late)
