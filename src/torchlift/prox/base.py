"""The contract of proximal activations: σ = prox_Ψ, with Ψ, its proximal map, and the conjugate of Φ = ½‖·‖² + Ψ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import wraps
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_unary

from torchlift.core.checks import check_positive
from torchlift.core.errors import invalid_type, invalid_value


class ProximalActivation(ABC):
    """An activation σ(v) = argmin_u ½‖u − v‖² + Ψ(u) with Ψ convex, proper, lower semicontinuous.

    Subclasses are frozen dataclasses without state. They act on tensors of any
    shape, dtype and device. An *elementwise* activation treats every entry
    alone; a *groupwise* one (softmax, projections onto balls, …) treats the
    entries along the axis `dim` together.
    """

    #: The axis whose entries belong together, or None for elementwise activations.
    dim: int | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__call__" in vars(cls):
            type.__setattr__(cls, "__call__", _overridable(vars(cls)["__call__"]))

    @abstractmethod
    def __call__(self, v: Tensor) -> Tensor:
        """σ(v), differentiable by autograd (almost everywhere)."""

    def apply_(self, v: Tensor) -> Tensor:
        """σ(v) written over v, for evaluation without autograd; overridden where torch works in place."""
        return v.copy_(self(v))

    @abstractmethod
    def psi(self, u: Tensor) -> Tensor:
        """Ψ(u), +∞ off its domain (NaN included): one value per entry, or per group (`dim` removed)."""

    @abstractmethod
    def prox(self, u: Tensor, step: float | Tensor = 1.0) -> Tensor:
        """argmin_p ½‖p − u‖² + step·Ψ(p) for step > 0; `prox(u, 1.0)` equals σ(u).

        A tensor `step` broadcasts against `u`; for a groupwise activation it
        has size 1 along `dim`. Only Python numbers are checked for being > 0,
        since reading a tensor would make the device wait.
        """

    def phi(self, u: Tensor) -> Tensor:
        """Φ(u) = ½‖u‖² + Ψ(u), per entry or per group."""
        return 0.5 * self.reduce(u * u) + self.psi(u)

    def conjugate(self, v: Tensor) -> Tensor:
        """Φ*(v) = ⟨v, σ(v)⟩ − Φ(σ(v)), per entry or per group; ∇Φ* = σ.

        The supremum in the definition of Φ* is attained at p = σ(v), so no
        inner optimisation is needed. Subclasses override this only with a
        closed form that rounds better.
        """
        p = self(v)
        # One product p·(v − ½p) instead of ⟨v, p⟩ − ½‖p‖²: huge v give ∞ rather than ∞ − ∞.
        return self.reduce(p * (v - 0.5 * p)) - self.psi(p)

    def conjugate_slopes(self, v: Tensor) -> dict[str, Tensor]:
        """Derivatives of Σ Φ*(v) in the tensors of this activation that need gradients, by name of the field."""
        learned = {
            name: value for name, value in vars(self).items() if isinstance(value, Tensor) and value.requires_grad
        }
        if not learned:
            return {}
        with torch.enable_grad():
            leaves = {name: value.detach().requires_grad_() for name, value in learned.items()}
            total = replace(cast("Any", self), **leaves).conjugate(v).sum()
        return dict(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True))

    def carried(self, z: Tensor, to: ProximalActivation) -> Tensor:
        """z', affine in z, with Ψ'(z') = Ψ(z), where Ψ' belongs to `to`: the same kind with other learned numbers.

        Solvers hold z that way, so that a step of a threshold does not leave the domain of Ψ; z itself by default.
        """
        return z

    def reduce(self, terms: Tensor) -> Tensor:
        """Sum per-entry terms over a group; the identity for elementwise activations."""
        return terms if self.dim is None else terms.sum(self.dim)

    def to_module(self) -> nn.Module:
        """An ordinary `nn.Module` with the same forward pass (torch's own where one exists)."""
        return ActivationModule(self)

    @classmethod
    def example(cls) -> ProximalActivation:
        """An instance for contract tests and tables; overridden where arguments are required."""
        return cls()

    @classmethod
    def examples(cls) -> tuple[ProximalActivation, ...]:
        """All instances that the contract tests visit; overridden where arguments change the formulas."""
        return (cls.example(),)


def _overridable(call: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """σ(v) as a function that a `TorchFunctionMode` sees, like torch's own: `is_activation` marks it there."""

    @wraps(call)
    def overridable(self: ProximalActivation, v: Tensor) -> Tensor:
        if has_torch_function_unary(v):
            return handle_torch_function(overridable, (v,), self, v)
        return call(self, v)

    vars(overridable)["is_activation"] = True
    return overridable


class Projection:
    """What projections onto convex sets share: Ψ is 0 there and +∞ elsewhere, so that steps change nothing."""

    def prox(self: Any, u: Tensor, step: float | Tensor = 1.0) -> Tensor:
        check_step(step, u)
        return self(u)


class GroupwiseActivation(ProximalActivation):
    """An activation that treats the entries along one axis together."""

    dim: int = -1  # pyright: ignore[reportIncompatibleVariableOverride]  (narrowed: never None here)


class ActivationModule(nn.Module):
    """An activation as an `nn.Module`, for use inside `nn.Sequential`; parameters it holds are registered."""

    def __init__(self, activation: ProximalActivation) -> None:
        super().__init__()
        self._template = activation
        for name, value in learned(activation).items():
            self.register_parameter(name, value)

    @property
    def activation(self) -> ProximalActivation:
        """The activation with the current parameters."""
        values = {name: value for name, value in self._parameters.items() if value is not None}
        return with_tensors(self._template, values) if values else self._template

    def forward(self, input: Tensor) -> Tensor:
        return self.activation(input)

    def extra_repr(self) -> str:
        return describe(self.activation)


def learned(activation: ProximalActivation) -> dict[str, nn.Parameter]:
    """The fields of an activation that are parameters, by name."""
    return {name: value for name, value in vars(activation).items() if isinstance(value, nn.Parameter)}


def tensors_of(activation: ProximalActivation) -> dict[str, Tensor]:
    """The fields of an activation that are tensors, by name."""
    return {name: value for name, value in vars(activation).items() if isinstance(value, Tensor)}


def is_trained(activation: ProximalActivation) -> bool:
    """Whether a field of an activation takes a gradient."""
    return any(tensor.requires_grad for tensor in tensors_of(activation).values())


def in_domain(activation: ProximalActivation, u: Tensor) -> Tensor:
    """Where Ψ(u) is finite, in a shape that broadcasts against u: a group is inside as a whole, or not at all."""
    finite = activation.psi(u).isfinite()
    return finite if activation.dim is None else finite.unsqueeze(activation.dim)


def with_tensors(activation: ProximalActivation, values: Mapping[str, Tensor]) -> ProximalActivation:
    """The same activation with other tensors, past the checks of its constructor, which would read them."""
    twin = object.__new__(type(activation))
    for name, value in vars(activation).items():
        object.__setattr__(twin, name, values.get(name, value))
    return twin


def describe(activation: ProximalActivation) -> str:
    """An activation with its fields; tensors of more than one number by their shapes."""

    def text(value: object) -> str:
        if not isinstance(value, Tensor):
            return f"{value:g}" if isinstance(value, float) else repr(value)
        if value.numel() == 1 and value.device.type != "meta":
            return f"{value.detach().item():.4g}"
        return f"tensor{tuple(value.shape)}"

    shown = [f"{field.name}={text(getattr(activation, field.name))}" for field in fields(cast("Any", activation))]
    return f"{type(activation).__name__}({', '.join(item for item in shown if item != 'validate=True')})"


def indicator(inside: Tensor, like: Tensor) -> Tensor:
    """0 where `inside` is true and +∞ elsewhere."""
    return torch.zeros_like(like).masked_fill(~inside, torch.inf)


def infinite_outside(value: Tensor, inside: Tensor) -> Tensor:
    """`value` where `inside` is true and +∞ elsewhere."""
    return value.masked_fill(~inside, torch.inf)


def at_least_single(v: Tensor) -> Tensor:
    """Half precision widened to float32, where iterations need it; other dtypes as they are."""
    return v.float() if v.dtype in (torch.float16, torch.bfloat16) else v


def check_step(step: float | Tensor, u: Tensor) -> float | Tensor:
    """The step of a prox at `u`: a finite number > 0, or a tensor, made alike but not read."""
    return step.to(u) if isinstance(step, Tensor) else check_positive("prox step", step)


def check_group_step(step: float | Tensor, u: Tensor, dim: int) -> float | Tensor:
    """As `check_step`, for a groupwise prox: one step per group, so size 1 along `dim`."""
    step = check_step(step, u)
    if isinstance(step, Tensor) and step.ndim > 0:
        sizes = (1,) * (u.ndim - step.ndim) + tuple(step.shape)
        if sizes[dim] != 1:
            hint = "A groupwise prox takes one step per group."
            invalid_value("prox step", f"a tensor of size 1 along dim {dim}", tuple(step.shape), hint)
    return step


def check_dim(where: str, dim: object) -> None:
    """An axis: any whole number, negative ones counting from the end."""
    if isinstance(dim, bool) or not isinstance(dim, int):
        invalid_type(where, "a whole number", dim, "Try dim=-1 for the last axis or dim=1 for channels.")


def group_norm(v: Tensor, dim: int) -> Tensor:
    """‖v‖ along `dim`, which is kept with size 1.

    Each group is first divided by its largest entry, so that squares neither
    overflow nor vanish. The divisor cancels and hence counts as a constant for
    autograd. The gradient at 0 is 0, a valid subgradient.
    """
    tiny = torch.finfo(v.dtype).tiny
    scale = v.detach().abs().amax(dim, keepdim=True).clamp(min=tiny)
    return scale * torch.linalg.vector_norm(v / scale, dim=dim, keepdim=True)
