"""What every loss promises, and `check_loss`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchlift.core.checks import check_size
from torchlift.core.errors import TorchliftError, invalid_type
from torchlift.functions.losses import Loss
from torchlift.testing.compare import at_most, close, finite, require
from torchlift.testing.report import Check, NotApplicable, Report, report

B, C = 6, 4
STEPS = (1e-3, 0.3, 1.0, 3.0, 100.0)
SCALES = (0.1, 1.0, 5.0)


def check_loss(loss: Loss, *, examples: int = 15, seed: int = 0) -> Report:
    """Whether a loss of one's own is convex, with the gradient, curvature and prox it states.

    Arguments:
        loss: an instance of a subclass of `Loss`, tried with targets like the prediction, or with labels if it
            refuses them.
        examples: how many predictions to try.
        seed: of the predictions.

    Example:
        >>> import torchlift as tl
        >>> tl.check_loss(tl.losses.Huber()).ok
        True
    """
    if not isinstance(loss, Loss):
        invalid_type("check_loss", "a loss", loss, "Derive it from torchlift.losses.Loss, and pass an instance.")
    check_size("check_loss examples", examples)
    drawn = [(seed + k, SCALES[k % len(SCALES)]) for k in range(examples)]
    work = [(check, [(loss, *numbers) for numbers in drawn]) for check in ON_VALUES]
    return report(str(loss), [*work, *((check, [(loss,)]) for check in ON_ITSELF)])


def normal(seed: int, scale: float = 1.0, shape: tuple[int, ...] = (B, C)) -> Tensor:
    return scale * torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def target_for(loss: Loss, seed: int) -> Tensor:
    """A target like the prediction, or labels where the loss refuses it."""
    try:
        loss.check((B, C), normal(seed))
    except TorchliftError:
        return torch.randint(C, (B,), generator=torch.Generator().manual_seed(seed))
    return normal(seed)


def has_gradient(loss: Loss) -> bool:
    """Whether `grad` is defined, as a subgradient at least."""
    try:
        loss.grad(normal(0), target_for(loss, 1))
    except TorchliftError:
        return False
    return True


def _need_gradient(loss: Loss) -> None:
    if not has_gradient(loss):
        raise NotApplicable("it refuses `grad`")


def gradient_by_autograd(loss: Loss, seed: int, scale: float) -> None:
    """grad is the gradient of Σ value, by autograd."""
    _need_gradient(loss)
    p, x = normal(seed, scale).requires_grad_(), target_for(loss, seed + 1)
    (wanted,) = torch.autograd.grad(loss.value(p, x).sum(), p)
    close("grad", loss.grad(p.detach(), x), wanted, 1e-13, 1e-13, p=p.detach())


def gradient_by_differences(loss: Loss, seed: int, scale: float) -> None:
    """grad is the slope of Σ value, by finite differences, where the loss is smooth."""
    if not loss.smooth:
        raise NotApplicable("it is not smooth")
    p, x, direction, h = normal(seed, scale), target_for(loss, seed + 1), normal(seed + 2), 1e-5
    slope = (loss.value(p + h * direction, x) - loss.value(p - h * direction, x)).sum() / (2 * h)
    error = (slope - (loss.grad(p, x) * direction).sum()).abs()
    bound = 1e-6 + h * loss.curvature() * direction.square().sum()
    at_most("|difference quotient − ⟨grad, direction⟩|", error, bound, p=p)


def convex(loss: Loss, seed: int, scale: float) -> None:
    """value(q) ≥ value(p) + ⟨grad(p), q − p⟩: it is convex and grad a subgradient, at agreement too."""
    _need_gradient(loss)
    x, q = target_for(loss, seed + 1), normal(seed + 2, scale)
    for p in (normal(seed, scale), *([x] if x.is_floating_point() else [])):
        support = loss.value(p, x) + (loss.grad(p, x) * (q - p)).sum(1)
        at_most("value(p) + ⟨grad(p), q − p⟩ − value(q)", support - loss.value(q, x), 1e-12, p=p, q=q)


def curvature_bounds(loss: Loss, seed: int, scale: float) -> None:
    """grad is Lipschitz with `curvature`."""
    _need_gradient(loss)
    x, p = target_for(loss, seed), normal(seed + 1, scale)
    for shift in (normal(seed + 2, 1e-3), normal(seed + 2, scale)):
        change = (loss.grad(p + shift, x) - loss.grad(p, x)).norm(dim=1)
        at_most("change of grad", change, loss.curvature() * shift.norm(dim=1) + 1e-12, p=p, shift=shift)


def prox_minimises(loss: Loss, seed: int, scale: float) -> None:
    """prox(p, x, step) is the minimiser of ½‖q − p‖² + step·L(q; x)."""
    p, x, step = normal(seed, scale), target_for(loss, seed + 1), STEPS[seed % len(STEPS)]
    q = loss.prox(p, x, step)

    def objective(c: Tensor) -> Tensor:
        return 0.5 * (c - p).square().sum(1) + step * loss.value(c, x)

    least = objective(q)
    finite("½‖q − p‖² + step·L(q)", least, p=p, step=step)
    for rival in (p, q + normal(seed + 2, 1e-4), q + normal(seed + 2, 1e-2), q + normal(seed + 2), normal(seed + 3)):
        margin = objective(rival) - least - 0.5 * (rival - q).square().sum(1)
        what = "½‖q − p‖² + step·L(q) + ½‖c − q‖², less its value at a rival c,"
        at_most(what, -margin, 1e-12 * (100 + least.abs() + 10 * step), p=p, c=rival, step=step)
    if loss.smooth:
        wanted = p - step * loss.grad(q, x)
        close("prox, against p − step·grad(q),", q, wanted, 1e-11, 1e-11 * (1 + step), p=p, step=step)


def shapes_and_flags(loss: Loss) -> None:
    """One value per sample; grad and prox like the prediction; `smooth` exactly where curvature is finite."""
    p, x = normal(0), target_for(loss, 1)
    loss.check(tuple(p.shape), x)
    loss.check(tuple(p.shape), x, values=False)
    require(loss.value(p, x).shape == (B,), f"value has shape {tuple(loss.value(p, x).shape)}, not {(B,)}")
    require(loss.prox(p, x, 0.5).shape == p.shape, f"prox has shape {tuple(loss.prox(p, x, 0.5).shape)}")
    if has_gradient(loss):
        require(loss.grad(p, x).shape == p.shape, f"grad has shape {tuple(loss.grad(p, x).shape)}")
    flag = f"smooth is {loss.smooth} and curvature() is {loss.curvature()}"
    require(loss.smooth == math.isfinite(loss.curvature()), flag)


def samples_do_not_see_each_other(loss: Loss) -> None:
    """A batch gives what its samples give one by one."""
    p, x = normal(0), target_for(loss, 1)
    for i in range(B):
        one = slice(i, i + 1)
        close("value of one sample", loss.value(p[one], x[one]), loss.value(p, x)[one], 1e-7, 1e-7)
        close("prox of one sample", loss.prox(p[one], x[one], 0.7), loss.prox(p, x, 0.7)[one], 1e-7, 1e-7)
        if has_gradient(loss):
            close("grad of one sample", loss.grad(p[one], x[one]), loss.grad(p, x)[one], 1e-7, 1e-7)


def tensor_steps(loss: Loss) -> None:
    """prox with one step per sample equals prox with each number."""
    p, x = normal(0), target_for(loss, 1)
    steps = torch.linspace(0.1, 3.0, B, dtype=torch.float64)
    several = loss.prox(p, x, steps.view(B, 1))
    for i, step in enumerate(steps):
        close("prox with a tensor of steps", several[i], loss.prox(p, x, float(step))[i], 1e-7, 1e-7, step=step)
        close("prox with a 0-d step", loss.prox(p, x, step)[i], several[i], 1e-7, 1e-7, step=step)


def arguments_are_left_alone(loss: Loss) -> None:
    """Results are new tensors, and prediction and target stay as they are."""
    p, x = normal(0), target_for(loss, 1)
    kept, target = p.clone(), x.clone()
    results = [loss.value(p, x), loss.prox(p, x, 0.5)] + ([loss.grad(p, x)] if has_gradient(loss) else [])
    for result in results:
        result.add_(1)
    close("the prediction", p, kept, 0.0)
    close("the target", x, target, 0.0)


def extreme_arguments(loss: Loss) -> None:
    """From 0 to 1e4, in single and double precision, results are finite and keep the dtype."""
    for dtype in (torch.float32, torch.float64):
        x = target_for(loss, 1)
        x = x.to(dtype) if x.is_floating_point() else x
        for size in (0.0, 1e-30, 1.0, 1e4):
            p = size * normal(0).sign().to(dtype)
            results = {"prox": loss.prox(p, x, 0.5)}
            if has_gradient(loss):
                results |= {"value": loss.value(p, x), "grad": loss.grad(p, x)}
            for name, result in results.items():
                require(result.dtype == dtype, f"{name} of {dtype} has dtype {result.dtype}")
                finite(name, result, p=p)


def targets_and_steps_are_checked(loss: Loss) -> None:
    """check refuses a target of another shape, and prox the steps 0, −1, NaN and ∞."""
    x = target_for(loss, 1)
    for shape, target in (((B + 1, C), x), ((B, C), x[:-1]), ((B, C), x.unsqueeze(-1)), ((B, C), x.tolist())):
        try:
            loss.check(shape, target)
        except TorchliftError:
            continue
        kind = tuple(target.shape) if isinstance(target, Tensor) else "a list"
        require(False, f"check took the target {kind} for predictions of shape {shape}")
    for step in (0.0, -1.0, math.nan, math.inf):
        try:
            loss.prox(normal(0), x, step)
        except ValueError:
            continue
        require(False, f"prox took the step {step}; `check_step` in torchlift.prox.base refuses it")


#: Called with a loss, a seed and the size of the prediction.
ON_VALUES: tuple[Check, ...] = (
    gradient_by_autograd, gradient_by_differences, convex, curvature_bounds, prox_minimises,
)  # fmt: skip
#: Called with a loss.
ON_ITSELF: tuple[Check, ...] = (
    shapes_and_flags, samples_do_not_see_each_other, tensor_steps, arguments_are_left_alone, extreme_arguments,
    targets_and_steps_are_checked,
)  # fmt: skip
