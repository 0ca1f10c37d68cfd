"""Losses of torch and functions of one's own, as a training loop calls its criterion."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchlift.core.checks import Shape, check_finite, check_instance
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.functions.base import Amount
from torchlift.functions.losses.base import Loss
from torchlift.functions.losses.cross_entropy import CrossEntropy
from torchlift.functions.losses.residual import WeightedSquaredError

#: What `criterion(prediction, target)` may be, or a loss of this package.
LossLike = Loss | nn.Module | Callable[[Tensor, Tensor], Tensor]

#: The label that torch's losses leave out, unless told otherwise.
IGNORED = -100

_FUNCTIONS: dict[object, Callable[[], nn.Module]] = {F.cross_entropy: nn.CrossEntropyLoss, F.mse_loss: nn.MSELoss}
_NO_PROX = "Solvers of lifted variables need a loss of torchlift.losses, such as SquaredError() or CrossEntropy()."


@dataclass(frozen=True, eq=False, repr=False)
class Criterion(Loss):
    """Any function criterion(prediction, target) that autograd can differentiate, convex or not.

    Enough for sweeps and back-propagation. There is no proximal map, and nothing is known of the
    curvature, so solvers of lifted variables refuse it.

    Arguments:
        criterion: the mean over a batch as a number, the values of the samples (B,), or a loss of
            `torch.nn` with any reduction.
    """

    criterion: nn.Module | Callable[[Tensor, Tensor], Tensor]

    def __post_init__(self) -> None:
        if isinstance(self.criterion, type) or not callable(self.criterion):
            invalid_type("Criterion", "a function of predictions and targets", self.criterion)

    def value(self, prediction: Tensor, target: Tensor) -> Tensor:
        """For each sample; a criterion that tells only its mean gives that to every sample."""
        separate = _separate(self.criterion)
        values = (separate or self.criterion)(prediction, target)
        if separate is not None and hasattr(separate, "ignore_index") and not target.is_floating_point():
            counted = target.ne(IGNORED).sum().to(values)  # torch's mean is over these only
            return values.reshape(len(values), -1).sum(1) * (len(values) / counted)
        if values.ndim:
            return values.flatten(1).mean(1) if values.ndim > 1 else values
        return self._as_mean(values, prediction).expand(len(prediction))

    def mean(self, prediction: Tensor, target: Tensor) -> Tensor:
        return self._as_mean(self.criterion(prediction, target), prediction)

    def grad(self, prediction: Tensor, target: Tensor) -> Tensor:
        with torch.enable_grad():
            p = prediction.detach().requires_grad_()
            return torch.autograd.grad(len(p) * self.mean(p, target), p)[0]

    def curvature(self) -> float:
        return math.inf

    def prox(self, prediction: Tensor, target: Tensor, step: Amount = 1.0) -> NoReturn:
        invalid_value("Criterion.prox", "a loss with a proximal map", repr(self), _NO_PROX)

    def check(self, prediction_shape: Shape, target: object, *, values: bool = True) -> None:
        """Compare two samples; torch's own objections and its warnings about broadcasting become refusals."""
        x = check_instance("target", target, Tensor, "a torch.Tensor")
        if len(x) != prediction_shape[0]:
            invalid_value("target", f"{prediction_shape[0]} samples", len(x))
        if not values:
            return
        if x.is_floating_point():
            check_finite("target", x)
        else:
            self.check_labels(prediction_shape, x)
        few = min(2, len(x))
        known = list(self.criterion.buffers()) if isinstance(self.criterion, nn.Module) else []
        dtype = next((tensor.dtype for tensor in (x, *known) if tensor.is_floating_point()), None)
        guess = torch.full((few, *prediction_shape[1:]), 0.5, dtype=dtype, device=x.device, requires_grad=True)
        try:
            with warnings.catch_warnings(), torch.enable_grad():
                warnings.simplefilter("error", UserWarning)
                loss = self.criterion(guess, x[:few])
        except (RuntimeError, ValueError, TypeError, IndexError, UserWarning) as error:
            shapes = f"predictions (batch, {', '.join(map(str, prediction_shape[1:]))}) and targets {tuple(x.shape)}"
            said = str(error).strip().splitlines()[0].rstrip(".")
            hint = "It is called as criterion(predictions, targets)."
            if not x.is_floating_point() and x.shape[1:] == prediction_shape[1:]:
                hint = "Of one-hot rows try targets.argmax(1); for numbers, targets.float()."
                if _several_labels(x):
                    hint = "For several labels of a sample try loss=nn.BCEWithLogitsLoss() and targets.float()."
            invalid_value("loss", f"one for {shapes} of {x.dtype}", f"{self!r}: {said}", hint)
        if not isinstance(loss, Tensor) or not loss.requires_grad:
            what = type(loss).__name__ if not isinstance(loss, Tensor) else "one without a gradient"
            invalid_value("loss", "a tensor that depends on the predictions", f"{what} from {self!r}")
        if loss.ndim and loss.shape[0] != few:
            invalid_value("loss", "a number, or one for each sample", f"shape {tuple(loss.shape)} from {self!r}")

    def check_labels(self, prediction_shape: Shape, labels: Tensor) -> None:
        """Refuse labels of another shape, or that no class has, which torch finds when their batch comes."""
        if not isinstance(self.criterion, nn.CrossEntropyLoss | nn.NLLLoss) or labels.dtype == torch.bool:
            return
        if len(prediction_shape) < 2 or tuple(labels.shape) == prediction_shape:  # of rows of numbers see below
            return
        batch, classes, *places = prediction_shape
        if tuple(labels.shape) != (batch, *places):
            hint = "Try targets[:, 0]." if tuple(labels.shape) == (batch, 1, *places) else ""
            if tuple(labels.shape) == prediction_shape[:-1]:
                hint = "The classes are axis 1 of predictions: return predictions.movedim(-1, 1)."
            expected = f"labels ({', '.join(map(str, ('batch', *places)))}) for predictions (batch, {classes}"
            expected += "".join(f", {place}" for place in places) + ")"
            invalid_value("target", expected, tuple(labels.shape), hint)
        wrong = (labels < 0) | (labels >= classes)
        if bool(wrong.any()) and bool((wrong := wrong & labels.ne(self.criterion.ignore_index)).any()):
            first = tuple(wrong.nonzero()[0].tolist())
            got = f"{int(labels[first])} at sample {first[0]}"
            hint = f"Those that do not count are {self.criterion.ignore_index}."
            invalid_value("target", f"labels from 0 to {classes - 1}, one per class of the predictions", got, hint)

    def __repr__(self) -> str:
        function = self.criterion
        if isinstance(function, partial):
            settings = "".join(f", {name}={value!r}" for name, value in function.keywords.items())
            return f"Criterion({_name(function.func)}{settings})"
        if not isinstance(function, nn.Module):
            return f"Criterion({_name(function)})"
        tensors = "".join(f", {name}={tensor.tolist()}" for name, tensor in function.state_dict().items())
        reduction = getattr(function, "reduction", "mean")
        tensors += "" if reduction == "mean" else f", reduction={reduction!r}"
        return f"Criterion({function!r}{tensors})"

    @classmethod
    def example(cls) -> Loss:
        return cls(nn.SmoothL1Loss())

    def _as_mean(self, loss: Tensor, prediction: Tensor) -> Tensor:
        if loss.ndim:
            return loss.mean()
        return loss / len(prediction) if getattr(self.criterion, "reduction", "mean") == "sum" else loss


def as_loss(where: str, loss: LossLike, targets: Tensor) -> Loss:
    """The loss of this package that is the same function, where there is one, and else a `Criterion`.

    Arguments:
        where: begins messages.
        loss: a loss of this package, of torch, or a function of predictions and targets.
        targets: some of the data, from which a mean over entries learns their number.
    """
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, type) or not callable(loss):
        hint = "Losses of torch and functions of predictions and targets are taken too."
        invalid_type(where, "a loss such as SquaredError() or nn.MSELoss()", loss, hint)
    try:
        module = _FUNCTIONS[loss]() if loss in _FUNCTIONS else loss
    except TypeError:  # what cannot be hashed
        module = loss
    reduction = getattr(module, "reduction", None)
    if type(module) is nn.MSELoss and reduction in ("mean", "sum") and targets.is_floating_point():
        entries = targets[:1].numel() if reduction == "mean" else 1
        return WeightedSquaredError(2.0 / max(1, entries))
    entropy = module if isinstance(module, nn.CrossEntropyLoss) and type(module) is nn.CrossEntropyLoss else None
    labels = targets.ndim == 1 and not bool((targets == IGNORED).any())
    if entropy is not None and _plain(entropy) and labels and reduction != "none":
        return CrossEntropy(entropy.label_smoothing)
    return Criterion(module)


def _plain(module: nn.Module) -> bool:
    """Whether every sample, and every entry of it, counts the same in the mean."""
    return getattr(module, "weight", None) is None and getattr(module, "ignore_index", IGNORED) == IGNORED


def _separate(criterion: object) -> nn.Module | None:
    """A copy of a loss of torch that gives the values of all entries instead of their mean."""
    if not isinstance(criterion, nn.Module) or type(criterion).__module__ != nn.MSELoss.__module__:
        return None
    if getattr(criterion, "reduction", None) != "mean" or not _plain(criterion):
        return None
    separate = copy.copy(criterion)
    separate.reduction = "none"  # type: ignore[assignment]
    return separate


def _name(function: object) -> str:
    """Without an address, so that a resumed run knows its loss again."""
    return getattr(function, "__qualname__", None) or type(function).__name__


def _several_labels(x: Tensor) -> bool:
    """Whether rows hold zeros and ones, and other numbers of ones than one."""
    rows = x.ndim > 1 and x.numel() > 0 and bool((x >= 0).all()) and bool((x <= 1).all())
    return rows and bool((x.sum(1) != 1).any())
