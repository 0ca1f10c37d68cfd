"""The forward pass of a chain of dense layers, without the block operators around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import handle_torch_function, has_torch_function_unary

from torchlift.core.errors import TorchliftError
from torchlift.prox import ProximalActivation, as_activation
from torchlift.prox.base import tensors_of


class DenseStack(NamedTuple):
    """Consecutive layers whose weights are one parameter, or a single layer.

    Arguments:
        weight: (layers, out, in), or (out, in).
        bias: (layers, out) or (out,), or None.
        observers: are told (layer, its input) in every forward pass that is recorded for a way back. If they return
            True, their attribute `signal` is told (layer, its input, the signal that comes back to it) on that way.
    """

    weight: Tensor
    bias: Tensor | None
    observers: Sequence[Callable[[int, Tensor], bool | None]] = ()

    @property
    def layers(self) -> int:
        return 1 if self.weight.ndim == 2 else len(self.weight)

    def pairs(self) -> Sequence[tuple[Tensor, Tensor | None]]:
        """Weight and bias of each layer."""
        if self.weight.ndim == 2:
            return [(self.weight, self.bias)]
        biases = [None] * len(self.weight) if self.bias is None else self.bias.unbind(0)
        return list(zip(self.weight.unbind(0), biases, strict=True))

    def observe(self, layer: int, u: Tensor) -> bool:
        """Tell the input of a layer; returns whether somebody asks for the signal that comes back."""
        if not self.observers or not torch.is_grad_enabled():
            return False
        asked = False
        for observer in self.observers:
            asked = bool(observer(layer, u)) or asked  # all are told
        return asked

    def answer(self, layer: int, u: Tensor, r: Tensor) -> None:
        """Tell that the signal r has come back to a layer with input u."""
        for observer in self.observers:
            if (signal := getattr(observer, "signal", None)) is not None:
                signal(layer, u, r)


def follow(v: Tensor, u: Tensor, layer: int, signal: Callable[[int, Tensor, Tensor], None]) -> None:
    """Have `signal` told (layer, u, the gradient of v) by autograd; v = W u + b is left as it is."""
    if v.requires_grad and not torch.compiler.is_compiling() and not torch.is_autocast_enabled(v.device.type):
        v.register_hook(lambda r: signal(layer, u, r))


def dense_chain(y: Tensor, stacks: Sequence[DenseStack], activations: Sequence[ProximalActivation]) -> Tensor:
    """W_J σ(… σ(W_0 y + b_0) …) + b_J; the layers of all stacks in turn, one more than there are activations."""
    if has_torch_function_unary(y):
        return handle_torch_function(dense_chain, (y,), y, stacks, activations)
    u, after = y, iter(activations)
    for stack in stacks:
        for layer, (weight, bias) in enumerate(stack.pairs()):
            followed = stack.observe(layer, u)
            v = linear(u, weight, bias)
            if followed:
                follow(v, u, layer, stack.answer)
            activation = next(after, None)
            u = v if activation is None else activation(v)
    return u


@dataclass(frozen=True, eq=False)
class DenseForm:
    """A plain `nn.Sequential` of `nn.Linear` and activations in turn, evaluated by `dense_chain`.

    Arguments:
        layers: the linear modules.
        activations: between them.
    """

    layers: tuple[nn.Linear, ...]
    activations: tuple[ProximalActivation, ...]

    @staticmethod
    def of(module: nn.Module) -> DenseForm | None:
        """None for every other module."""
        parts = list(module) if type(module) is nn.Sequential else []
        linear, between = parts[::2], parts[1::2]
        if len(parts) < 3 or len(parts) % 2 == 0 or any(type(part) is not nn.Linear for part in linear):
            return None
        try:
            activations = _shared([as_activation(part) for part in between])
        except TorchliftError:
            return None
        form = DenseForm(tuple(cast("list[nn.Linear]", linear)), tuple(activations))
        return form if form.plain and not any(has_hooks(part) for part in (module, *between)) else None

    @property
    def plain(self) -> bool:
        """Whether nobody listens to the layers but observers, which change nothing."""
        return not any(has_hooks(layer) for layer in self.layers)

    def stacks(self) -> list[DenseStack]:
        """One per layer, with its current parameters."""
        return [_stack(layer) for layer in self.layers]

    def __call__(self, y: Tensor) -> Tensor:
        return dense_chain(y, self.stacks(), self.activations)


def _shared(activations: Sequence[ProximalActivation]) -> list[ProximalActivation]:
    """The activations; neighbours that are equal and hold no tensors are one object, so that each is looked at once."""
    shared: list[ProximalActivation] = []
    for activation in activations:
        last = shared[-1] if shared else None
        equal = not tensors_of(activation) and type(last) is type(activation) and vars(last) == vars(activation)
        shared.append(last if equal and last is not None else activation)
    return shared


def _stack(layer: nn.Linear) -> DenseStack:
    parameters = layer._parameters  # past the look-up of attributes of modules, which takes longer than all else here
    hooks = layer._forward_pre_hooks.values()
    observers = [getattr(hook, "observer", None) or partial(_tell, hook, layer) for hook in hooks]
    return DenseStack(cast("Tensor", parameters["weight"]), parameters["bias"], observers)


def _tell(hook: Callable[..., object], layer: nn.Linear, number: int, u: Tensor) -> None:
    hook(layer, (u,))


def has_hooks(module: nn.Module) -> bool:
    """Hooks that may change something; forward hooks marked `observes` do not."""
    if module._backward_hooks or module._backward_pre_hooks:
        return True
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    return not all(getattr(hook, "observes", False) for hook in hooks)
