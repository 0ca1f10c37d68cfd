"""The backward sweep through networks that are no chain of dense layers: autograd, with nudges in place of σ'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchlift.networks import Network
from torchlift.objective.nudge import Nudge, Response
from torchlift.operators import Context
from torchlift.prox import Identity, ProximalActivation


class TapedSweep:
    """One forward pass, recorded by autograd; the way back visits every linear map once.

    Args:
        network, y, context: what is evaluated.
        nudge, multipliers: how far each layer is moved.
        recorded: rows whose states and residuals are kept.
    """

    def __init__(
        self, network: Network, y: Tensor, context: Context, nudge: Nudge, multipliers: Tensor, recorded: set[int]
    ) -> None:
        self.samples = len(y)
        with torch.enable_grad():
            form = network.operators()
            layers = _Layers(nudge, multipliers, form.activations)
            self.responses = layers.responses
            self.u, z = [y], []
            for j, activation in enumerate(form.activations):
                v = form.pre_activation(j, self.u, context)
                passed = isinstance(activation, Identity) and j not in recorded
                learned = (getattr(activation, name) for name in _learned(activation))
                z.append(v if passed else _Nudged.apply(v, layers, j, *learned))
                self.u.append(form.couple(j, self.u, z, context))
            self._output = form.output(self.u, context)
        self.output = self._output.detach()

    def gradients(self, cotangent: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of the mean over samples, given ∇L; then `responses` holds what the layers did."""
        if not self._output.requires_grad:
            return {name: torch.zeros_like(p) for name, p in parameters.items()}
        found = torch.autograd.grad(self._output, list(parameters.values()), cotangent, allow_unused=True)
        means = iter(_divided([gradient for gradient in found if gradient is not None], self.samples))
        return {
            name: torch.zeros_like(p) if gradient is None else next(means)
            for (name, p), gradient in zip(parameters.items(), found, strict=True)
        }


class _Layers:
    """What the way back needs and finds. It must not hold the tape, which holds it: such a circle is never freed."""

    def __init__(self, nudge: Nudge, multipliers: Tensor, activations: Sequence[ProximalActivation]) -> None:
        self.nudge, self.multipliers, self.activations = nudge, multipliers, activations
        self.responses: dict[int, Response] = {}

    def respond(self, j: int, v: Tensor, signal: Tensor) -> tuple[Tensor, ...]:
        """R_j, and the slopes of the learned tensors."""
        self.responses[j] = response = self.nudge.response(self.activations[j], v, signal, self.multipliers[j])
        return response.residual, *(response.slopes[name] for name in _learned(self.activations[j]))


class _Nudged(torch.autograd.Function):
    """σ(v), whose way back is the two-sided difference instead of the derivative."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, layers: _Layers, j: int, *learned: Tensor) -> Tensor:
        ctx.save_for_backward(v)
        ctx.layers, ctx.row = layers, j
        return layers.activations[j](v).view_as(v)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *signals: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (v,) = ctx.saved_tensors
        residual, *slopes = ctx.layers.respond(ctx.row, v, signals[0])
        return residual, None, None, *slopes


def _divided(gradients: list[Tensor], count: int) -> list[Tensor]:
    """In their own memory, because new memory costs more than the arithmetic; parameters may share a gradient."""
    places = {gradient.data_ptr() for gradient in gradients}
    apart = len(places) == len(gradients) and all(gradient.is_contiguous() for gradient in gradients)
    return [gradient.div_(count) if apart else gradient / count for gradient in gradients]


def _learned(activation: ProximalActivation) -> list[str]:
    """Names of the tensors of an activation that need gradients."""
    return [name for name, value in vars(activation).items() if isinstance(value, Tensor) and value.requires_grad]
