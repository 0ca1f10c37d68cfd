"""Training of deep unrolled networks in little memory: the way forward is repeated on the way back."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Self, cast

import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack

from torchlift.core.checks import check_size
from torchlift.networks.base import Network
from torchlift.networks.form import UnifiedForm
from torchlift.operators import Context

States = dict[int, Tensor]
"""Some of the states u_k, or of the activations z_k, by their place."""


class Iterative(Network):
    """A network whose layers are iterations of an algorithm."""

    _segment = 0

    def recompute(self, layers: int | None = None) -> Self:
        """Keep few states for the way back and repeat the rest of the way forward there; returns the network.

        The layers are divided into segments. Of all but the last only the states that later ones read are kept, and
        what lies between is computed a second time when the gradient arrives. Gradients are the same. With J layers in
        segments of √J the memory grows as √J and a step takes about a third longer.

        Arguments:
            layers: of a segment; √J by default, and 0 keeps everything again.
        """
        if layers is None:
            layers = max(1, math.isqrt(self.depth))
        self._segment = check_size(f"{type(self).__name__}.recompute layers", layers, minimum=0)
        return self

    def forward(self, y: Tensor, context: Context = None) -> Tensor:
        if self._segment == 0 or not torch.is_grad_enabled():
            return super().forward(y, context)
        self.check_input(y)
        return _output(self.operators(), y, context, self._segment)


def _output(form: UnifiedForm, y: Tensor, context: Context, length: int) -> Tensor:
    """N(y) with segments of so many layers, all but the last of which are checkpoints of torch."""
    from torch.utils.checkpoint import checkpoint

    u, z = {0: y}, cast("States", {})
    for first in range(0, form.depth, length):
        last = min(first + length, form.depth)
        if last == form.depth:
            u, z = _segment(form, first, last, u, z, context)
        else:
            # determinism is that of the layers, which draw no random numbers
            options: Any = {"use_reentrant": False, "context_fn": _contexts, "preserve_rng_state": False}
            u, z = checkpoint(_segment, form, first, last, u, z, context, **options)
    return form.output(_listed(u, form.depth + 1), context)


def _segment(form: UnifiedForm, first: int, last: int, u: States, z: States, context: Context) -> tuple[States, States]:
    """Forward substitution from layer `first` to `last`; returns what later layers and the output read."""
    u, z = dict(u), dict(z)
    for j in range(first, last):
        states = _listed(u, j + 1)
        z[j] = form.activations[j](form.pre_activation(j, states, context))
        u[j + 1] = form.couple(j, states, _listed(z, j + 1), context)
    later = range(last, form.depth)
    read = {k for rows in (form.W.rows, form.M.rows) for j in later for k, _ in rows[j]}
    read |= {k for k, _ in form.K.rows[0]}
    driving = {k for j in later for k, _ in form.V.rows[j]}
    return _chosen(u, read), _chosen(z, driving)


def _chosen(states: States, places: set[int]) -> States:
    return {k: state for k, state in states.items() if k in places}


def _listed(states: Mapping[int, Tensor], length: int) -> list[Tensor]:
    """The states in a list, as rows of a form read them; those that no row reads any more are missing."""
    return [states.get(k) for k in range(length)]  # type: ignore[misc]


def _contexts() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """Functions of torch that mean something else on the way forward, as in `sweeping`, mean the same when repeated."""
    return nullcontext(), _inside(_get_current_function_mode_stack())


@contextmanager
def _inside(modes: list[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode)
        yield
