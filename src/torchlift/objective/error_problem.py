"""Error coordinates: lifted variables as deviations e_j = z_j − σ(v_j) from what the layers before them give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchlift.core.tensors import Factor, Point, copy_into
from torchlift.objective.engine import States
from torchlift.objective.objective import Objective
from torchlift.objective.problem import Split, TrainingProblem, stacked
from torchlift.operators import Context
from torchlift.prox import ProximalActivation
from torchlift.prox.base import is_trained, tensors_of, with_tensors

#: Step of the proximal map that takes z back into the domain of Ψ: so short that it moves nothing inside.
TINY = 1e-12


class ErrorProblem(TrainingProblem):
    """min over θ and e of the objective at z_j = σ(v_j) + e_j, v = W u + b, u = M⁻¹V z.

    The value at corresponding points is that of the same objective in z, and so are its
    minimisers. What changes is the way of a gradient: z_j moves with all layers before
    it. With h_j the derivative of the objective by z_j through later layers and the
    loss, and D_j = S_j + g_j split into the part that is smooth in z and the one with a
    proximal map,

        ∇e_j = ∇_z S_j + h_j
        ∇v_j = ∇_v S_j + σ'(v_j) (∇e_j + s_j),   s_j ∈ ∂g_j(z_j),

    and ∇v_j goes on to W_j, b_j and, by Wᵀ, to h of the layers before. At e = 0, where
    ∇_z S_j + s_j = 0, these are the gradients of back-propagation: the loss reaches all
    layers in one evaluation, while z as coordinates carry it one layer per step. The
    price is that layers wait for each other, and that σ is differentiated.

    g_j(σ(v_j) + e_j) has a proximal map in e_j for fixed v_j, that of g_j shifted by
    σ(v_j). So the problem is split, at the point where the gradient was taken last, into
    g(e) = Σ_j g_j(σ(v̄_j) + e_j) with v̄ of that point, and f = F − g: `gradient`
    is that of f there. Where layers before it have moved σ(v_j) + e_j out of the domain of
    Ψ_j, z_j is the nearest point of it.

    Points hold e in place of z; `point` and `states` translate.

    Arguments:
        objective: with `coordinates="errors"`.
        y, x, split, context: as of a `TrainingProblem`.

    Kin: error-based predictive coding (Goemaere et al., 2025), where D is μ/2 ‖e‖² as in `MACQP`.
    """

    def __init__(
        self, objective: Objective, y: Tensor, x: Tensor, *, split: Split = "whole", context: Context = None
    ) -> None:
        super().__init__(objective, y, x, split=split, context=context)
        self.coordinates.reference.clear()  # z moves with learned thresholds by itself
        self._errors = self._states.clone()
        self._at: list[tuple[ProximalActivation, Tensor]] = []
        """σ_j and σ_j(v̄_j) of the point where the gradient was taken last."""

    def point(self, parameters: Sequence[Tensor], z: States) -> Point:
        self._parameters.load(tuple(parameters))
        activated = self.objective.activations(self.y, z, self.context)
        errors = z.clone()
        for error, layer in zip(errors, activated, strict=True):
            error.sub_(layer.to(error.dtype))
        return super().point(parameters, errors)

    @torch.no_grad()
    def smooth_value(self, point: Point) -> float:
        return self.value(point) - self.nonsmooth_value(point)

    @torch.no_grad()
    def nonsmooth_value(self, point: Point) -> float:
        self._load(point)
        total = 0.0
        for row, (activation, consistent) in enumerate(self._frozen()):
            z = self._inside(row, activation, consistent + self._errors[row].to(consistent.dtype))
            total += float(self._nonsmooth(row, activation, z).sum())
        return total / len(self.y) + float(self.objective._parameter_value(self.y, smooth=False))

    def gradient(self, point: Point, blocks: Sequence[str] | None = None) -> Point:
        self._load(point)
        chosen = self.blocks if blocks is None else tuple(blocks)
        trainable = dict(self.objective.engine.trainable()) if "parameters" in chosen else {}
        with torch.enable_grad():
            errors = [error.detach().to(self.y.dtype).requires_grad_() for error in self._errors]
            trace = _Trace(self, errors)
            leaves = [*errors, *trainable.values()]
            grads = torch.autograd.grad(trace.surrogate, leaves, allow_unused=True)
        with torch.no_grad():
            self._at = trace.consistent
            of_errors = self._states.gradient_like(self.y.dtype)
            for slot, grad, s in zip(of_errors, grads, trace.subgradients, strict=False):
                assert grad is not None  # every layer has a term of its own
                slot.copy_(grad if s is None else grad - s)
        pairs = zip(trainable.items(), grads[len(errors) :], strict=True)
        parameters = {name: torch.zeros_like(p) if grad is None else grad for (name, p), grad in pairs}
        self.objective.add_parameter_gradients(parameters)
        return self._point_of(chosen, parameters, of_errors)

    def bound(self, point: Point, block: str) -> float | None:
        return None

    def minimise(
        self, point: Point, block: str, tolerance: float, anchor: Point | None = None, strength: float = 0.0
    ) -> Point | None:
        return None

    # -- details ------------------------------------------------------------------------------------------------------

    def _prox_states(self, tensors: tuple[Tensor, ...], rows: tuple[int, ...], step: Factor) -> list[Tensor]:
        """p − σ(v̄) with p the proximal point of σ(v̄) + e."""
        layers = list(tensors) if self.split != "whole" else [layer for buffer in tensors for layer in buffer]
        frozen = [self._frozen()[row][1].to(layer.dtype) for row, layer in zip(rows, layers, strict=True)]
        shifts = frozen if self.split != "whole" else stacked(frozen, [len(buffer) for buffer in tensors])
        moved = super()._prox_states(tuple(t + s for t, s in zip(tensors, shifts, strict=True)), rows, step)
        return [tensor - shift for tensor, shift in zip(moved, shifts, strict=True)]

    def _load(self, point: Point) -> None:
        """The parameters into the network, e and the z that belong to them into states."""
        known = self._parameters.holds(point["parameters"]) if "parameters" in point else False
        new = self._load_blocks(point, self._errors)
        if new or not known:
            with torch.no_grad():
                copy_into(self._forward(list(self._errors)), list(self._states))

    def _forward(self, errors: Sequence[Tensor]) -> list[Tensor]:
        """z of e."""
        form, u, z = self.objective.network.operators(), [self.y], []
        for j, activation in enumerate(form.activations):
            v = form.pre_activation(j, u, self.context)
            z.append(self._inside(j, activation, activation(v) + errors[j].to(v.dtype)))
            u.append(form.couple(j, u, z, self.context))
        return z

    def _inside(self, row: int, activation: ProximalActivation, z: Tensor) -> Tensor:
        """The nearest point of the domain of Ψ."""
        lifting, weight = self.objective.lifting, self.objective.engine.setting.weights[row]
        if lifting.smooth_in_z:
            return z
        inside = self._nonsmooth(row, activation, z.detach()).isfinite()
        if bool(inside.all()):
            return z
        if activation.dim is not None:
            inside = inside.unsqueeze(activation.dim)
        return torch.where(inside, z, lifting.prox_z(activation, z.detach(), TINY, weight))

    def _nonsmooth(self, row: int, activation: ProximalActivation, z: Tensor) -> Tensor:
        return self.objective.lifting.nonsmooth_value(activation, z, self.objective.engine.setting.weights[row])

    def _frozen(self) -> list[tuple[ProximalActivation, Tensor]]:
        if not self._at:
            with torch.no_grad():
                consistent = self.objective.activations(self.y, self._states, self.context)
            activations = self.objective.network.operators().activations
            self._at = [_detached(*pair) for pair in zip(activations, consistent, strict=True)]
        return self._at


class _Trace:
    """One pass through the network, and a function whose gradient is that of the objective.

    Arguments:
        problem: with a point loaded.
        errors: e, leaves of the graph.
    """

    def __init__(self, problem: ErrorProblem, errors: Sequence[Tensor]) -> None:
        objective, y, context = problem.objective, problem.y, problem.context
        form, scale = objective.network.operators(), 1.0 / len(y)
        u, z = [y], []
        self.consistent: list[tuple[ProximalActivation, Tensor]] = []
        self.subgradients: list[Tensor | None] = []
        self.surrogate = y.new_zeros(())
        for j, activation in enumerate(form.activations):
            v = form.pre_activation(j, u, context)
            activated = activation(v)
            z.append(problem._inside(j, activation, activated + errors[j]))
            u.append(form.couple(j, u, z, context))
            self.consistent.append(_detached(activation, activated))
            self._add(problem, j, activation, z[j], v, errors[j], scale)
        output = form.output(u, context)
        cotangent = scale * objective.loss.grad(output.detach(), problem.x)
        self.surrogate = self.surrogate + (output * cotangent).sum()

    def _add(
        self, problem: ErrorProblem, row: int, activation: Any, z: Tensor, v: Tensor, error: Tensor, scale: float
    ) -> None:
        objective, weight = problem.objective, problem.objective.engine.setting.weights[row]
        lifting, at, pre = objective.lifting, z.detach(), v.detach()
        grad_z, grad_v = lifting.gradients(activation, at, pre.clone(), scale * weight)
        regulariser = objective.state_regularisers.get(row + 1)
        extra = 0.0 if regulariser is None else scale * regulariser.grad(at)
        s = None if lifting.smooth_in_z else self._subgradient(problem, row, activation, at, error.detach(), grad_z)
        cotangent = grad_z + extra if s is None else grad_z + extra + s
        self.subgradients.append(s)
        self.surrogate = self.surrogate + (z * cotangent.detach()).sum() + (v * grad_v.detach()).sum()
        if is_trained(activation):
            # with z = σ(v), D stays at its minimum when σ changes
            off = activation.reduce(error.detach().abs()) > 0
            self.surrogate = self.surrogate + scale * lifting.value(activation, at, pre, weight)[off].sum()

    def _subgradient(
        self, problem: ErrorProblem, row: int, activation: Any, z: Tensor, error: Tensor, grad_z: Tensor
    ) -> Tensor:
        """s with ∇_z S + s = 0 where e = 0, since σ(v) minimises D there; elsewhere a gradient of g."""
        leaf = z.clone().requires_grad_()
        g = problem._nonsmooth(row, activation, leaf).sum() / len(z)
        s = torch.zeros_like(z)
        if g.requires_grad:
            (slope,) = torch.autograd.grad(g, leaf, allow_unused=True)
            s = s if slope is None else torch.nan_to_num(slope, nan=0.0, posinf=0.0, neginf=0.0)
        return torch.where(error == 0, -grad_z, s)


def _detached(activation: ProximalActivation, value: Tensor) -> tuple[ProximalActivation, Tensor]:
    """Copies that keep their numbers, whatever becomes of learned thresholds."""
    tensors = {name: tensor.detach().clone() for name, tensor in tensors_of(activation).items()}
    return with_tensors(activation, tensors) if tensors else activation, value.detach()


def problem_class(objective: Objective) -> type[TrainingProblem]:
    """The problem of an objective's coordinates."""
    return ErrorProblem if objective.coordinates == "errors" else TrainingProblem
