"""What single losses promise beyond the contract, and bad input."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.functions.losses import Absolute, CrossEntropy, Huber, SquaredError, Target

LABELS = torch.tensor([0, 2, 1])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_by_hand() -> None:
    p, x = torch.tensor([[3.0, 0.0], [1.0, 1.0]]), torch.tensor([[1.0, 0.5], [1.0, 1.0]])
    assert SquaredError().value(p, x).tolist() == [2.125, 0.0]
    assert Absolute().value(p, x).tolist() == [2.5, 0.0]
    assert Absolute().grad(p, x).tolist() == [[1.0, -1.0], [0.0, 0.0]]
    assert Huber(1.0).value(p, x).tolist() == [1.5 + 0.125, 0.0]
    assert Target().value(p, x).tolist() == [math.inf, 0.0]
    assert SquaredError().prox(p, x, 3.0).tolist() == [[1.5, 0.375], [1.0, 1.0]]
    assert Absolute().prox(p, x, 1.0).tolist() == [[2.0, 0.5], [1.0, 1.0]]
    torch.testing.assert_close(Huber(1.0).prox(p, x, 0.5), torch.tensor([[2.5, 1 / 6], [1.0, 1.0]]))
    assert torch.equal(Target().prox(p, x, 0.1), x)


@pytest.mark.parametrize("delta", [0.3, 1.0, 4.0])
def test_huber_against_torch(delta: float) -> None:
    p, x = 3 * normal(5, 2, 3), normal(5, 2, 3, seed=1)
    wanted = F.huber_loss(p, x, reduction="sum", delta=delta)
    torch.testing.assert_close(Huber(delta).value(p, x).sum(), wanted)
    assert float(Huber(delta).grad(p, x).abs().max()) == delta


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_smoothed_cross_entropy(smoothing: float) -> None:
    loss, p = CrossEntropy(smoothing), (3 * normal(3, 4)).requires_grad_()
    value = F.cross_entropy(p, LABELS, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(loss.value(p, LABELS).sum(), value)
    (gradient,) = torch.autograd.grad(value, p)
    torch.testing.assert_close(loss.grad(p.detach(), LABELS), gradient)
    for step in (0.01, 1.0, 50.0):
        q = loss.prox(p.detach(), LABELS, step)
        torch.testing.assert_close(q, p.detach() - step * loss.grad(q, LABELS), rtol=1e-11, atol=1e-11 * (1 + step))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_labels_of_any_integer_dtype(dtype: torch.dtype) -> None:
    loss, p, labels = CrossEntropy(), normal(3, 4), LABELS.to(dtype)
    loss.check((3, 4), labels)
    assert torch.equal(loss.value(p, labels), loss.value(p, LABELS))
    assert torch.equal(loss.grad(p, labels), loss.grad(p, LABELS))


def test_images_and_scalars() -> None:
    p, x = normal(5, 1, 4, 4), normal(5, 1, 4, 4, seed=1)
    for loss in (SquaredError(), Absolute(), Huber()):
        loss.check((5, 1, 4, 4), x)
        assert torch.equal(loss.value(p, x), loss.value(p.flatten(1), x.flatten(1)))
        assert torch.equal(loss.value(p[:, 0, 0, 0], x[:, 0, 0, 0]), loss.value(p[:, 0, 0, :1], x[:, 0, 0, :1]))


def test_target_forgives_rounding_only() -> None:
    x = normal(4, 3)
    assert (Target().value(x * (1 + 1e-15), x) == 0).all()
    assert (Target().value(x + 1e-9, x) == math.inf).all()
    assert (Target().value(x * math.nan, x) == math.inf).all()


CASES = [
    (lambda: Huber(0.0), InvalidValueError, ["Huber delta", "> 0", "0.0"]),
    (lambda: Huber(math.nan), InvalidValueError, ["Huber delta", "finite", "nan"]),
    (lambda: Huber("1"), InvalidTypeError, ["Huber delta", "real number", "str"]),
    (lambda: CrossEntropy(1.0), InvalidValueError, ["label_smoothing", "[0, 1)", "1.0"]),
    (lambda: CrossEntropy(-0.1), InvalidValueError, ["label_smoothing", "[0, 1)", "-0.1"]),
    (lambda: CrossEntropy(True), InvalidTypeError, ["label_smoothing", "real number", "bool"]),
    (lambda: Target().grad(normal(2, 2), normal(2, 2)), InvalidValueError, ["Target.grad", "p = x", "SquaredError()"]),
    (lambda: SquaredError().check((3, 4), torch.zeros(3, 4, dtype=torch.int64)), InvalidValueError, [".float()"]),
    (
        lambda: SquaredError().check((2, 2), torch.tensor([[0.0, 1.0], [math.nan, 0.0]])),
        InvalidValueError,
        ["target", "finite", "nan at index (1, 0)"],
    ),
    (
        lambda: CrossEntropy().check((3, 4), LABELS.double()),
        InvalidValueError,
        ["integer labels", "float64", ".long()"],
    ),
    (lambda: CrossEntropy().check((3, 4), LABELS > 0), InvalidValueError, ["integer labels", "bool"]),
    (lambda: CrossEntropy().check((3, 2), LABELS), InvalidValueError, ["labels from 0 to 1", "2 at sample 1"]),
    (lambda: CrossEntropy().check((3, 4), LABELS - 1), InvalidValueError, ["from 0 to 3", "-1 at sample 0"]),
    (lambda: CrossEntropy().check((3, 4, 2), LABELS), InvalidValueError, ["(batch, classes)", "(3, 4, 2)"]),
    (lambda: CrossEntropy().check((3, 1), LABELS), InvalidValueError, ["two classes", "(3, 1)"]),
    (lambda: CrossEntropy().check((3, 4), F.one_hot(LABELS, 4)), InvalidValueError, ["shape (3,)", "(3, 4)"]),
    (
        lambda: CrossEntropy().prox(normal(3, 4), LABELS, torch.ones(4)),
        InvalidValueError,
        ["prox step", "one for each of 3 samples", "(4,)"],
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), CASES)
def test_bad_input_is_refused_with_help(call, error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    for word in words:
        assert word in str(caught.value)


def test_values_are_read_only_when_asked() -> None:
    CrossEntropy().check((3, 2), LABELS, values=False)
    SquaredError().check((2,), torch.tensor([math.nan, 1.0]), values=False)
