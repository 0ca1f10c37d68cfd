"""Losses of torch and functions of one's own: the same numbers as torch's, in training too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchlift as tl
from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.functions.losses import Criterion, CrossEntropy, SquaredError, WeightedSquaredError, as_loss

B = 5


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


LABELS = torch.tensor([0, 2, 1, 1, 3])
PIXELS = torch.randint(4, (B, 3, 2), generator=torch.Generator().manual_seed(0))
CRITERIA: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Tensor, Tensor]] = {
    "MSELoss": (nn.MSELoss(), normal(B, 2, 3), normal(B, 2, 3, seed=1)),
    "mse_loss": (F.mse_loss, normal(B, 4), normal(B, 4, seed=1)),
    "CrossEntropyLoss": (nn.CrossEntropyLoss(), normal(B, 4), LABELS),
    "smoothed": (nn.CrossEntropyLoss(label_smoothing=0.1), normal(B, 4), LABELS),
    "weighted": (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5, 1.0]).double()), normal(B, 4), LABELS),
    "segmentation": (nn.CrossEntropyLoss(), normal(B, 4, 3, 2), PIXELS),
    "ignored": (nn.CrossEntropyLoss(ignore_index=1), normal(B, 4), LABELS),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss(), normal(B, 4), (normal(B, 4, seed=1) > 0).double()),
    "L1Loss": (nn.L1Loss(), normal(B, 4), normal(B, 4, seed=1)),
    "a function": (lambda p, x: (p - x).pow(4).mean(), normal(B, 4), normal(B, 4, seed=1)),
    "one number per sample": (lambda p, x: (p - x).pow(4).sum(1), normal(B, 4), normal(B, 4, seed=1)),
    "a partial": (partial(F.smooth_l1_loss, beta=0.3), normal(B, 4), normal(B, 4, seed=1)),
}


@pytest.mark.parametrize("name", CRITERIA)
def test_same_mean_and_gradient_as_torch(name: str) -> None:
    criterion, p, x = CRITERIA[name]
    loss = as_loss("train loss", criterion, x)
    loss.check(tuple(p.shape), x)
    p.requires_grad_()
    wanted = criterion(p, x).mean()
    torch.testing.assert_close(loss.mean(p, x), wanted, rtol=1e-13, atol=0)
    torch.testing.assert_close(loss.value(p, x).mean(), wanted, rtol=1e-13, atol=0)
    assert loss.value(p, x).shape == (B,)
    (gradient,) = torch.autograd.grad(wanted, p)
    torch.testing.assert_close(loss.grad(p.detach(), x), B * gradient, rtol=1e-12, atol=1e-15)
    assert "0x" not in repr(loss)  # a resumed run knows its loss by these words


@pytest.mark.parametrize("criterion", [nn.MSELoss(reduction="sum"), nn.L1Loss(reduction="sum")])
def test_sums_are_sums_over_samples(criterion: nn.Module) -> None:
    p, x = normal(B, 4), normal(B, 4, seed=1)
    loss = as_loss("train loss", criterion, x)
    torch.testing.assert_close(loss.value(p, x).sum(), criterion(p, x), rtol=1e-13, atol=0)
    torch.testing.assert_close(loss.mean(p, x), criterion(p, x) / B, rtol=1e-13, atol=0)


def test_samples_are_told_apart_where_torch_can() -> None:
    p, x = normal(B, 4), normal(B, 4, seed=1)
    torch.testing.assert_close(as_loss("train loss", nn.L1Loss(), x).value(p, x), (p - x).abs().mean(1))


@pytest.mark.parametrize("shape", [(12,), (12, 6)])
def test_labels_that_torch_leaves_out_count_for_nothing(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    predictions = torch.randn(12, 5, *shape[1:], generator=generator)
    labels = torch.randint(5, shape, generator=generator)
    labels[torch.rand(shape, generator=generator) < 0.4] = -100
    loss = as_loss("loss", nn.CrossEntropyLoss(), labels)
    torch.testing.assert_close(loss.mean(predictions, labels), nn.CrossEntropyLoss()(predictions, labels))
    torch.testing.assert_close(loss.value(predictions, labels).mean(), loss.mean(predictions, labels))


def test_one_hot_rows_are_told_what_to_do() -> None:
    rows = F.one_hot(LABELS)
    with pytest.raises(InvalidValueError, match=r"Of one-hot rows try targets.argmax\(1\)"):
        as_loss("loss", nn.CrossEntropyLoss(), rows).check((B, 4), rows)


@pytest.mark.parametrize(
    ("shape", "labels", "words"),
    [
        (
            (4, 3, 5),
            torch.full((4, 5), 3),
            r"labels from 0 to 2, .*, got 3 at sample 0. Those that do not count are -100",
        ),
        ((4, 3, 5), torch.full((4, 5), -1), r"got -1 at sample 0"),
        (
            (4, 3, 5),
            torch.zeros(4, 1, 5),
            r"expected labels \(batch, 5\) for .*\(batch, 3, 5\), got \(4, 1, 5\). .*\[:, 0\]",
        ),
        ((4, 5, 3), torch.zeros(4, 5), r"classes are axis 1 of predictions: return predictions.movedim\(-1, 1\)"),
        ((4, 3), torch.zeros(4, 1), r"expected labels \(batch\) for .*Try targets\[:, 0\]"),
        ((4, 3), torch.tensor([[1, 1, 0]] * 4), r"several labels of a sample try loss=nn.BCEWithLogitsLoss\(\)"),
    ],
)
def test_labels_that_fail_in_the_middle_of_a_training_are_refused_before(
    shape: tuple[int, ...], labels: torch.Tensor, words: str
) -> None:
    with pytest.raises(InvalidValueError, match=words):
        Criterion(nn.CrossEntropyLoss()).check(shape, labels.long())
    Criterion(nn.CrossEntropyLoss()).check((4, 3, 5), torch.full((4, 5), -100))


def test_one_output_for_two_classes() -> None:
    with pytest.raises(InvalidValueError, match=r"One output for two classes: nn.BCEWithLogitsLoss\(\)"):
        CrossEntropy().check((4, 1), torch.tensor([0, 1, 1, 0]))


def test_losses_with_a_proximal_map_are_found() -> None:
    x = normal(B, 4)
    squared = as_loss("train loss", nn.MSELoss(), x)
    assert isinstance(squared, WeightedSquaredError) and squared.weights == 0.5
    assert as_loss("train loss", nn.CrossEntropyLoss(label_smoothing=0.2), LABELS) == CrossEntropy(0.2)
    assert as_loss("train loss", F.cross_entropy, LABELS) == CrossEntropy()
    assert as_loss("train loss", SquaredError(), x) == SquaredError()
    with pytest.raises(InvalidValueError, match=r"proximal map.*SquaredError"):
        Criterion(nn.L1Loss()).prox(x, x)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (nn.MSELoss, "Try MSELoss"),
        ("mse", r"nn\.MSELoss\(\)"),
        (nn.L1Loss(), "target size"),  # (B, 1) and (B,) would be broadcast to (B, B)
        (lambda p, x: (p[:, 0] - x).abs().mean().item(), r"a tensor that depends on the predictions.*float"),
        (lambda p, x: (p.detach()[:, 0] - x).abs().mean(), "one without a gradient"),
        (nn.NLLLoss(), "NLLLoss"),
        (lambda p: p.mean(), r"criterion\(predictions, targets\)"),
    ],
)
def test_what_cannot_be_a_loss_is_refused(loss: object, words: str) -> None:
    network, y = nn.Linear(3, 1), torch.rand(20, 3)
    with pytest.raises((InvalidTypeError, InvalidValueError), match=words):
        tl.train(network, (y, y.sum(1)), loss=loss, steps=1, progress=False)  # type: ignore[arg-type]


def test_training_reports_the_criterion_of_the_user() -> None:
    torch.manual_seed(0)
    network, y = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2)), torch.rand(200, 3)
    x = torch.stack([y.sum(1), y[:, 0] * y[:, 1]], 1)
    result = tl.train(network, (y, x), validation=(y, x), loss=nn.MSELoss(), steps=300, progress=False)
    with torch.no_grad():
        assert result.history[-1]["metrics"]["loss"] == pytest.approx(float(F.mse_loss(network(y), x)), rel=1e-3)
    assert float(F.mse_loss(network(y), x).detach()) < 0.01


def test_segmentation_needs_no_loss() -> None:
    torch.manual_seed(0)
    network, y = nn.Conv2d(1, 2, 3, padding=1), torch.rand(64, 1, 8, 8)
    labels = (y[:, 0] > 0.5).long()
    result = tl.train(network, (y, labels), steps=200, progress=False)
    assert result.history[-1]["loss"] < 0.2


def test_predictions_and_targets_may_differ_in_shape() -> None:
    """Mean and spread of a normal distribution, and labels that do not count."""
    torch.manual_seed(0)
    y = torch.rand(200, 2)
    x = y.sum(1, keepdim=True) + 0.1 * torch.randn(200, 1)

    def likelihood(p: Tensor, x: Tensor) -> Tensor:
        return F.gaussian_nll_loss(p[:, :1], x, p[:, 1:].exp())

    network = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    tl.train(network, (y, x), loss=likelihood, steps=400, progress=False)
    spread = network(y)[:, 1].mul(0.5).exp()
    assert float(spread.detach().median()) == pytest.approx(0.1, rel=0.5)
    labels = (y[:, 0] > 0.5).long()
    labels[:20] = -100
    result = tl.train(
        nn.Linear(2, 2), (y, labels), loss=nn.CrossEntropyLoss(weight=torch.ones(2)), steps=50, progress=False
    )
    assert result.steps == 50


def test_lifted_solvers_refuse_what_has_no_proximal_map() -> None:
    network, y = tl.networks.MLP([3, 4, 1]), torch.rand(20, 3)
    data = (y, y.sum(1, keepdim=True))
    with pytest.raises(InvalidValueError, match="SquaredError"):
        tl.train(network, data, loss=nn.L1Loss(), lifting=tl.liftings.Bregman(0.1), steps=2, progress=False)
    result = tl.train(network, data, loss=nn.MSELoss(), lifting=tl.liftings.Bregman(0.1), steps=5, progress=False)
    assert result.steps == 5
