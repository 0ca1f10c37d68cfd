"""Coordinates of z in which Ψ does not depend on the parameters, for layers that learn a threshold or an interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torchlift.objective.engine import Gradients, States
from torchlift.objective.objective import Objective
from torchlift.prox import ProximalActivation
from torchlift.prox.base import is_trained, tensors_of, with_tensors


class Coordinates:
    """z_j = T_θ(ζ_j) with Ψ_θ(T_θ(ζ)) = Ψ_0(ζ), where Ψ_0 is that of the parameters at the beginning.

    With z itself, the interval [−λ, λ] of a primal-dual network could never
    shrink: some z_j lies on its end. In ζ the domain stays where it is, and z
    moves along with the interval.

    Arguments:
        objective: whose activations are looked at. Layers without learned
            activations keep z, as do those with a regulariser whose proximal
            map belongs to z.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.reference: dict[int, ProximalActivation] = {}
        """Activations with the numbers of the beginning, by layer counted from 0."""
        with torch.enable_grad():  # so that tensors know whether they are trained
            activations = objective.network.operators().activations
        for row, activation in enumerate(activations):
            regulariser = objective.state_regularisers.get(row + 1)
            needed = not objective.lifting.smooth_in_z and (regulariser is None or regulariser.smooth)
            carries = type(activation).carried is not ProximalActivation.carried
            if needed and carries and is_trained(activation):
                start = {name: tensor.detach().clone() for name, tensor in tensors_of(activation).items()}
                self.reference[row] = with_tensors(activation, start)

    @torch.no_grad()
    def held(self, z: States) -> States:
        """ζ of z, with the network's present parameters."""
        if not self.reference:
            return z
        held, activations = z.clone(), self._activations()
        for row, reference in self.reference.items():
            held[row].copy_(activations[row].carried(z[row], reference))
        return held

    @torch.no_grad()
    def load(self, held: Mapping[int, Tensor], z: States) -> None:
        """Write T_θ(ζ) into z."""
        activations = self._activations() if held else ()
        for row, layer in held.items():
            z[row].copy_(self.reference[row].carried(layer, activations[row]))

    @torch.enable_grad()
    def pull_back(self, held: Mapping[int, Tensor], gradients: Gradients) -> None:
        """Change gradients at (z, θ) into those at (ζ, θ).

        The chain rule adds (∂T/∂θ)ᵀ∇_z. What Ψ itself adds to the gradient in θ goes: it is constant there.
        """
        if not held:
            return
        activations, weights = self._activations(), self.objective.engine.setting.weights
        trained = {name: self.objective.network.get_parameter(name) for name in gradients.parameters}
        leaves: dict[int, Tensor] = {}
        values: list[Tensor] = []
        cotangents: list[Tensor] = []
        for row, layer in held.items():
            slot = gradients.z[row]
            leaves[row] = layer.detach().to(slot.dtype).requires_grad_()
            z = self.reference[row].carried(leaves[row], activations[row])
            psi = self.objective.lifting.nonsmooth_value(activations[row], z.detach(), weights[row]).sum()
            values += [z, psi] if psi.requires_grad else [z]
            cotangents += [slot, torch.full_like(psi, -1 / len(slot))] if psi.requires_grad else [slot]
        grads = torch.autograd.grad(values, [*leaves.values(), *trained.values()], cotangents, allow_unused=True)
        with torch.no_grad():
            for row, grad in zip(leaves, grads, strict=False):
                gradients.z[row].copy_(grad)
        for name, grad in zip(trained, grads[len(leaves) :], strict=True):
            if grad is not None:
                gradients.parameters[name] = gradients.parameters[name] + grad

    @torch.enable_grad()
    def stretch(self, rows: Sequence[int], z: States) -> float:
        """The largest slope of T_θ in some layers; 1 where z is held itself."""
        slopes, activations = [1.0], self._activations() if self.reference else ()
        for row in set(rows) & self.reference.keys():
            leaf = torch.zeros_like(z[row][:1]).requires_grad_()
            (slope,) = torch.autograd.grad(self.reference[row].carried(leaf, activations[row]).sum(), leaf)
            slopes.append(float(slope.abs().max()))
        return max(slopes)

    def state_dict(self) -> dict[str, Tensor]:
        """The numbers that ζ belongs to."""
        held = {row: tensors_of(activation) for row, activation in self.reference.items()}
        return {f"{row}.{name}": tensor for row, tensors in held.items() for name, tensor in tensors.items()}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on with the ζ of another run."""
        for name, tensor in self.state_dict().items():
            tensor.copy_(tensors[name])

    def _activations(self) -> Sequence[ProximalActivation]:
        return self.objective.network.operators().activations
