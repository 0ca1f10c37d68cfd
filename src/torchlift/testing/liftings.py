"""What every lifting promises, and `check_lifting`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchlift.core.checks import check_instance, check_size
from torchlift.core.errors import invalid_value
from torchlift.liftings import Lifting
from torchlift.prox import ACTIVATIONS, ProximalActivation
from torchlift.testing.activations import squared, values
from torchlift.testing.compare import at_most, close, finite, is_prox, refuses, require
from torchlift.testing.report import Check, NotApplicable, Report, report

WEIGHTS = (1.0, 0.3, 7.0)
#: Steps of prox_z.
STEPS = (0.05, 1.0, 4.0)


def check_lifting(
    lifting: Lifting, activations: Sequence[ProximalActivation] | None = None, *, examples: int = 6, seed: int = 0
) -> Report:
    """Whether a lifting of one's own has the gradients, prox and bounds it states, and keeps what torchlift relies on.

    Arguments:
        lifting: an instance of a subclass of `Lifting`.
        activations: to try it with; by default every built-in one that it does not refuse.
        examples: how many tensors to try with each.
        seed: of the tensors.

    Example:
        >>> import torchlift as tl
        >>> tl.check_lifting(tl.liftings.Bregman(), [tl.ReLU(), tl.Softmax()]).ok
        True
    """
    hint = "Derive it from torchlift.liftings.Lifting, and pass an instance."
    check_instance("check_lifting", lifting, Lifting, "a lifting", hint)
    check_size("check_lifting examples", examples)
    if activations is None:
        everyone = [example for kind in ACTIVATIONS.values() for example in kind.examples()]
        activations = [activation for activation in everyone if accepts(lifting, activation)]
    if not activations:
        invalid_value("check_lifting activations", "at least one that the lifting accepts", "none")
    seeds = range(seed, seed + examples)

    def cases() -> list[tuple[Any, ...]]:  # drawn anew for each check, so that none spoils the others
        pairs = [(activation, s) for activation in activations for s in seeds]
        return [(lifting, activation, values(3, s), s, WEIGHTS[s % len(WEIGHTS)]) for activation, s in pairs]

    once = [(lifting, activation) for activation in activations]
    if lifting.hard:
        return report(str(lifting), [(check, once) for check in HARD])
    return report(str(lifting), [*((check, cases()) for check in ON_VALUES), *((check, once) for check in ON_ITSELF)])


def accepts(lifting: Lifting, activation: ProximalActivation) -> bool:
    """Whether a lifting is defined for an activation."""
    return not refuses(lifting.check, activation)


def normal(like: Tensor, seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(like.shape, dtype=like.dtype, generator=torch.Generator().manual_seed(seed))


def inside(activation: ProximalActivation, like: Tensor, seed: int) -> Tensor:
    """A random point of the domain of Ψ."""
    return activation(normal(like, seed, 3.0))


def rounding(activation: ProximalActivation, z: Tensor, v: Tensor, weight: float = 1.0) -> Tensor:
    """What double precision may lose in the largest terms that a penalty adds up."""
    return 1e-13 * weight * (1 + squared(activation, v) + squared(activation, z) + activation.psi(z).abs())


def value_is_its_parts(lifting: Lifting, activation: ProximalActivation, v: Tensor, seed: int, weight: float) -> None:
    """value = smooth_value + nonsmooth_value, one term per entry or per group, finite on the domain."""
    z = inside(activation, v, seed)
    value = lifting.value(activation, z, v, weight)
    shape, expected = tuple(value.shape), tuple(activation.reduce(v).shape)
    require(shape == expected, f"value has shape {shape}, not {expected}", activation=activation)
    finite("value", value, z=z, v=v, weight=weight, activation=activation)
    parts = lifting.smooth_value(activation, z, v, weight) + lifting.nonsmooth_value(activation, z, weight)
    bound = 10 * rounding(activation, z, v, max(weight, 1.0))
    what = "|value − smooth_value − nonsmooth_value|"
    at_most(what, (value - parts).abs(), bound, z=z, v=v, weight=weight, activation=activation)


def gradients_by_autograd(
    lifting: Lifting, activation: ProximalActivation, v: Tensor, seed: int, weight: float
) -> None:
    """grad_z and grad_v are the gradients of smooth_value, by autograd."""
    z, v = inside(activation, v, seed).requires_grad_(), v.clone().requires_grad_()
    total = lifting.smooth_value(activation, z, v, weight).sum()
    expected_z, expected_v = torch.autograd.grad(total, (z, v))
    z, v = z.detach(), v.detach()
    given = {"z": z, "v": v, "weight": weight, "activation": activation}
    close("grad_z", lifting.grad_z(activation, z, v, weight), expected_z, 1e-10, 1e-10 * weight, **given)
    close("grad_v", lifting.grad_v(activation, z, v, weight), expected_v, 1e-10, 1e-10 * weight, **given)


def gradients_by_differences(
    lifting: Lifting, activation: ProximalActivation, v: Tensor, seed: int, weight: float
) -> None:
    """grad_v is the slope of value in v, grad_z that of smooth_value in z, by finite differences."""
    z, direction, h = inside(activation, v, seed), normal(v, seed + 1).clamp(-2, 2), 1e-5
    if math.isinf(lifting.curvature_v(activation)):
        v = normal(v, seed + 2, 2.0)  # a generic point: such a gradient may jump at kinks of σ
    # A gradient with Lipschitz constant 1 bounds the error of the difference.
    bound = weight * (1e-6 * (1 + squared(activation, v) + squared(activation, z)) + h * squared(activation, direction))
    ahead = lifting.value(activation, z, v + h * direction, weight)
    slope = (ahead - lifting.value(activation, z, v - h * direction, weight)) / (2 * h)
    expected = activation.reduce(lifting.grad_v(activation, z, v, weight) * direction)
    given = {"z": z, "v": v, "weight": weight, "activation": activation}
    at_most("|difference quotient of value in v − ⟨grad_v, direction⟩|", (slope - expected).abs(), bound, **given)
    ahead = lifting.smooth_value(activation, z + h * direction, v, weight)
    slope = (ahead - lifting.smooth_value(activation, z - h * direction, v, weight)) / (2 * h)
    expected = activation.reduce(lifting.grad_z(activation, z, v, weight) * direction)
    what = "|difference quotient of smooth_value in z − ⟨grad_z, direction⟩|"
    at_most(what, (slope - expected).abs(), bound, **given)


def prox_minimises(lifting: Lifting, activation: ProximalActivation, v: Tensor, seed: int, weight: float) -> None:
    """prox_z(u, step) is the minimiser of ½‖p − u‖² + step·nonsmooth_value(p)."""
    step = STEPS[seed % len(STEPS)]
    p = lifting.prox_z(activation, v, step, weight)
    near, centre = normal(v, seed), inside(activation, v, seed)
    rivals = [p + 1e-3 * near, p + near, centre, p + 0.1 * (centre - p), p + 0.01 * (centre - p)]

    def value(c: Tensor) -> Tensor:
        return lifting.nonsmooth_value(activation, c, weight)

    given = {"weight": weight, "activation": activation}
    is_prox("nonsmooth_value", value, partial(squared, activation), p, v, step, rivals, weight, **given)


def curvature_bounds(lifting: Lifting, activation: ProximalActivation, v: Tensor, seed: int, weight: float) -> None:
    """grad_z and grad_v for weight 1 are Lipschitz with curvature_z and curvature_v."""
    z = inside(activation, v, seed)
    for scale in (1e-3, 1.0, 10.0):
        shift = normal(v, seed + 1, scale)
        length = squared(activation, shift).sqrt()
        change = lifting.grad_v(activation, z, v + shift, 1.0) - lifting.grad_v(activation, z, v, 1.0)
        bound = lifting.curvature_v(activation) * length + 1e-12
        at_most("change of grad_v", squared(activation, change).sqrt(), bound, v=v, shift=shift, activation=activation)
        change = lifting.grad_z(activation, z + shift, v, 1.0) - lifting.grad_z(activation, z, v, 1.0)
        bound = lifting.curvature_z(activation) * length + 1e-12
        at_most("change of grad_z", squared(activation, change).sqrt(), bound, z=z, shift=shift, activation=activation)


def gradients_in_one_call(lifting: Lifting, activation: ProximalActivation) -> None:
    """gradients gives grad_z and grad_v, bit for bit, with memory of their own, and leaves z alone."""
    weight, v = 2.5, normal(torch.empty(2, 4, 3, dtype=torch.float64), 1, 2.0)
    z = inside(activation, v, 2)
    before = z.clone()
    expected = lifting.grad_z(activation, z, v, weight), lifting.grad_v(activation, z, v, weight)
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            buffer = v.clone()
            grad_z, grad_v = lifting.gradients(activation, z, buffer, weight)
        close("grad_z of gradients", grad_z, expected[0], 0.0, activation=activation)
        close("grad_v of gradients", grad_v, expected[1], 0.0, activation=activation)
        close("z after gradients", z, before, 0.0, activation=activation)
        require(grad_v.data_ptr() != buffer.data_ptr(), "grad_v overwrites v; only grad_z may", activation=activation)
        storages = {x.untyped_storage().data_ptr() for x in (grad_z, grad_v, z)}
        require(len(storages) == 3, "grad_z, grad_v and z share memory", activation=activation)
        watched = grad_z.requires_grad or grad_v.requires_grad
        require(not watched, "a gradient is watched by autograd", activation=activation)


def all_results(
    lifting: Lifting, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor
) -> dict[str, Tensor]:
    """What every method of a lifting gives."""
    grad_z, grad_v = lifting.gradients(activation, z, v.clone(), weight)
    return {
        "value": lifting.value(activation, z, v, weight),
        "grad_z": lifting.grad_z(activation, z, v, weight),
        "grad_v": lifting.grad_v(activation, z, v, weight),
        "prox_z": lifting.prox_z(activation, z, 0.7, weight),
        "gradients, z": grad_z,
        "gradients, v": grad_v,
    }


def tensor_weights(lifting: Lifting, activation: ProximalActivation) -> None:
    """A tensor of weights, one per layer of a stack, equals each number."""
    v = normal(torch.empty(2, 4, 3, dtype=torch.float64), 3, 2.0)
    z = inside(activation, v, 4)
    axis = 1 if activation.dim == 0 else 0  # a group has one weight, so its axis cannot be the stack
    numbers = torch.linspace(0.5, 4.0, v.shape[axis], dtype=torch.float64)
    several = all_results(lifting, activation, z, v, numbers.view(-1, *(1,) * (2 - axis)))
    for index, number in enumerate(numbers):
        alone = all_results(lifting, activation, z, v, float(number))
        zero_dimensional = all_results(lifting, activation, z, v, number)
        for method, expected in alone.items():
            given = {"weight": float(number), "activation": activation}
            row = 0 if method == "value" else axis  # where the stack is once the axis of groups is gone
            close(f"{method} with a 0-d weight", zero_dimensional[method], expected, 1e-13, 1e-13, **given)
            mine = several[method].select(row, index)
            close(f"{method} with one weight per layer", mine, expected.select(row, index), 1e-13, 1e-13, **given)


def infinite_off_the_domain(lifting: Lifting, activation: ProximalActivation) -> None:
    """value is +∞ wherever nonsmooth_value is, even where other terms overflow."""
    v = normal(torch.empty(4, 3), 5, 3.0)
    bad = torch.full_like(v, -50.0)
    outside = lifting.nonsmooth_value(activation, bad, 2.0).isinf()
    for z in (bad, bad * 1e36):
        for x in (v, v * 1e37, -v * 1e37):
            value = lifting.value(activation, z, x, 2.0)[outside]
            wrong = value[value != math.inf]
            require(not wrong.numel(), f"value is {wrong[:1].tolist()} off the domain", z=-50.0, activation=activation)


def smooth_where_it_says_so(lifting: Lifting, activation: ProximalActivation) -> None:
    """With smooth_in_z there is no nonsmooth part, and prox_z is the identity."""
    if not lifting.smooth_in_z:
        raise NotApplicable("smooth_in_z is False")
    z = normal(torch.empty(4, 3, dtype=torch.float64), 6, 3.0)
    at_most("|nonsmooth_value|", lifting.nonsmooth_value(activation, z, 2.0).abs(), 0.0, z=z, activation=activation)
    close("prox_z", lifting.prox_z(activation, z, 0.7, 2.0), z, 0.0, activation=activation)


def extreme_arguments(lifting: Lifting, activation: ProximalActivation) -> None:
    """From 1e-30 to 1e4 in single precision everything stays finite and single."""
    signs = torch.tensor([[1.0, -1.0, 0.5], [-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]])
    for size in (1e-30, 1.0, 88.0, 1e4):
        v = size * signs
        for z in (activation(v), activation(-v), activation(torch.zeros_like(v))):
            value = lifting.value(activation, z, v, 2.0)
            grad_z, grad_v = lifting.gradients(activation, z, v.clone(), 2.0)
            prox = lifting.prox_z(activation, v, 0.1, 2.0)
            for name, result in (("value", value), ("grad_z", grad_z), ("grad_v", grad_v), ("prox_z", prox)):
                require(result.dtype == torch.float32, f"{name} has dtype {result.dtype}", activation=activation)
                finite(name, result, z=z, v=v, activation=activation)


def weights_per_layer(lifting: Lifting, activation: ProximalActivation) -> None:
    """check accepts the activation; equal settings are equal, and hash alike."""
    lifting.check(activation)
    twin = replace(lifting)
    depth = len(lifting.mu) if isinstance(lifting.mu, tuple) else 3
    require(len(lifting.weights(depth)) == depth, f"weights({depth}) has {len(lifting.weights(depth))} entries")
    require(twin == lifting and hash(twin) == hash(lifting), f"{twin} and {lifting} differ; is it a frozen dataclass?")


def hard_constraint(lifting: Lifting, activation: ProximalActivation) -> None:
    """A hard lifting is 0 where z = σ(v) up to rounding, +∞ elsewhere, NaN included."""
    v = normal(torch.empty(4, 3, dtype=torch.float64), 6, 3.0)
    p = activation(v)
    zero = torch.zeros_like(activation.reduce(v))
    for z in (p, p + 1e-15, p * (1 + 1e-15)):
        close("value at z = σ(v)", lifting.value(activation, z, v, 1.0), zero, 0.0, activation=activation)
    for z in (p + 1e-9, p - 1e-9, torch.full_like(p, math.nan)):
        value = lifting.value(activation, z, v, 1.0)
        close("value off z = σ(v)", value, zero + math.inf, 0.0, v=v, z=z, activation=activation)
    for curvature in (lifting.curvature_z(activation), lifting.curvature_v(activation)):
        require(curvature == math.inf, f"a hard constraint has curvature {curvature}, not ∞")


#: Called with a lifting, an activation, a pre-activation, a seed and a weight.
ON_VALUES: tuple[Check, ...] = (
    value_is_its_parts, gradients_by_autograd, gradients_by_differences, prox_minimises, curvature_bounds,
)  # fmt: skip
#: Called with a lifting and an activation.
ON_ITSELF: tuple[Check, ...] = (
    gradients_in_one_call, tensor_weights, infinite_off_the_domain, smooth_where_it_says_so, extreme_arguments,
    weights_per_layer,
)  # fmt: skip
#: Called with a lifting whose constraint is hard, and an activation.
HARD: tuple[Check, ...] = (hard_constraint, weights_per_layer)
