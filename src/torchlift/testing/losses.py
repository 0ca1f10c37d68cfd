"""What every loss promises, and `check_loss`."""

from __future__ import annotations

import torch
from torch import Tensor

from torchlift.core.checks import check_instance, check_size
from torchlift.functions.losses import Loss
from torchlift.testing import functions
from torchlift.testing.compare import close, refuses, require
from torchlift.testing.functions import ON_ITSELF, ON_VALUES, SCALES, B, normal
from torchlift.testing.report import Check, Report, report

C = 4


def check_loss(loss: Loss, *, examples: int = 15, seed: int = 0) -> Report:
    """Whether a loss of one's own is convex, with the gradient, curvature and prox it states.

    With a target it is a function of the prediction, which must keep what `check_function` checks.

    Arguments:
        loss: an instance of a subclass of `Loss`, tried with targets like the prediction, non-negative ones or labels:
            the first that it does not refuse.
        examples: how many predictions to try.
        seed: of the predictions.

    Example:
        >>> import torchlift as tl
        >>> tl.check_loss(tl.losses.Huber()).ok
        True
    """
    check_instance("check_loss", loss, Loss, "a loss", "Derive it from torchlift.losses.Loss, and pass an instance.")
    check_size("check_loss examples", examples)
    drawn = [(seed + k, SCALES[k % len(SCALES)]) for k in range(examples)]
    work = [(c, [(loss.at(target_for(loss, s)), (C,), s, size) for s, size in drawn]) for c in ON_VALUES]
    work += [(c, [(loss.at(target_for(loss, seed)), (C,))]) for c in ON_ITSELF]
    return report(str(loss), [*work, *((check, [(loss,)]) for check in ON_TARGETS)])


def target_for(loss: Loss, seed: int) -> Tensor:
    """A target like the prediction, or one that is not negative, or labels, where the loss refuses the others."""
    gaussian = normal((C,), seed + 1000)
    for target in (gaussian, gaussian.abs()):
        if not refuses(loss.check, (B, C), target):
            return target
    return torch.randint(C, (B,), generator=torch.Generator().manual_seed(seed))


def has_gradient(loss: Loss) -> bool:
    """Whether `grad` is defined, as a subgradient at least."""
    return functions.has_gradient(loss.at(target_for(loss, 1)), (C,))


def mean_is_the_mean(loss: Loss) -> None:
    """mean is the mean of value, for autograd too."""
    x = target_for(loss, 1)
    p = functions.inside(loss.at(x), normal((C,), 0)).requires_grad_()
    mean = loss.mean(p, x)
    close("mean", mean, loss.value(p, x).mean(), 1e-13, 1e-13)
    require(mean.requires_grad or not has_gradient(loss), "mean has no gradient")


def targets_are_checked(loss: Loss) -> None:
    """check accepts a target that fits, and refuses one of another shape."""
    x = target_for(loss, 1)
    loss.check((B, C), x)
    loss.check((B, C), x, values=False)
    for shape, target in (((B + 1, C), x), ((B, C), x[:-1]), ((B, C), x.unsqueeze(-1)), ((B, C), x.tolist())):
        kind = tuple(target.shape) if isinstance(target, Tensor) else "a list"
        refused = refuses(loss.check, shape, target)
        require(refused, f"check took the target {kind} for predictions of shape {shape}")


def targets_are_left_alone(loss: Loss) -> None:
    """The target stays as it is."""
    x = target_for(loss, 1)
    kept = x.clone()
    functions.arguments_are_left_alone(loss.at(x), (C,))
    close("the target", x, kept, 0.0)


#: Called with a loss.
ON_TARGETS: tuple[Check, ...] = (mean_is_the_mean, targets_are_checked, targets_are_left_alone)
