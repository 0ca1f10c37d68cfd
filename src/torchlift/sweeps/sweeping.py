"""`with sweeping():` any module, its forward untouched, is differentiated by perturbed activations."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchlift.core.errors import invalid_type
from torchlift.networks.dense_chain import dense_chain
from torchlift.sweeps.activation import IN_PLACE, always, as_called, perturb, perturbed, proximal_function, settings_of
from torchlift.sweeps.dense_chain import perturbed_dense_chain
from torchlift.sweeps.perturbation import Mean, Perturbation


class sweeping(TorchFunctionMode):
    """Inside this context the activations of any module are perturbed on the way back.

        with tl.sweeping():
            loss = criterion(model(inputs), targets)
        loss.backward()
        optimiser.step()

    The lifted variables start at the forward pass and each is moved once, from
    the output to the input: with v the pre-activations of a layer and g the
    signal that arrives there,

        R = [σ(v + s g) − σ(v − s g)] / (2s)      takes the place of      σ'(v) g

    and all else is PyTorch's own backward pass. As s → 0 the gradients are
    those of back-propagation, because the Jacobian of a proximal map is
    symmetric; at finite s a signal also passes where σ is flat. See
    `Perturbation` for s.

    It is a `TorchFunctionMode`, because that is the one place where modules
    (`nn.ReLU`), functions (`F.relu`), methods (`x.tanh()`), their in-place forms
    and the activations of this library meet: nothing is hung onto the module and
    nothing is left behind. Perturbed are the proximal activations, those that
    are monotone and never stretch; GELU, SiLU and the like keep their derivative
    unless they are named in `also`. PReLU keeps it too: it is never flat.

    `backward` may stand inside the context or behind it. With
    `torch.utils.checkpoint` see `checkpoint_contexts`. Second derivatives of a
    sweep are refused.

    Arguments:
        perturbation: how far layers are moved; `Perturbation()` by default.
        also: further elementwise functions to perturb, such as (F.gelu, F.silu).
        mean: makes the statistics of a batch that many processes share; None for one process.
    """

    def __init__(
        self,
        perturbation: Perturbation | None = None,
        *,
        also: Iterable[Callable[..., Tensor]] = (),
        mean: Mean | None = None,
    ) -> None:
        super().__init__()
        self.perturbation = Perturbation() if perturbation is None else perturbation
        if not isinstance(self.perturbation, Perturbation):
            invalid_type("sweeping perturbation", "a Perturbation", perturbation)
        functions = "functions such as torch.nn.functional.gelu"
        if isinstance(also, str | bytes | Tensor) or not isinstance(also, Iterable):
            invalid_type("sweeping also", f"a sequence of {functions}", also)
        also = tuple(also)
        for function in also:
            if not callable(function):
                invalid_type("sweeping also", functions, function)
        self.also = frozenset(also)
        if mean is not None and not (callable(mean) and not isinstance(mean, type)):
            invalid_type("sweeping mean", "a function of a tensor or None", mean)
        self.mean = mean

    def __enter__(self) -> sweeping:
        _active.modes = [*getattr(_active, "modes", []), self]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        _active.modes = _active.modes[:-1]
        super().__exit__(*error)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = {} if kwargs is None else kwargs
        if func is dense_chain:
            y, stacks, activations = args
            return perturbed_dense_chain(y, stacks, activations, self.perturbation, self.mean)
        if getattr(func, "is_activation", False):
            activation, v = args
            traced = _traced(v) or any(map(_traced, vars(activation).values()))
            return perturbed(activation, v, self.perturbation, self.mean) if traced else func(*args, **kwargs)
        plain = IN_PLACE.get(func, func)
        condition = always if plain in self.also else proximal_function(plain)
        if condition is None:
            return func(*args, **kwargs)
        v: Any = args[0] if args else kwargs.get("input")
        rest, options = settings_of(args, kwargs)
        if not _traced(v) or not condition(*rest, **options):
            return func(*args, **kwargs)
        in_place = plain is not func or kwargs.get("inplace", False) or (args and args[-1] is True)
        sigma = as_called(plain, rest, options)
        if in_place:  # the same tensor is returned, and others who hold it see its new values
            return v.copy_(perturb(v.clone(), sigma, self.perturbation, self.mean))
        return perturb(v, sigma, self.perturbation, self.mean)


def checkpoint_contexts() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """For `torch.utils.checkpoint`, whose second forward pass runs during `backward`, where no function mode is active.

        checkpoint(block, x, use_reentrant=False, context_fn=tl.sweeps.checkpoint_contexts)

    The second pass is perturbed if the first was. Without this, non-reentrant
    checkpoints are refused by torch ("a different number of tensors was saved") and
    reentrant ones give the ordinary derivative of what they hold.
    """
    active = getattr(_active, "modes", [])
    return nullcontext(), active[-1] if active else nullcontext()


_active = threading.local()


def _traced(v: object) -> bool:
    """Whether there will be a way back through a tensor."""
    return isinstance(v, Tensor) and v.requires_grad and v.is_floating_point() and torch.is_grad_enabled()
