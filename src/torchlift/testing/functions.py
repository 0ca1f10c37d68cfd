"""What every convex function promises, and `check_function`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from torchlift.core.checks import Shape, check_instance, check_size
from torchlift.functions import Function, Prior
from torchlift.operators import LinearOperator, adjoint_error
from torchlift.testing.compare import at_most, close, finite, is_prox, refuses, require
from torchlift.testing.report import Check, NotApplicable, Report, report

B = 5
STEPS = (1e-3, 0.3, 1.0, 3.0, 100.0)
SCALES = (0.1, 1.0, 5.0)
WEIGHTS = (0.3, 1.0, 7.0)


def check_function(function: Prior, shape: Shape = (3, 4), *, examples: int = 15, seed: int = 0) -> Report:
    """Whether a function of one's own is convex, with the prox, gradient, curvature and conjugate it states.

    Arguments:
        function: an instance of a subclass of `Function`; or a `Prior`, whose functions and operators are all tried.
        shape: of one sample, such as (channels, height, width).
        examples: how many points to try.
        seed: of the points.

    Example:
        >>> import torchlift as tl
        >>> tl.check_function(tl.functions.GroupNorm()).ok
        True
        >>> tl.check_function(tl.priors.TotalVariation(), (1, 6, 6)).ok
        True
    """
    hint = "Derive it from torchlift.functions.Function, and pass an instance."
    check_instance("check_function", function, Prior, "a function", hint)
    check_size("check_function examples", examples)
    work: list[tuple[Check, Iterable[tuple[Any, ...]]]] = []
    for part in function.parts(shape):
        inner = shape if part.operator is None else part.operator.out_shape
        drawn = [(seed + k, SCALES[k % len(SCALES)]) for k in range(examples)]
        work += [(check, [(part.function, inner, *numbers) for numbers in drawn]) for check in ON_VALUES]
        work += [(check, [(part.function, inner)]) for check in ON_ITSELF]
        work += [] if part.operator is None else [(operator_and_bound, [(part.operator,)])]
    return report(str(function), work)


def normal(shape: Shape, seed: int, scale: float = 1.0) -> Tensor:
    """A batch of points."""
    return scale * torch.randn((B, *shape), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def inside(function: Function, x: Tensor) -> Tensor:
    """x, or a point of the domain near it where g(x) is infinite."""
    infinite = function.value(x).isinf()
    rows = infinite.view(-1, *(1,) * (x.ndim - 1))
    return torch.where(rows, function.prox(x, 0.1), x) if bool(infinite.any()) else x


def has_gradient(function: Function, shape: Shape) -> bool:
    """Whether `grad` is defined, as a subgradient at least."""
    return not refuses(lambda: function.grad(inside(function, normal(shape, 0))))


def has_prox(function: Function, shape: Shape) -> bool:
    return not refuses(function.prox, normal(shape, 0))


def gradient_by_autograd(function: Function, shape: Shape, seed: int, scale: float) -> None:
    """grad is the gradient of Σ value, by autograd."""
    if not has_gradient(function, shape):
        raise NotApplicable("it refuses `grad`")
    p = inside(function, normal(shape, seed, scale)).requires_grad_()
    (expected,) = torch.autograd.grad(function.value(p).sum(), p)
    close("grad", function.grad(p.detach()), expected, 1e-13, 1e-13, p=p.detach())


def gradient_by_differences(function: Function, shape: Shape, seed: int, scale: float) -> None:
    """grad is the slope of Σ value, by finite differences, where the function is smooth."""
    _need_smooth(function)
    p, direction, h = normal(shape, seed, scale), normal(shape, seed + 2), 1e-5
    slope = (function.value(p + h * direction) - function.value(p - h * direction)).sum() / (2 * h)
    error = (slope - (function.grad(p) * direction).sum()).abs()
    bound = 1e-6 + h * function.curvature() * direction.square().sum()
    at_most("|difference quotient − ⟨grad, direction⟩|", error, bound, p=p)


def convex(function: Function, shape: Shape, seed: int, scale: float) -> None:
    """value(q) ≥ value(p) + ⟨grad(p), q − p⟩, and value is convex along segments."""
    q = inside(function, normal(shape, seed + 2, scale))
    for p in (inside(function, normal(shape, seed, scale)), inside(function, torch.zeros_like(q))):
        size = 1e-12 * (1 + function.value(p).abs() + function.value(q).abs())
        if has_gradient(function, shape):
            support = function.value(p) + _inner(function.grad(p), q - p)
            at_most("value(p) + ⟨grad(p), q − p⟩ − value(q)", support - function.value(q), size, p=p, q=q)
        for share in (0.1, 0.5, 0.8):
            chord = share * function.value(p) + (1 - share) * function.value(q)
            middle = function.value(share * p + (1 - share) * q)
            at_most("value on a segment, less the chord,", middle - chord, size, p=p, q=q)


def curvature_bounds(function: Function, shape: Shape, seed: int, scale: float) -> None:
    """grad is Lipschitz with `curvature`."""
    _need_smooth(function)
    p = normal(shape, seed + 1, scale)
    for shift in (normal(shape, seed + 2, 1e-3), normal(shape, seed + 2, scale)):
        change = _norm(function.grad(p + shift) - function.grad(p))
        bound = function.curvature() * _norm(shift) * (1 + 1e-12) + 1e-12
        at_most("change of grad", change, bound, p=p, shift=shift)


def prox_minimises(function: Function, shape: Shape, seed: int, scale: float) -> None:
    """prox(x, step) is the minimiser of ½‖q − x‖² + step·value(q)."""
    _need_prox(function, shape)
    x, step = normal(shape, seed, scale), STEPS[seed % len(STEPS)]
    q = function.prox(x, step)
    feasible = inside(function, normal(shape, seed + 3, scale))
    rivals = [x, torch.zeros_like(x), feasible, q + 1e-3 * (feasible - q), q + 0.1 * (feasible - q)]
    rivals += [q + normal(shape, seed + 2, size) for size in (1e-4, 1e-2, 1.0)]
    for index in range(math.prod(shape)):  # along every axis, in which many functions separate
        axis = torch.zeros_like(x).flatten(1)
        axis[:, index] = 1e-2
        rivals += [q + axis.view_as(q), q - axis.view_as(q)]
    is_prox("value", function.value, lambda c: _inner(c, c), q, x, step, rivals)
    if function.smooth:
        expected = x - step * function.grad(q)
        close("prox, against x − step·grad(q),", q, expected, 1e-11, 1e-11 * (1 + step), x=x, step=step)


def prox_is_firmly_nonexpansive(function: Function, shape: Shape, seed: int, scale: float) -> None:
    """‖prox(x) − prox(y)‖² ≤ ⟨prox(x) − prox(y), x − y⟩."""
    _need_prox(function, shape)
    x, y, step = normal(shape, seed, scale), normal(shape, seed + 1, scale), STEPS[seed % len(STEPS)]
    change = function.prox(x, step) - function.prox(y, step)
    excess = _inner(change, change) - _inner(change, x - y)
    at_most("‖prox(x) − prox(y)‖² − ⟨prox(x) − prox(y), x − y⟩", excess, 1e-11 * (1 + scale**2), x=x, y=y, step=step)


def moreau_envelope(function: Function, shape: Shape, seed: int, scale: float) -> None:
    """The gradient of min_q ½‖q − x‖² + value(q) is x − prox(x)."""
    _need_prox(function, shape)
    x, direction, h = normal(shape, seed, scale), normal(shape, seed + 1), 1e-5

    def envelope(at: Tensor) -> Tensor:
        q = function.prox(at, 1.0)
        return 0.5 * _inner(q - at, q - at) + function.value(q)

    slope = (envelope(x + h * direction) - envelope(x - h * direction)) / (2 * h)
    error = (slope - _inner(x - function.prox(x, 1.0), direction)).abs()
    at_most("|difference quotient − ⟨x − prox(x), direction⟩|", error, 1e-6 + h * _inner(direction, direction), x=x)


def moreau_identity(function: Function, shape: Shape, seed: int, scale: float) -> None:
    """prox_conjugate(p, step, weight) + step·prox(p/step, weight/step) = p."""
    _need_prox(function, shape)
    p, step, weight = normal(shape, seed, scale), STEPS[seed % len(STEPS)], WEIGHTS[seed % len(WEIGHTS)]
    rest = step * function.prox(p / step, weight / step)
    total = function.prox_conjugate(p, step, weight) + rest
    close("prox_conjugate(p) + step·prox(p/step)", total, p, 1e-12, 1e-11 * (1 + scale), p=p, step=step, weight=weight)


def fenchel_young(function: Function, shape: Shape, seed: int, scale: float) -> None:
    """value(x) + conjugate(p) ≥ ⟨x, p⟩, with equality for x = prox(y), p = y − x; finite at `feasible` points."""
    if not function.has_conjugate:
        raise NotApplicable("it has no conjugate")
    _need_prox(function, shape)
    y = normal(shape, seed, scale)
    x, p = function.prox(y, 1.0), function.prox_conjugate(y, 1.0)
    inner = _inner(x, p)
    size = 1e-9 * (1 + inner.abs() + _inner(y, y))
    at_most("|value(x) + conjugate(p) − ⟨x, p⟩|", (function.value(x) + function.conjugate(p) - inner).abs(), size, x=x)
    other = inside(function, normal(shape, seed + 1, scale))
    gap = function.value(other) + function.conjugate(p) - _inner(other, p)
    at_most("⟨x, p⟩ − value(x) − conjugate(p)", -gap, size, x=other, p=p)
    for weight in WEIGHTS:
        near = function.feasible(y, weight)
        finite("conjugate at a feasible point", function.conjugate(near / weight), p=y, weight=weight)


def shapes_and_flags(function: Function, shape: Shape) -> None:
    """One value per sample; grad and prox like x; `smooth` and `constraint` are true where they say so."""
    x = normal(shape, 0)
    require(function.value(x).shape == (B,), f"value has shape {tuple(function.value(x).shape)}, not {(B,)}")
    flag = f"smooth is {function.smooth} and curvature() is {function.curvature()}"
    require(function.smooth == math.isfinite(function.curvature()), flag)
    if has_gradient(function, shape):
        got = function.grad(inside(function, x))
        require(got.shape == x.shape, f"grad has shape {tuple(got.shape)}, not {tuple(x.shape)}")
    else:
        require(not function.smooth, "smooth is True, and grad is refused")
    if has_prox(function, shape):
        q = function.prox(x, 0.5)
        require(q.shape == x.shape, f"prox has shape {tuple(q.shape)}, not {tuple(x.shape)}")
        if function.constraint:
            require(bool((function.value(q) == 0).all()), "constraint is True, and value(prox(x)) is not 0", x=x)
            odd = function.value(torch.full_like(x, math.nan))
            require(bool((odd == math.inf).all()), f"constraint is True, and value(NaN) is {float(odd[0])}")
            close("prox with another step", function.prox(x, 7.0), q, 1e-12, 1e-12)
    if function.has_conjugate:
        require(function.conjugate(x).shape == (B,), f"conjugate has shape {tuple(function.conjugate(x).shape)}")


def samples_do_not_see_each_other(function: Function, shape: Shape) -> None:
    """What other samples are does not change the value, grad or prox of a sample."""
    x = inside(function, normal(shape, 0))
    for i in range(B):
        other = inside(function, normal(shape, 1, 3.0))
        other[i] = x[i]
        for name, result in _results(function, other).items():
            close(f"{name} of one sample", result[i], _results(function, x)[name][i], 1e-7, 1e-7)


def steps_per_sample(function: Function, shape: Shape) -> None:
    """prox with one step per sample, (B,) or (B, 1, …), equals prox with each number; a step 0 changes nothing."""
    _need_prox(function, shape)
    x = normal(shape, 0)
    steps = torch.linspace(0.1, 3.0, B, dtype=torch.float64)
    for given in (steps, steps.view(B, *(1,) * len(shape))):
        several = function.prox(x, given)
        for i, step in enumerate(steps):
            close("prox with a tensor of steps", several[i], function.prox(x, float(step))[i], 1e-7, 1e-7, step=step)
            close("prox with a 0-d step", function.prox(x, step)[i], several[i], 1e-7, 1e-7, step=step)
    dual = function.prox_conjugate(x, steps, steps.flip(0))
    for i, (step, weight) in enumerate(zip(steps.tolist(), steps.flip(0).tolist(), strict=True)):
        close("prox_conjugate with tensors", dual[i], function.prox_conjugate(x, step, weight)[i], 1e-7, 1e-7)
    if not function.constraint:
        x = inside(function, x)
        close("prox with steps 0", function.prox(x, torch.zeros_like(steps)), x, 1e-12, 1e-12)
        off = function.prox_conjugate(torch.zeros_like(x), 0.5, torch.zeros_like(steps))
        close("prox_conjugate of 0 with weights 0", off, torch.zeros_like(x), 0.0, 1e-12)


def steps_per_entry(function: Function, shape: Shape) -> None:
    """prox with one step per entry equals prox with each number, where `elementwise` is true."""
    if not function.elementwise:
        raise NotApplicable("it is not a sum over entries")
    x, steps = normal(shape, 0, 2.0), normal(shape, 1).exp()
    several = function.prox(x, steps)
    for index in range(0, x.numel(), 7):
        step = float(steps.flatten()[index])
        expected = function.prox(x, step).flatten()[index]
        close("prox with one step per entry", several.flatten()[index], expected, 1e-7, 1e-7, step=step)


def arguments_are_left_alone(function: Function, shape: Shape) -> None:
    """Results are new tensors, and the arguments stay as they are."""
    x = inside(function, normal(shape, 0))
    kept = x.clone()
    for result in _results(function, x).values():
        result.add_(1)
    close("the argument", x, kept, 0.0)


def extreme_arguments(function: Function, shape: Shape) -> None:
    """From 0 to 1e4, in single and double precision, results keep the dtype and are finite."""
    everywhere = bool(function.value(normal(shape, 0)).isfinite().all())
    for dtype in (torch.float32, torch.float64):
        for size in (0.0, 1e-30, 1.0, 1e4):
            x = size * normal(shape, 0).sign().to(dtype)
            value = function.value(x)
            require(value.dtype == dtype, f"value of {dtype} has dtype {value.dtype}")
            require(not bool(value.isnan().any()), "value is NaN", x=x)
            if everywhere:
                finite("value", value, x=x)
            x = inside(function, x) if everywhere else x
            names = ("grad",) * (everywhere and has_gradient(function, shape)) + ("prox",) * has_prox(function, shape)
            for name in names:
                result = function.grad(x) if name == "grad" else function.prox(x, 0.5)
                require(result.dtype == dtype, f"{name} of {dtype} has dtype {result.dtype}")
                finite(name, result, x=x)


def devices_are_followed(function: Function, shape: Shape) -> None:
    """Results are where the argument is."""
    # On the device without memory, a tensor left behind on the CPU is an error.
    x = normal(shape, 0).to("meta")
    results = {"value": function.value(x)}
    if has_gradient(function, shape):
        results["grad"] = function.grad(x)
    if has_prox(function, shape):
        try:
            results |= {"prox": function.prox(x, 0.5), "prox_conjugate": function.prox_conjugate(x, 0.5)}
        except RuntimeError as error:
            if "item()" not in str(error):  # an iteration may read how far it is
                raise
    for name, result in results.items():
        require(result.is_meta, f"{name} stays on {result.device}")


def steps_are_checked(function: Function, shape: Shape) -> None:
    """prox refuses the steps 0, −1, NaN and ∞."""
    _need_prox(function, shape)
    for step in (0.0, -1.0, math.nan, math.inf):
        refused = refuses(function.prox, normal(shape, 0), step)
        require(refused, f"prox took the step {step}; `check_step` in torchlift.functions refuses it")


def operator_and_bound(operator: LinearOperator) -> None:
    """The operator's adjoint is its adjoint, and norm_bound is at least its norm."""
    error = adjoint_error(operator)
    require(error < 1e-12, f"|⟨Ax, y⟩ − ⟨x, Aᵀy⟩| is {error:.2g} of its size")
    norm = torch.linalg.matrix_norm(operator.to_dense().double(), 2)
    at_most("the norm", norm, operator.norm_bound() * (1 + 1e-9))


def _results(function: Function, x: Tensor) -> dict[str, Tensor]:
    """value, and grad and prox where they are defined, by name."""
    shape = tuple(x.shape[1:])
    results = {"value": function.value(x)}
    if has_gradient(function, shape):
        results["grad"] = function.grad(x)
    if has_prox(function, shape):
        results["prox"] = function.prox(x, 0.5)
    return results


def _need_smooth(function: Function) -> None:
    if not function.smooth:
        raise NotApplicable("it is not smooth")


def _need_prox(function: Function, shape: Shape) -> None:
    if not has_prox(function, shape):
        raise NotApplicable("it refuses `prox`")


def _inner(x: Tensor, y: Tensor) -> Tensor:
    """⟨x, y⟩ of every sample."""
    return (x * y).flatten(1).sum(1)


def _norm(x: Tensor) -> Tensor:
    return _inner(x, x).sqrt()


#: Called with a function, the shape of a sample, a seed and the size of the points.
ON_VALUES: tuple[Check, ...] = (
    gradient_by_autograd, gradient_by_differences, convex, curvature_bounds, prox_minimises,
    prox_is_firmly_nonexpansive, moreau_envelope, moreau_identity, fenchel_young,
)  # fmt: skip
#: Called with a function and the shape of a sample.
ON_ITSELF: tuple[Check, ...] = (
    shapes_and_flags, samples_do_not_see_each_other, steps_per_sample, steps_per_entry, arguments_are_left_alone,
    extreme_arguments, devices_are_followed, steps_are_checked,
)  # fmt: skip
