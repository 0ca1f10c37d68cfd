"""Metrics against their definitions, over sets cut in any way."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchlift import losses, networks
from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.data import load_digits, psnr, ssim
from torchlift.operators import Context
from torchlift.training.metrics import METRICS, Metric, as_metrics, evaluate

SQUARED = losses.SquaredError()
CLASSES = losses.CrossEntropy()


def _pair(samples: int = 7, size: int = 144) -> tuple[Tensor, Tensor]:
    x = torch.rand(samples, size, dtype=torch.float64)
    return x + 0.1 * torch.randn(samples, size, dtype=torch.float64), x


def _batches(y: Tensor, x: Tensor, sizes: list[int]) -> Iterator[tuple[Tensor, Tensor, Context]]:
    for inputs, targets in zip(y.split(sizes), x.split(sizes), strict=True):
        yield inputs, targets, None


def _network(inside: int, outside: int) -> networks.Network:
    return networks.MLP([inside, 5, outside]).double()


@settings(max_examples=12)
@given(cut=st.integers(1, 6), second=st.integers(1, 6))
def test_the_value_over_a_set_does_not_depend_on_how_it_is_cut(cut: int, second: int) -> None:
    sizes = [cut, second, 13 - cut - second]
    y, x = _pair(13)
    network = _network(144, 144)
    metrics = [METRICS[name] for name in ("psnr", "ssim", "mse", "nmse")]
    found = evaluate(network, _batches(y, x, sizes), SQUARED, metrics)
    with torch.no_grad():
        p = network(y)
    images, references = p.reshape(13, 1, 12, 12), x.reshape(13, 1, 12, 12)
    assert list(found) == ["loss", "psnr", "ssim", "mse", "nmse"]
    assert found["loss"] == pytest.approx(float(0.5 * (p - x).square().sum()) / 13, rel=1e-12)
    assert found["psnr"] == pytest.approx(float(psnr(p, x).mean()), rel=1e-12)
    assert found["ssim"] == pytest.approx(float(ssim(images, references).mean()), rel=1e-9)
    assert found["mse"] == pytest.approx(float((p - x).square().mean()), rel=1e-12)
    ratio = float((p - x).square().sum() / x.square().sum())
    assert found["nmse"] == pytest.approx(10 * math.log10(ratio), rel=1e-12)


def test_nmse_over_a_set_is_not_the_mean_over_samples() -> None:
    x = torch.tensor([[1.0, 0.0], [10.0, 0.0]], dtype=torch.float64)
    p = torch.tensor([[2.0, 0.0], [10.0, 1.0]], dtype=torch.float64)
    nmse = METRICS["nmse"]
    assert nmse(p, x).tolist() == pytest.approx([0.0, -20.0])
    together = float(nmse.of_means(nmse.terms(p, x).mean(0)))
    assert together == pytest.approx(10 * math.log10(2 / 101))


def test_accuracy_is_the_percentage_of_right_labels() -> None:
    network, y = _network(4, 3), torch.randn(10, 4, dtype=torch.float64)
    labels = network(y).argmax(1)
    labels[:3] = (labels[:3] + 1) % 3
    found = evaluate(network, _batches(y, labels, [4, 6]), CLASSES, as_metrics(None, CLASSES, network(y), labels))
    assert found["accuracy"] == pytest.approx(70.0)
    assert found["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(network(y).detach(), labels)))


def test_one_hot_targets_are_refused() -> None:
    output = torch.randn(4, 3)
    with pytest.raises(InvalidValueError, match=r"integer labels.*argmax\(1\)"):
        METRICS["accuracy"](output, torch.eye(3)[[0, 1, 2, 0]])


def test_contexts_reach_the_network() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, y: Tensor, context: Tensor) -> Tensor:
            return y * context

    y = torch.rand(3, 2, dtype=torch.float64)
    found = evaluate(Scaled(), [(y, 2 * y, torch.full((3, 1), 2.0))], SQUARED)  # type: ignore[arg-type]
    assert found == {"loss": 0.0}


def test_evaluation_keeps_no_graph_and_half_precision_does_not_overflow() -> None:
    network = _network(4, 2)
    asked: list[bool] = []

    def grows(output: Tensor, target: Tensor) -> Tensor:
        asked.append(output.requires_grad)
        return torch.full((output.shape[0],), 60000.0, dtype=torch.float16)

    y = torch.randn(8, 4, dtype=torch.float64)
    found = evaluate(network, [(y, torch.zeros(8, 2, dtype=torch.float64), None)], SQUARED, [Metric("grows", grows)])
    assert asked == [False]
    assert found["grows"] == pytest.approx(60000, rel=1e-3)


@pytest.mark.parametrize(
    ("loss", "output", "target", "names"),
    [
        (CLASSES, torch.zeros(2, 3), torch.tensor([0, 2]), ["loss", "accuracy"]),
        (SQUARED, torch.zeros(2, 784), torch.rand(2, 784), ["loss", "psnr"]),
        (losses.Huber(), torch.zeros(2, 1, 4, 6), torch.rand(2, 1, 4, 6), ["loss", "psnr"]),
        (SQUARED, torch.zeros(2, 784), torch.rand(2, 784) * 3, ["loss"]),
        (SQUARED, torch.zeros(2, 784), torch.rand(2, 784) - 0.5, ["loss"]),
        (SQUARED, torch.zeros(2, 9), torch.rand(2, 9), ["loss"]),
        (SQUARED, torch.zeros(2, 700), torch.rand(2, 700), ["loss"]),
    ],
)
def test_what_is_chosen_by_default(loss: losses.Loss, output: Tensor, target: Tensor, names: list[str]) -> None:
    assert [metric.name for metric in as_metrics(None, loss, output, target)] == names


def test_names_metrics_and_functions_may_be_mixed() -> None:
    def largest(output: Tensor, target: Tensor) -> Tensor:
        return (output - target).abs().amax(1)

    own = Metric("smallest", lambda output, target: output.amin(1), larger_is_better=True)
    output, target = _pair()
    found = as_metrics(["psnr", "loss", largest, own], SQUARED, output, target)
    assert [metric.name for metric in found] == ["loss", "psnr", "largest", "smallest"]
    assert [metric.larger_is_better for metric in found] == [False, True, False, True]
    assert torch.equal(found[2](output, target), (output - target).abs().amax(1))
    assert torch.equal(found[0](output, target), SQUARED.value(output, target))
    assert [metric.name for metric in as_metrics("nmse", SQUARED, output, target)] == ["loss", "nmse"]


def test_vectors_of_square_images_have_a_similarity() -> None:
    x = load_digits("test").images[:3]
    y = x + 0.1 * torch.randn_like(x)
    torch.testing.assert_close(METRICS["ssim"](y.flatten(1), x.flatten(1)), ssim(y, x))


@pytest.mark.parametrize(
    ("wanted", "error", "match"),
    [
        (["pnsr"], InvalidValueError, "one of 'loss', 'accuracy'.*got 'pnsr'. Did you mean 'psnr'?"),
        (["Accuracy"], InvalidValueError, "Did you mean 'accuracy'"),
        (["psnr", "psnr"], InvalidValueError, "different name for each, got 'psnr' twice"),
        ([lambda output, target: output.sum(1)], InvalidTypeError, "named function.*Metric\\('name', function\\)"),
        ([3], InvalidTypeError, "a Metric or a named function, got int"),
        (3, InvalidTypeError, "a sequence such as"),
        (["accuracy"], InvalidValueError, "integer labels"),
        ([torch.nn.functional.mse_loss], InvalidValueError, "one number per sample, shape \\(7,\\), got shape \\(\\)"),
        ([Metric("text", lambda output, target: "good")], InvalidTypeError, "metric 'text'.*one number per sample"),  # type: ignore[arg-type, return-value]
    ],
)
def test_what_is_no_metric_is_refused(wanted: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        as_metrics(wanted, SQUARED, *_pair())  # type: ignore[arg-type]


def test_vectors_that_are_no_square_images_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"images \(B, C, H, W\), got shape \(7, 143\). Give image-shaped"):
        as_metrics(["ssim"], SQUARED, *_pair(size=143))


def test_shapes_that_would_broadcast_are_refused() -> None:
    network, y = _network(4, 3), torch.randn(2, 4, dtype=torch.float64)
    wrong = torch.zeros(2, 1, dtype=torch.float64)
    with pytest.raises(InvalidValueError, match=r"target: expected shape \(2, 3\)"):
        evaluate(network, [(y, wrong, None)], SQUARED)
    with pytest.raises(InvalidValueError, match=r"target: expected shape \(2, 3\) like the output"):
        METRICS["mse"](network(y), wrong)


def test_an_empty_set_has_no_value() -> None:
    with pytest.raises(InvalidValueError, match="at least one batch, got none"):
        evaluate(_network(4, 3), [], SQUARED)
