"""What every loss promises. A newcomer in `LOSSES` inherits all of it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from contracts.kept import assert_all_kept
from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.functions.losses import LOSSES
from torchlift.testing.functions import ON_ITSELF, ON_VALUES, B, inside, normal
from torchlift.testing.losses import ON_TARGETS, C, has_gradient, target_for

every = pytest.mark.parametrize("name", LOSSES)
quick = settings(max_examples=15, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31 - 1)
scales = st.sampled_from([0.1, 1.0, 5.0])


@every
@quick
@given(seed=seeds, scale=scales)
def test_promises_on_values(name: str, seed: int, scale: float) -> None:
    loss = LOSSES[name].example()
    assert_all_kept(ON_VALUES, loss.at(target_for(loss, seed)), (C,), seed, scale)


@every
def test_promises(name: str) -> None:
    loss = LOSSES[name].example()
    assert_all_kept(ON_ITSELF, loss.at(target_for(loss, 1)), (C,))
    assert_all_kept(ON_TARGETS, loss)


@every
def test_examples_and_targets(name: str) -> None:
    """The checks try each loss with the targets it is for."""
    loss = LOSSES[name].example()
    assert type(loss) is LOSSES[name]
    if name != "weighted-squared-error":  # tensors are compared by identity
        assert hash(loss) == hash(LOSSES[name].example()) and loss == LOSSES[name].example()
    assert target_for(loss, 1).is_floating_point() == (name != "cross-entropy")
    assert bool((target_for(loss, 1) < 0).any()) == (name not in ("cross-entropy", "kullback-leibler"))
    assert has_gradient(loss) == (name != "target")


ORACLES = {
    "absolute": lambda p, x: C * F.l1_loss(p, x, reduction="none").mean(1),
    "cross-entropy": lambda p, x: F.nll_loss(F.log_softmax(p, 1), x, reduction="none"),
    "huber": lambda p, x: C * F.smooth_l1_loss(p, x, reduction="none", beta=1.0).mean(1),
    "kullback-leibler": lambda p, x: (
        F.poisson_nll_loss(p, x, log_input=False, full=False, eps=0, reduction="none") - x + torch.special.xlogy(x, x)
    ).sum(1),
    "squared-error": lambda p, x: C / 2 * F.mse_loss(p, x, reduction="none").mean(1),
    "weighted-squared-error": lambda p, x: 0.5 * (p - x).square() @ torch.tensor([0.5, 0, 2, 1], dtype=p.dtype),
}


@pytest.mark.parametrize("name", ORACLES)
@quick
@given(seed=seeds, scale=scales)
def test_value_and_gradient_are_those_of_torch_with_the_right_factor(name: str, seed: int, scale: float) -> None:
    loss = LOSSES[name].example()
    x = target_for(loss, seed + 1)
    p = inside(loss.at(x), normal((C,), seed, scale)).requires_grad_()
    torch.testing.assert_close(loss.value(p, x), ORACLES[name](p, x), rtol=1e-13, atol=1e-13)
    (wanted,) = torch.autograd.grad(ORACLES[name](p, x).sum(), p)
    torch.testing.assert_close(loss.grad(p.detach(), x), wanted, rtol=1e-13, atol=1e-13)


TIGHT = {
    "cross-entropy": (torch.zeros(1, 2).double(), torch.zeros(1, dtype=torch.long), [[1.0, -1.0]]),
    "huber": (torch.zeros(1, 2).double(), torch.zeros(1, 2).double(), [[1.0, -1.0]]),
    "squared-error": (torch.zeros(1, 2).double(), torch.zeros(1, 2).double(), [[1.0, -1.0]]),
    "weighted-squared-error": (torch.zeros(1, 4).double(), torch.zeros(1, 4).double(), [[0.0, 0.0, 1.0, 0.0]]),
}


@pytest.mark.parametrize("name", TIGHT)
def test_the_curvature_is_attained(name: str) -> None:
    loss, (p, x, direction) = LOSSES[name].example(), TIGHT[name]
    shift = 1e-4 * torch.tensor(direction, dtype=torch.float64)
    change = (loss.grad(p + shift, x) - loss.grad(p, x)).norm() / shift.norm()
    assert float(change) == pytest.approx(loss.curvature(), rel=1e-6)


@every
def test_the_target_is_checked(name: str) -> None:
    loss = LOSSES[name].example()
    x = target_for(loss, 1)
    for shape, target in (((B + 1, C), x), ((B, C), x[:-1]), ((B, C), x.unsqueeze(-1))):
        with pytest.raises(InvalidValueError, match=r"target: expected shape .*, got \("):
            loss.check(shape, target)
    with pytest.raises(InvalidTypeError, match=r"target: expected a torch\.Tensor, got list"):
        loss.check((B, C), x.tolist())
    with pytest.raises(InvalidValueError, match=r"prediction: expected .*at least one sample"):
        loss.check((0, C), x[:0])
