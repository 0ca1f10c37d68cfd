"""Losses between distributions: cross-entropy, and the Kullback–Leibler divergence of counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from torchlift.core.checks import Shape, check_instance, check_interval
from torchlift.core.errors import invalid_value
from torchlift.core.signatures import explain
from torchlift.functions.base import Amount, check_step, per_sample
from torchlift.functions.losses.base import Loss
from torchlift.prox import Softmax
from torchlift.prox.base import check_group_step


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Cross-entropy of logits p (B, C) with labels x (B,) in {0, …, C − 1}.

        L(p; x) = log Σ_c e^{p_c} − ⟨t, p⟩,  t = (1 − ε)·onehot(x) + ε/C
        grad    = softmax(p) − t
        prox    = w − s·u,  w = p + s·t,  u = argmin over the simplex of ½‖u − w/s‖² + Σ u log u / s

    The last problem, by Moreau's identity, is the prox of `Softmax` with step
    1/(1 + s) at w/(1 + s). A tensor step has size 1 along the classes.

    Arguments:
        label_smoothing: ε in [0, 1).

    Reference: Szegedy et al., Rethinking the inception architecture (2016),
    for label smoothing, as `torch.nn.functional.cross_entropy` defines it.
    """

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_interval("CrossEntropy label_smoothing", self.label_smoothing, "[0, 1)")

    def value(self, prediction: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(prediction, target.long(), reduction="none", label_smoothing=self.label_smoothing)

    def mean(self, prediction: Tensor, target: Tensor) -> Tensor:
        try:
            return F.cross_entropy(prediction, target.long(), label_smoothing=self.label_smoothing)
        except Exception as error:
            explain(error)
            raise

    def grad(self, prediction: Tensor, target: Tensor) -> Tensor:
        return torch.softmax(prediction, 1) - self._distribution(prediction, target)

    def curvature(self) -> float:
        # The Hessian diag(s) − ssᵀ, s = softmax(p), has the absolute row sums
        # s_i(1 − s_i) + s_i Σ_{k≠i} s_k = 2 s_i(1 − s_i) ≤ ½, which bound its norm (Gershgorin).
        return 0.5

    def prox(self, prediction: Tensor, target: Tensor, step: Amount = 1.0) -> Tensor:
        step = check_group_step(check_step(step, prediction), prediction, 1)
        w = prediction + step * self._distribution(prediction, target)
        return w - step * Softmax(dim=1).prox(w / (1 + step), 1 / (1 + step))

    def check(self, prediction_shape: Shape, target: object, *, values: bool = True) -> None:
        if len(prediction_shape) != 2 or prediction_shape[1] < 2 or prediction_shape[0] < 1:
            expected = "shape (batch, classes) with at least one sample and two classes"
            hint = "Whole numbers are labels: one output per class, or targets of floating-point numbers."
            if len(prediction_shape) == 2 and prediction_shape[1] == 1:
                hint += " One output for two classes: nn.BCEWithLogitsLoss() and targets.float()[:, None]."
            invalid_value("prediction", expected, tuple(prediction_shape), hint)
        labels = check_instance("target", target, Tensor, "a torch.Tensor", "Try torch.as_tensor(labels).")
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            hint = "Try `.long()`, or `.argmax(1)` for one-hot rows."
            invalid_value("target", "integer labels", labels.dtype, hint)
        batch, classes = prediction_shape
        if tuple(labels.shape) != (batch,):
            column = labels.ndim == 2 and labels.shape[1] == 1
            hint = "Try targets[:, 0]." if column else "Of one-hot rows: targets.argmax(1)."
            hint = hint if labels.ndim == 2 else ""
            invalid_value("target", f"shape ({batch},), one label per sample", tuple(labels.shape), hint)
        wrong = (labels < 0) | (labels >= classes) if values else None
        if wrong is not None and bool(wrong.any()):
            sample = int(wrong.nonzero()[0])
            invalid_value("target", f"labels from 0 to {classes - 1}", f"{int(labels[sample])} at sample {sample}")

    def _distribution(self, prediction: Tensor, target: Tensor) -> Tensor:
        """t, one row per sample."""
        classes = prediction.shape[1]
        t = torch.full_like(prediction, self.label_smoothing / classes)
        return t.scatter_(1, target.long().unsqueeze(1), 1 - self.label_smoothing + self.label_smoothing / classes)


@dataclass(frozen=True)
class KullbackLeibler(Loss):
    """The negative log-likelihood of Poisson counts x ≥ 0 with expected values p, less its least value.

        L(p; x) = Σ p_i − x_i + x_i log(x_i / p_i) for p ≥ 0, +∞ otherwise
        grad    = 1 − x/p where p > 0
        prox    = ½(p − s + √((p − s)² + 4sx))

    For low light and emission tomography. The gradient is not Lipschitz near 0:
    use the prox, or predictions that are bounded from below.

    Reference: Shepp & Vardi, IEEE Transactions on Medical Imaging 1 (1982).
    """

    def value(self, prediction: Tensor, target: Tensor) -> Tensor:
        terms = prediction - target + torch.xlogy(target, target) - torch.xlogy(target, prediction)
        return per_sample(terms.masked_fill(~(prediction >= 0), math.inf))

    def grad(self, prediction: Tensor, target: Tensor) -> Tensor:
        return 1 - torch.where(target > 0, target / prediction, 0.0)

    def curvature(self) -> float:
        return math.inf

    def prox(self, prediction: Tensor, target: Tensor, step: Amount = 1.0) -> Tensor:
        step = check_step(step, prediction)
        shifted = prediction - step
        root = (shifted.square() + 4 * step * target).sqrt()
        below = 2 * step * target / (root - shifted).clamp_min(torch.finfo(root.dtype).tiny)
        return torch.where(shifted > 0, 0.5 * (shifted + root), below)  # neither form cancels where it is used

    def conjugate(self, dual: Tensor, target: Tensor) -> Tensor:
        return per_sample((-torch.xlogy(target, 1 - dual)).masked_fill(~(dual <= 1), math.inf))

    def check(self, prediction_shape: Shape, target: object, *, values: bool = True) -> None:
        super().check(prediction_shape, target, values=values)
        assert isinstance(target, Tensor)
        if values and bool((target < 0).any()):
            position = tuple((target < 0).nonzero()[0].tolist())
            invalid_value("target", "counts >= 0", f"{float(target[position]):g} at index {position}")
