"""Affine layers and activations of any module, as one forward pass meets them: dead layers and LSUV without a lift."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from torchlift.networks.dense_chain import dense_chain
from torchlift.operators import Context
from torchlift.sweeps.activation import IN_PLACE, always, as_called, proximal_function, settings_of
from torchlift.training.modules import apply, in_mode
from torchlift.training.starts.draws import LayerStart
from torchlift.training.starts.lsuv import is_dead, rescaling

#: Modules with a weight and perhaps a bias whose units can be rescaled, and the axis of their outputs that counts them.
AFFINE: dict[type[nn.Module], int] = {
    nn.Linear: -1, nn.Conv1d: 1, nn.Conv2d: 1, nn.Conv3d: 1,
    nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 1, nn.ConvTranspose3d: 1,
}  # fmt: skip

#: Elementwise activations that sweeps do not perturb, since they are no proximal maps.
OTHERS = (F.gelu, F.silu, F.mish, F.hardswish, F.selu)


class Activated(NamedTuple):
    """A call of an elementwise activation.

    Arguments:
        activation: v ↦ σ(v).
        dead: whether it (nearly) ignores the input of the module.
        layer: the affine module that made v, by name; None where something else did.
        after: the affine module that was called last before it, if there was one.
    """

    activation: Callable[[Tensor], Tensor]
    dead: bool
    layer: str | None
    after: str | None


@torch.no_grad()
def record(module: nn.Module, y: Tensor, context: Context = None) -> list[Activated]:
    """The activations that a forward pass in evaluation mode meets, in turn.

    Where a layer is called again and again, in a loop over time for instance, it is dead only if all calls are: the
    first rows of a digit are black.
    """
    recorder = _Recorder()
    with affine_hooks(module, recorder.remember), in_mode(module, False), torch.random.fork_rng(devices=()), recorder:
        apply(module, y, context)
    alive = {call.after for call in recorder.activated if not call.dead and recorder.calls[call.after] > 1}
    return [call._replace(dead=call.dead and call.after not in alive) for call in recorder.activated]


@torch.no_grad()
def lsuv_of_module(module: nn.Module, y: Tensor) -> tuple[LayerStart, ...]:
    """`lsuv` for any module: each `nn.Linear` or convolution whose output an activation reads, and nothing else does.

    Two forward passes: the first finds the layers, the second rescales each of
    them before what follows is computed. Kept as they are: layers that are
    called more than once, those before a normalisation or a sum, and the output.
    """
    activations: dict[str, Callable[[Tensor], Tensor]] = {}
    calls: Counter[str] = Counter()
    with affine_hooks(module, lambda name, _, __: calls.update((name,))):
        for call in record(module, y):
            if call.layer is not None:
                activations.setdefault(call.layer, call.activation)
    names = [name for name, part in module.named_modules() if type(part) in AFFINE]
    chosen = {name for name in names if name in activations and calls[name] == 1}

    def rescale(name: str, layer: nn.Module, output: Tensor) -> Tensor | None:
        if name not in chosen:
            return None
        weight, bias = layer.get_parameter("weight"), getattr(layer, "bias", None)
        axis = AFFINE[type(layer)]
        v = output.movedim(axis, 1) if output.ndim > 2 else output
        v = v if bias is None else v - bias.view(1, -1, *[1] * (v.ndim - 2))
        factor, centres = rescaling(v, v.shape[1], bias is not None, activations[name], None, f"layer {name}")
        weight.mul_(factor)
        shift = (factor * centres).view(1, -1, *[1] * (v.ndim - 2))
        if bias is not None:
            bias.copy_(-shift.flatten())
        scaled = factor * v - shift
        return scaled.movedim(1, axis) if output.ndim > 2 else scaled

    with affine_hooks(module, rescale), in_mode(module, False), torch.random.fork_rng(devices=()):
        module(y)
    return tuple(LayerStart(name, "lsuv" if name in chosen else "kept") for name in names)


class _Recorder(TorchFunctionMode):
    """Sees activations as `sweeping` does, and knows which affine module made what they read."""

    def __init__(self) -> None:
        super().__init__()
        self.activated: list[Activated] = []
        self.calls: Counter[str | None] = Counter()
        self._last: str | None = None
        self._made: list[tuple[str, Tensor]] = []  # outputs are kept, so that no address is used twice

    def remember(self, name: str, layer: nn.Module, output: Tensor) -> None:
        self._made.append((name, output))
        self.calls[name] += 1
        self._last = name

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = {} if kwargs is None else kwargs
        if func is dense_chain:  # a chain of ours in one call: look inside
            with self:
                return func(*args, **kwargs)
        if getattr(func, "is_activation", False):
            activation, v = args
            if activation.dim is None:
                self._note(v, activation)
        elif (condition := _condition(plain := IN_PLACE.get(func, func))) is not None:
            v = args[0] if args else kwargs.get("input")
            rest, options = settings_of(args, kwargs)
            if isinstance(v, Tensor) and v.is_floating_point() and condition(*rest, **options):
                sigma = as_called(plain, rest, options)
                if sigma.elementwise:
                    self._note(v, sigma.call)
        return func(*args, **kwargs)

    def _note(self, v: Tensor, activation: Callable[[Tensor], Tensor]) -> None:
        place = v.untyped_storage().data_ptr()
        index = next((i for i, (_, t) in enumerate(self._made) if t.untyped_storage().data_ptr() == place), None)
        layer = None if index is None else self._made.pop(index)[0]
        dead = v.ndim > 1 and len(v) > 1 and is_dead(v, activation)
        self.activated.append(Activated(activation, dead, layer, self._last))


def _condition(func: Callable[..., Any]) -> Callable[..., bool] | None:
    """Whether a function of torch with these options is an activation; None where it is none."""
    return always if func in OTHERS else proximal_function(func)


@contextmanager
def hooks(
    kinds: Container[type], module: nn.Module, function: Callable[[str, nn.Module, Tensor], Tensor | None]
) -> Iterator[None]:
    """Call a function with name, part and output of all parts of these types; what it returns replaces the output."""

    def hook(name: str) -> Callable[[nn.Module, Any, Tensor], Tensor | None]:
        return lambda part, _, output: function(name, part, output)

    handles = [part.register_forward_hook(hook(name)) for name, part in module.named_modules() if type(part) in kinds]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


affine_hooks = partial(hooks, AFFINE)
