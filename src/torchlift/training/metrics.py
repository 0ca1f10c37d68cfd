"""How good outputs are against their targets: named measures, and their value over a whole set.

| name       | measure                                | unit | better  | over a set                        |
|------------|----------------------------------------|------|---------|-----------------------------------|
| `loss`     | the training loss                      |      | smaller | mean over samples                 |
| `accuracy` | share of right labels                  | %    | larger  | mean over samples                 |
| `psnr`     | peak signal-to-noise ratio, peak 1     | dB   | larger  | mean over images of each one's dB |
| `ssim`     | structural similarity, range 1         |      | larger  | mean over images                  |
| `mse`      | mean squared error per entry           |      | smaller | mean over samples                 |
| `nmse`     | 10 log₁₀(Σ‖p − x‖² / Σ‖x‖²)            | dB   | smaller | both sums go over the whole set   |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchlift.core.checks import check_instance, check_tensor
from torchlift.core.errors import did_you_mean, invalid_type, invalid_value
from torchlift.data import psnr, ssim
from torchlift.functions.losses import CrossEntropy, Loss
from torchlift.operators import Context
from torchlift.training.modules import apply, in_mode

Batch = tuple[Tensor, Tensor, Context]
"""Inputs y, targets x, and what the operators need to know about each sample."""


@dataclass(frozen=True)
class Metric:
    """A measure of outputs p against targets x: the mean of f(p_i, x_i), or a function of such means.

    Arguments:
        name: the key in records.
        function: f(p, x) for a batch: (B,), or (B, k) where `combine` is given.
        unit: "dB", "%" or nothing.
        larger_is_better: which of two networks wins.
        combine: makes the measure (…) of k means (…, k); None where it is the mean itself.
    """

    name: str
    function: Callable[[Tensor, Tensor], Tensor]
    unit: str = ""
    larger_is_better: bool = False
    combine: Callable[[Tensor], Tensor] | None = None

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The measure of each sample alone, (B,)."""
        return self.of_means(self.terms(output, target))

    def terms(self, output: Tensor, target: Tensor) -> Tensor:
        """f for each sample, (B,) or (B, k): what is averaged over a set."""
        terms = self.function(output, target)
        terms = check_instance(f"metric {self.name!r}", terms, Tensor, "a tensor with one number per sample")
        if terms.ndim != (1 if self.combine is None else 2) or terms.shape[0] != output.shape[0]:
            hint = "Average over the axes of a sample only, not over the batch."
            expected = f"one number per sample, shape ({output.shape[0]},)"
            invalid_value(f"metric {self.name!r}", expected, f"shape {tuple(terms.shape)}", hint)
        return terms

    def of_means(self, means: Tensor) -> Tensor:
        """The measure, given the means of its terms."""
        return means if self.combine is None else self.combine(means)


def as_metrics(
    given: Sequence[str | Metric | Callable[[Tensor, Tensor], Tensor]] | str | None,
    loss: Loss,
    output: Tensor,
    target: Tensor,
) -> tuple[Metric, ...]:
    """The metrics of a run: the loss, then those that are asked for. Each is tried on an example.

    Arguments:
        given: names, metrics, or functions f(p, x) → (B,), of which small values
            count as good (`Metric` can say otherwise). None chooses: accuracy
            for integer labels, PSNR for targets that look like images in
            [0, 1], otherwise nothing but the loss.
        loss: the training loss.
        output, target: some samples of what will be compared.
    """
    chosen = _default(loss, output, target) if given is None else (given,) if isinstance(given, str) else given
    if not isinstance(chosen, Sequence):
        invalid_type("metrics", f"a sequence such as ['psnr'], of {_known()}", chosen)
    metrics = {"loss": loss_metric(loss)}
    for metric in (_as_metric(item) for item in chosen if item != "loss"):
        if metric.name in metrics:
            invalid_value("metrics", "a different name for each", f"{metric.name!r} twice")
        metric(output, target)
        metrics[metric.name] = metric
    return tuple(metrics.values())


@torch.no_grad()
def evaluate(
    network: nn.Module, batches: Iterable[Batch], loss: Loss, metrics: Sequence[Metric] = ()
) -> dict[str, float]:
    """The loss and the metrics of a network over all batches (inputs, targets, context), each sample counting once.

    In evaluation mode; afterwards every part of the network is in its own mode
    again. Sums stay on the device until the last batch.
    """
    chosen = {"loss": loss_metric(loss)} | {metric.name: metric for metric in metrics}
    sums: dict[str, list[Tensor]] = {name: [] for name in chosen}
    samples = 0
    with in_mode(network, False):
        for y, x, context in batches:
            output = apply(network, y, context)
            loss.check(tuple(output.shape), x, values=False)
            samples += output.shape[0]
            for name, metric in chosen.items():
                terms = metric.terms(output, x)
                sums[name].append(terms.sum(0, dtype=torch.promote_types(terms.dtype, torch.float32)))
    if not samples:
        invalid_value("evaluate batches", "at least one batch", "none")
    means = {name: torch.stack(parts).cpu().double().sum(0) / samples for name, parts in sums.items()}
    return {name: float(metric.of_means(means[name])) for name, metric in chosen.items()}


def loss_metric(loss: Loss) -> Metric:
    """The loss itself, per sample."""
    return Metric("loss", loss.value)


def _as_metric(item: Any) -> Metric:
    if isinstance(item, Metric):
        return item
    if isinstance(item, str):
        if item not in METRICS:
            invalid_value("metrics", _known(), repr(item), did_you_mean(item, METRICS))
        return METRICS[item]
    name: str = getattr(item, "__name__", "")
    if not isinstance(item, Callable) or not name.isidentifier():
        hint = "Give other functions a name: Metric('name', function)."
        invalid_type("metrics", f"{_known()}, a Metric or a named function", item, hint)
    return Metric(name, item)


def _known() -> str:
    return "one of 'loss', " + ", ".join(map(repr, METRICS))


def _default(loss: Loss, output: Tensor, target: Tensor) -> tuple[str, ...]:
    labels = not target.is_floating_point() and target.ndim == 1 and output.ndim == 2
    if isinstance(loss, CrossEntropy) or labels:
        return ("accuracy",)
    return ("psnr",) if looks_like_images(target) else ()


def looks_like_images(target: Tensor) -> bool:
    """Whether targets look like images with values in [0, 1]; vectors must have the size of a square of 8 or more."""
    if not target.is_floating_point() or target.numel() == 0:
        return False
    flat = target.ndim == 2 and (_square_side(target) or 0) >= 8
    low, high = torch.aminmax(target)
    return (flat or target.ndim == 4) and float(low) >= 0 and float(high) <= 1


def _accuracy(output: Tensor, target: Tensor) -> Tensor:
    CrossEntropy().check(tuple(output.shape), target, values=False)
    return 100.0 * (output.argmax(1) == target)


def _ssim(output: Tensor, target: Tensor) -> Tensor:
    return ssim(_as_images(output), _as_images(target))


def _mean_square_error(output: Tensor, target: Tensor) -> Tensor:
    _check_pair(output, target)
    return (output - target).flatten(1).square().mean(1)


def _mean_squares(output: Tensor, target: Tensor) -> Tensor:
    """Mean squares, not sums, of error and target: they stay in the range of half precision."""
    return torch.stack([_mean_square_error(output, target), target.flatten(1).square().mean(1)], 1)


def _decibel_ratio(means: Tensor) -> Tensor:
    return 10 * torch.log10(means[..., 0] / means[..., 1])


def _as_images(batch: Tensor) -> Tensor:
    """(B, C, H, W); vectors of n² entries are square images of one channel."""
    if batch.ndim == 4:
        return batch
    side = _square_side(batch) if batch.ndim == 2 else None
    if side is None:
        hint = "Give image-shaped outputs, or vectors of square images such as 784 = 28²."
        invalid_value("ssim", "images (B, C, H, W)", f"shape {tuple(batch.shape)}", hint)
    return batch.reshape(-1, 1, side, side)


def _square_side(batch: Tensor) -> int | None:
    side = math.isqrt(batch.shape[1])
    return side if side**2 == batch.shape[1] else None


def _check_pair(output: Tensor, target: Tensor) -> None:
    check_tensor("target", target)
    if output.shape != target.shape or output.ndim < 2:
        invalid_value("target", f"shape {tuple(output.shape)} like the output", tuple(target.shape))


#: Every metric by name, but for "loss", which depends on the run.
METRICS: dict[str, Metric] = {
    "accuracy": Metric("accuracy", _accuracy, "%", larger_is_better=True),
    "psnr": Metric("psnr", psnr, "dB", larger_is_better=True),
    "ssim": Metric("ssim", _ssim, larger_is_better=True),
    "mse": Metric("mse", _mean_square_error),
    "nmse": Metric("nmse", _mean_squares, "dB", combine=_decibel_ratio),
}
