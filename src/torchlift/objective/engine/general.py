"""The general engine: any block operators, any coupling, through vector–Jacobian products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchlift.objective.engine.base import Engine, Evaluation, Gradients, Layout, Setting, States, Want
from torchlift.operators import Context
from torchlift.prox.base import is_trained

K = TypeVar("K")


class GeneralEngine(Engine):
    """Evaluates one layer after the other.

    With cotangents c_j = ∇_v D_j and ∇L, one vector–Jacobian product of the
    linear maps (z, θ) ↦ (v_1, …, v_J, N) gives Wᵀ∇_v D + Kᵀ∇L carried back
    through u = M⁻¹V z, and the gradients of all parameters. The activations
    themselves are never differentiated, except in their own parameters.
    """

    name = "general"

    def __init__(self, network: Any, setting: Setting) -> None:
        super().__init__(network, setting)
        form = network.operators()
        self.layout = Layout(form.W.row_shapes)

    @torch.no_grad()
    def evaluate(self, y: Tensor, z: States, context: Context = None) -> Evaluation:
        form = self.network.operators()
        layers = [layer.to(y.dtype) for layer in z]
        u, residuals = self._states(form, y, layers, z.u, context)
        v = [form.pre_activation(j, u, context) for j in range(form.depth)]
        output = form.output(u, context)
        return Evaluation(self.rows(form, layers, v), output, tuple(residuals))

    def gradients(
        self,
        y: Tensor,
        x: Tensor,
        z: States,
        context: Context = None,
        out: Gradients | None = None,
        want: Want = "both",
    ) -> Gradients:
        lifting, scale = self.setting.lifting, 1.0 / len(y)
        parameters = {} if want == "states" else self.trainable()
        with torch.enable_grad():
            form = self.network.operators()
            layers = [layer.detach().to(y.dtype).requires_grad_() for layer in z]
            free = [] if z.u is None else [layer.detach().to(y.dtype).requires_grad_() for layer in z.u]
            u, residuals = self._states(form, y, layers, free or None, context)
            v = [form.pre_activation(j, u, context) for j in range(form.depth)]
            output = form.output(u, context)
        result = Gradients(z.gradient_like(y.dtype), {})
        terms = [(output, scale * self.setting.loss.grad(output.detach(), x))]
        direct = []
        for part in self.rows(form, [layer.detach() for layer in layers], [value.detach() for value in v]):
            # `gradients` may overwrite v, and detached v shares memory with the graph: give it a copy
            grad_z, grad_v = lifting.gradients(part.activation, part.z, part.v.clone(), scale * part.weight)
            direct.append(grad_z)
            terms.append((v[part.start], grad_v))
        rho = self.setting.coupling
        terms += [(residual, scale * rho * residual.detach()) for residual in residuals if rho is not None]
        if parameters:
            terms += self._activation_terms(form, layers, v, scale)
        terms = [(value, cotangent) for value, cotangent in terms if value.requires_grad]
        leaves = [*layers, *free, *parameters.values()]
        grads = vjp(terms, leaves)
        for slot, grad, grad_z in zip(result.z, grads, direct, strict=False):
            torch.add(grad_z, grad, out=slot)
        if z.u is not None:
            result.z.u = z.u.empty_like(y.dtype)
            for slot, grad in zip(result.z.u, grads[len(layers) :], strict=False):
                slot.copy_(grad)
        result.parameters = dict(zip(parameters, grads[len(layers) + len(free) :], strict=True))
        return result

    def _states(
        self, form: Any, y: Tensor, z: list[Tensor], u: States | list[Tensor] | None, context: Context
    ) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        """u, and the residuals M u − V z where u is free."""
        if u is None:
            return form.eliminate(y, z, context), []
        full = (y, *(layer.to(y.dtype) for layer in u))
        pairs = ((form.M.row(j, full, context), form.V.row(j, z, context)) for j in range(form.depth))
        return full, [left - right for left, right in pairs]

    def _activation_terms(
        self, form: Any, z: list[Tensor], v: list[Tensor], scale: float
    ) -> list[tuple[Tensor, Tensor]]:
        """D at fixed z and v, whose gradient is that of learned thresholds and bounds."""
        terms = []
        for activation, weight, z_j, v_j in zip(form.activations, self.setting.weights, z, v, strict=True):
            if is_trained(activation):
                with torch.enable_grad():
                    penalty = self.setting.lifting.value(activation, z_j.detach(), v_j.detach(), weight)
                    total = scale * penalty.sum()
                terms.append((total, torch.ones_like(total)))
        return terms


def vjp(terms: list[tuple[Tensor, Tensor]], leaves: list[Tensor]) -> list[Tensor]:
    """Σ Jᵀ cotangent for every leaf; zero where nothing depends on it."""
    if not terms or not leaves:
        return [torch.zeros_like(leaf) for leaf in leaves]
    values, cotangents = zip(*terms, strict=True)
    grads = torch.autograd.grad(values, leaves, cotangents, allow_unused=True)
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, grads, strict=True)]


def add_vjp(terms: Sequence[tuple[Tensor, Tensor]], leaves: Mapping[str, Tensor], gradients: dict[str, Tensor]) -> None:
    """Add Σ Jᵀ cotangent to the gradient of every leaf, by its name; nothing where no value depends on it."""
    if not terms or not leaves:
        return
    values, cotangents = zip(*terms, strict=True)
    grads = torch.autograd.grad(values, list(leaves.values()), cotangents, allow_unused=True, retain_graph=True)
    for name, grad in zip(leaves, grads, strict=True):
        if grad is not None:
            add(gradients, name, grad)


def add(gradients: dict[K, Tensor], key: K, gradient: Tensor) -> None:
    """To the one that is there, if there is one."""
    gradients[key] = gradients[key] + gradient if key in gradients else gradient
