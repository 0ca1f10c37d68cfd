"""What training asks of any module, whether it is a network of this library or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from torchlift.core.errors import TorchliftError, invalid_value
from torchlift.data import Batch
from torchlift.data.base import select_samples
from torchlift.networks import Network
from torchlift.operators import Context


def like(module: nn.Module) -> Tensor | None:
    """Some floating-point parameter, whose dtype and device inputs must have."""
    return next((parameter for parameter in module.parameters() if parameter.is_floating_point()), None)


def apply(module: nn.Module, y: Tensor, context: Context = None) -> Tensor:
    """The outputs; the context is given to modules that there is one for.

    Modules of one's own may begin with `x -= mean`: they get a copy, since the inputs are views of somebody's data.
    """
    if not isinstance(module, Network):
        y = y.clone()
    return module(y) if context is None else module(y, context)


@contextmanager
def in_mode(module: nn.Module, training: bool) -> Iterator[None]:
    """All parts in training or evaluation mode, and afterwards each in its own again."""
    modes = [(part, part.training) for part in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


@torch.no_grad()
def example_output(where: str, module: nn.Module, batch: Batch, samples: int = 8) -> Tensor:
    """The outputs of the first samples, in evaluation mode; what a module of one's own raises is told in a sentence."""
    y, _, context = select_samples(batch, slice(samples))
    try:
        with in_mode(module, False), torch.random.fork_rng(devices=()):
            output = apply(module, y, context)
    except TorchliftError:
        raise
    except Exception as error:
        name, reason = type(module).__name__, str(error).strip().splitlines()[0:1] or [type(error).__name__]
        hint = "Does it take the shape and the dtype of these inputs?"
        if context is not None:
            hint = "It is called with inputs and context: data of three parts are (inputs, targets, context)."
        shape = f"inputs of shape {tuple(y.shape)} and dtype {y.dtype}"
        invalid_value(where, f"data that {name} can be applied to", f"{shape}: {reason[0]}", hint)
    if not isinstance(output, Tensor):
        hint = "Wrap the module so that it returns the tensor that the loss compares with the targets."
        invalid_value(where, "a module that returns one tensor", f"a {type(output).__name__}", hint)
    if output.ndim == 0 or len(output) != len(y):
        invalid_value(where, f"one output per sample, shape ({len(y)}, …)", tuple(output.shape))
    return output
