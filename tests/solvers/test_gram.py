"""The Gram-preconditioned implicit step on layers whose best parameters are known."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.solvers.gram import ATTEMPTS, GramState, GramStep, GramUpdate
from torchlift.solvers.state import state_from_parts, state_to_parts

PLAIN = GramStep(step=1.0, damping=0.1, momentum=0.0, limit=None, refresh=1)
"""No momentum, no limit, always a new metric: the minimiser of the majoriser itself."""


def _randn(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def _regression(batch: int, n: int = 6, m: int = 3, offset: float = 2.0) -> tuple[Tensor, Tensor]:
    """Inputs with a mean far from zero and very different scales, and targets of an affine map."""
    x = _randn(0, batch, n) * torch.logspace(0, -2, n, dtype=torch.float64) + offset
    return x, x @ _randn(1, n, m) + _randn(2, m) + 0.1 * _randn(3, batch, m)


def _update(rule: GramStep, state: GramState, w: Tensor, b: Tensor | None, x: Tensor, t: Tensor) -> GramUpdate:
    """The step of half the squared error."""
    out = x @ w.T if b is None else x @ w.T + b
    return rule.update(state, w, b, x, out - t)


def _objective(rule: GramStep, metric: Tensor, mean: Tensor, x: Tensor, r: Tensor, dw: Tensor, db: Tensor) -> Tensor:
    """The documented objective of a step, written out."""
    moved = x @ dw.T + db
    linear = ((r * moved).sum() + 0.5 * moved.square().sum()) / len(x)
    c = db + dw @ mean
    return linear + ((dw @ metric * dw).sum() + c.square().sum()) / (2 * rule.step)


class TestExact:
    @pytest.mark.parametrize("batch", [4, 40], ids=["by samples", "by features"])
    def test_without_an_average_one_step_is_ridge_regression(self, batch: int) -> None:
        x, t = _regression(batch)
        rule = replace(PLAIN, decay=1.0, damping=0.7, step=2.5)
        w, b = torch.zeros(3, 6, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        found = _update(rule, rule.init(w), w, b, x, t)
        assert found.bias is not None
        centred = x - x.mean(0)
        ridge = 0.7 * float(centred.square().mean()) / 2.5
        exact = torch.linalg.solve(
            centred.T @ centred / batch + ridge * torch.eye(6, dtype=torch.float64), centred.T @ t / batch
        )
        torch.testing.assert_close(found.weight, exact.T, rtol=0, atol=1e-10)
        # The intercept at the mean has the proximal weight 1/τ of its own.
        at_mean = found.bias + found.weight @ x.mean(0)
        torch.testing.assert_close(at_mean, t.mean(0) / (1 + 1 / 2.5), rtol=0, atol=1e-10)

    @pytest.mark.parametrize("batch", [4, 40], ids=["by samples", "by features"])
    @pytest.mark.parametrize("centring", [True, False])
    def test_a_step_minimises_its_objective(self, batch: int, centring: bool) -> None:
        x, t = _regression(batch)
        rule = replace(PLAIN, centring=centring, step=0.8, decay=0.6)
        w, b = _randn(4, 3, 6), _randn(5, 3)
        state = _update(rule, rule.init(w), w, b, x.flip(0) * 0.5, t).state
        found = _update(rule, state, w, b, x, t)
        mean = rule._mean(found.state.mean, 2)[0] if centring else torch.zeros(6, dtype=torch.float64)
        metric = rule._metric(found.state)[0] + found.state.ridge * torch.eye(6, dtype=torch.float64)
        r = x @ w.T + b - t

        def value(dw: Tensor, db: Tensor) -> Tensor:
            return _objective(rule, metric, mean, x, r, dw, db)

        assert found.bias is not None
        dw, db = found.weight.clone().requires_grad_(), found.bias.clone().requires_grad_()
        grads = torch.autograd.grad(value(dw, db), (dw, db))
        assert all(float(grad.abs().max()) < 1e-10 for grad in grads)
        assert float(value(found.weight, found.bias)) < -1e-3, "below the value 0 of no step"

    def test_the_metric_is_the_average_of_the_batches(self) -> None:
        rule = replace(PLAIN, decay=0.75)
        w, b = _randn(4, 3, 6), _randn(5, 3)
        batches = [_randn(10 + k, 30, 6) + 1 for k in range(3)]
        state = rule.init(w)
        expected, mean, total = torch.zeros(6, 6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64), 0.0
        for x in batches:
            state = rule.update(state, w, b, x, _randn(9, 30, 3)).state
            mean, total = 0.75 * mean + 0.25 * x.mean(0), 0.75 * total + 0.25
            centred = x - mean / total
            expected = 0.75 * expected + 0.25 * centred.T @ centred / 30
        torch.testing.assert_close(rule._metric(state)[0], expected / total, rtol=0, atol=1e-12)
        inverse = torch.linalg.inv(expected / total + state.ridge * torch.eye(6, dtype=torch.float64))
        torch.testing.assert_close(state.inverse[0], inverse, rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize("biased", [True, False])
    def test_both_systems_agree(self, biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        x, t = _regression(8, n=8)
        w, b = _randn(4, 3, 8), _randn(5, 3) if biased else None
        rule = replace(PLAIN, step=3.0)
        state = _update(rule, rule.init(w), w, b, x + 0.3 * _randn(6, 8, 8), t).state
        wide = _update(rule, state, w, b, x[:7], t[:7])
        tall = _update(rule, state, w, b, x, t)
        used = []
        for name in ("_by_samples", "_by_features"):
            other = "_by_features" if name == "_by_samples" else "_by_samples"
            method = getattr(GramStep, other)
            with monkeypatch.context() as patch:
                patch.setattr(GramStep, name, lambda *a, m=method: used.append(1) or m(*a))
                again = _update(rule, state, w, b, *((x[:7], t[:7]) if name == "_by_samples" else (x, t)))
            first = wide if name == "_by_samples" else tall
            torch.testing.assert_close(again.weight, first.weight, rtol=0, atol=1e-10)
            if biased:
                torch.testing.assert_close(again.bias, first.bias, rtol=0, atol=1e-10)
        assert len(used) == 2, "each batch was solved by the system it does not choose"


def _logistic_loss(w: Tensor, b: Tensor, x: Tensor, labels: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(x @ w.T + b, labels)


class TestStability:
    @pytest.mark.parametrize("step", [1e-1, 1e0, 1e1, 1e2, 1e3])
    def test_converges_for_steps_over_four_orders(self, step: float) -> None:
        """Mini-batch least squares without noise, where explicit stochastic gradients diverge at the same steps."""
        x, _ = _regression(200)
        true_w, true_b = _randn(1, 3, 6), _randn(2, 3)
        t = x @ true_w.T + true_b
        rule = replace(PLAIN, step=step)
        w, b = torch.zeros_like(true_w), torch.zeros_like(true_b)
        explicit, state = torch.zeros_like(true_w), rule.init(w)
        start = float((x @ w.T + b - t).square().mean())
        for k in range(300):
            rows = torch.arange(200)[k % 10 :: 10]
            found = _update(rule, state, w, b, x[rows], t[rows])
            state, w, b = found.state, w + found.weight, b + found.bias
            residual = x[rows] @ explicit.T + true_b - t[rows]
            explicit = explicit - step * residual.T @ x[rows] / len(rows)
        assert float((x @ w.T + b - t).square().mean()) < 1e-3 * start
        assert not float((x @ explicit.T + true_b - t).square().mean()) < start, "explicit steps diverge"

    @pytest.mark.parametrize("batch", [5, 50])
    def test_a_stale_covariance_does_not_diverge(self, batch: int) -> None:
        """A hundredth of the true metric, kept for ever: the batch in the system takes its place."""
        x, t = _regression(batch)
        rule = replace(PLAIN, refresh=10**6)
        w, b = torch.zeros(3, 6, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        state = _update(rule, rule.init(w), w, b, x, t).state
        stale = replace(state, covariance=state.covariance / 100, ridge=state.ridge / 100, inverse=state.inverse * 100)
        metric = rule._metric(stale)[0] + stale.ridge * torch.eye(6, dtype=torch.float64)
        centred = x - x.mean(0)
        explicit = torch.linalg.eigvalsh(torch.linalg.solve(metric, centred.T @ centred / batch)).max()
        assert float(explicit) > 2, "a step without the batch in its system would diverge"
        values = []
        for _ in range(30):
            values.append(float((x @ w.T + b - t).square().mean()))
            found = _update(rule, stale, w, b, x, t)
            w, b = w + found.weight, b + found.bias
        assert all(after <= before * (1 + 1e-12) for before, after in itertools.pairwise(values))
        assert values[-1] < 0.05 * values[0]

    def test_every_step_decreases_a_logistic_loss(self) -> None:
        """Cross-entropy has curvature ½ ≤ 1, so the majoriser holds, and full batches decrease the loss itself."""
        x, _ = _regression(60)
        labels = (x @ _randn(1, 6, 4)).argmax(1)
        w, b = _randn(4, 4, 6), _randn(5, 4)
        for step in (0.1, 10.0, 1000.0):
            rule = replace(PLAIN, step=step)
            state, at = rule.init(w), (w, b)
            losses = [float(_logistic_loss(*at, x, labels))]
            for _ in range(15):
                residual = torch.softmax(x @ at[0].T + at[1], 1) - torch.eye(4, dtype=torch.float64)[labels]
                found = rule.update(state, at[0], at[1], x, residual)
                state, at = found.state, (at[0] + found.weight, at[1] + found.bias)
                losses.append(float(_logistic_loss(*at, x, labels)))
            assert all(after < before for before, after in itertools.pairwise(losses))

    def test_the_limit_holds_with_momentum(self) -> None:
        x, t = _regression(20)
        rule = GramStep(step=100.0, limit=0.01)
        w, b = _randn(4, 3, 6), _randn(5, 3)
        state = rule.init(w)
        for _ in range(5):
            found = _update(rule, state, w, b, x, 50 * t)
            assert float(found.weight.norm() / w.norm()) == pytest.approx(0.01, rel=1e-9)
            state, w, b = found.state, w + found.weight, b + found.bias

    def test_the_limit_scales_weight_and_bias_alike_and_only_down(self) -> None:
        x, t = _regression(20)
        w, b = _randn(4, 3, 6), _randn(5, 3)
        free = _update(PLAIN, PLAIN.init(w), w, b, x, t)
        share = float(free.weight.norm() / w.norm())
        for limit, factor in ((share / 4, 0.25), (share * 4, 1.0)):
            found = _update(replace(PLAIN, limit=limit), PLAIN.init(w), w, b, x, t)
            assert free.bias is not None
            torch.testing.assert_close(found.weight, factor * free.weight, rtol=1e-12, atol=0)
            torch.testing.assert_close(found.bias, factor * free.bias, rtol=1e-12, atol=0)

    def test_momentum_adds_the_steps_up(self) -> None:
        x, t = _regression(20)
        w, b = _randn(4, 3, 6), _randn(5, 3)
        rule = replace(PLAIN, momentum=0.5)
        first = _update(rule, rule.init(w), w, b, x, t)
        second = _update(rule, first.state, w, b, x, t)
        again = _update(PLAIN, first.state, w, b, x, t)
        torch.testing.assert_close(second.weight, again.weight + 0.5 * first.weight, rtol=0, atol=1e-12)


class TestCentring:
    def _train(self, shift: float, rule: GramStep, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        x, t = _regression(60, offset=0.0)
        w, b = _randn(4, 3, 6), _randn(5, 3)
        b = b - shift * w.sum(1)  # the same predictions at the start
        state = rule.init(w)
        for k in range(6):
            rows = slice(batch * k % 60, batch * k % 60 + batch)
            found = _update(rule, state, w, b, x[rows] + shift, t[rows])
            state, w, b = found.state, w + found.weight, b + found.bias
        return w, b, (x + shift) @ w.T + b

    @pytest.mark.parametrize("batch", [5, 10], ids=["by samples", "by features"])
    def test_a_shift_of_the_inputs_changes_only_the_bias(self, batch: int) -> None:
        rule = GramStep(momentum=0.6, limit=0.2)
        (w, b, out), (w_shifted, b_shifted, out_shifted) = (self._train(s, rule, batch) for s in (0.0, 7.0))
        torch.testing.assert_close(w_shifted, w, rtol=0, atol=1e-8)
        torch.testing.assert_close(out_shifted, out, rtol=0, atol=1e-8)
        assert float((b - b_shifted).abs().max()) > 0.1

    def test_without_centring_it_does_not(self) -> None:
        rule = GramStep(momentum=0.6, centring=False)
        assert float((self._train(0.0, rule, 10)[2] - self._train(7.0, rule, 10)[2]).abs().max()) > 1e-2


class TestStacks:
    @pytest.mark.parametrize("batch", [4, 30], ids=["by samples", "by features"])
    def test_a_stack_equals_its_layers(self, batch: int) -> None:
        rule = GramStep(refresh=2)
        w, b = _randn(0, 3, 5, 6), _randn(1, 3, 5)
        stack, each = rule.init(w), [rule.init(w[j]) for j in range(3)]
        for k in range(3):
            x, r = _randn(20 + k, 3, batch, 6) + 1, _randn(30 + k, 3, batch, 5)
            together = rule.update(stack, w, b, x, r)
            stack = together.state
            assert together.bias is not None
            for j in range(3):
                alone = rule.update(each[j], w[j], b[j], x[j], r[j])
                each[j] = alone.state
                torch.testing.assert_close(together.weight[j], alone.weight, rtol=0, atol=1e-12)
                torch.testing.assert_close(together.bias[j], alone.bias, rtol=0, atol=1e-12)

    def test_refresh_keeps_the_metric_between(self) -> None:
        rule = replace(PLAIN, refresh=3)
        w = _randn(0, 5, 6)
        states = [rule.init(w)]
        for k in range(7):
            states.append(rule.update(states[-1], w, None, _randn(20 + k, 9, 6), _randn(30 + k, 9, 5)).state)
        changed = [not torch.equal(a.inverse, b.inverse) for a, b in itertools.pairwise(states)]
        assert changed == [True, False, False, True, False, False, True]


class TestState:
    def test_a_saved_state_continues_with_identical_steps(self) -> None:
        x, t = _regression(20)
        w, b = _randn(4, 3, 6), _randn(5, 3)
        rule = GramStep(refresh=2)
        state = rule.init(w)
        for _ in range(3):
            state = _update(rule, state, w, b, x, t).state
        tensors, numbers = state_to_parts(state)
        restored = state_from_parts(rule.init(w), {k: v.clone() for k, v in tensors.items()}, dict(numbers))
        one, two = _update(rule, state, w, b, x, 2 * t), _update(rule, restored, w, b, x, 2 * t)
        assert torch.equal(one.weight, two.weight)
        assert one.state.count == two.state.count == 4

    def test_the_given_state_is_left_alone(self) -> None:
        x, t = _regression(20)
        w, b = _randn(4, 3, 6), _randn(5, 3)
        rule = GramStep()
        state = _update(rule, rule.init(w), w, b, x, t).state
        before = {name: tensor.clone() for name, tensor in state_to_parts(state)[0].items()}
        _update(rule, state, w, b, x, t)
        assert all(torch.equal(before[name], tensor) for name, tensor in state_to_parts(state)[0].items())


class TestSafeguards:
    @pytest.mark.parametrize("batch", [4, 40])
    def test_a_singular_metric_in_single_precision_raises_the_damping(self, batch: int) -> None:
        """Eight equal columns and a damping below the rounding of float32."""
        x = (_randn(0, batch, 1).float() * 100).repeat(1, 8)
        w, b = torch.zeros(3, 8), torch.zeros(3)
        rule = replace(PLAIN, damping=1e-12)
        found = rule.update(rule.init(w), w, b, x, _randn(1, batch, 3).float())
        assert found.ok
        assert 0 < found.raised < ATTEMPTS
        assert float(found.state.ridge) > 1e-12 * float(x.square().mean())
        assert bool(torch.isfinite(found.weight).all())

    def test_constant_inputs_move_only_the_bias(self) -> None:
        w, b, x = _randn(0, 3, 4), _randn(1, 3), torch.full((9, 4), 2.0, dtype=torch.float64)
        found = PLAIN.update(PLAIN.init(w), w, b, x, torch.ones(9, 3, dtype=torch.float64))
        assert found.ok and found.bias is not None
        assert float(found.weight.abs().max()) == 0
        torch.testing.assert_close(found.bias, torch.full((3,), -0.5, dtype=torch.float64))

    @pytest.mark.parametrize("where", ["inputs", "residual"])
    @pytest.mark.parametrize("batch", [4, 40])
    def test_nan_is_reported_and_moves_nothing(self, where: str, batch: int) -> None:
        x, t = _regression(batch)
        w, b = _randn(4, 3, 6), _randn(5, 3)
        state = PLAIN.init(w)
        (x if where == "inputs" else t)[1, 2] = torch.nan
        found = _update(PLAIN, state, w, b, x, t)
        assert not found.ok
        assert found.state is state
        assert found.bias is not None and not found.weight.any() and not found.bias.any()

    def test_zero_weights_are_not_limited(self) -> None:
        x, t = _regression(20)
        w, b = torch.zeros(3, 6, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        rule = GramStep(limit=1e-3)
        assert float(_update(rule, rule.init(w), w, b, x, t).weight.norm()) > 0.1


W, B, X, R = _randn(0, 3, 4), _randn(1, 3), _randn(2, 5, 4), _randn(3, 5, 3)
RULE = GramStep()
STATE = RULE.init(W)

BAD: list[tuple[Callable[[], object], list[str]]] = [
    (lambda: GramStep(step=0.0), ["GramStep step", "> 0", "0.0"]),
    (lambda: GramStep(step="fast"), ["GramStep step", "real number", "str"]),
    (lambda: GramStep(decay=1.5), ["GramStep decay", "[0, 1]", "1.5"]),
    (lambda: GramStep(decay=-0.1), ["GramStep decay", "[0, 1]", "-0.1"]),
    (lambda: GramStep(damping=0), ["GramStep damping", "> 0", "0"]),
    (lambda: GramStep(damping=float("nan")), ["GramStep damping", "finite", "nan"]),
    (lambda: GramStep(momentum=1.0), ["GramStep momentum", "[0, 1)", "1.0"]),
    (lambda: GramStep(centring=1), ["GramStep centring", "True or False", "int"]),
    (lambda: GramStep(limit=-1.0), ["GramStep limit", "> 0", "-1"]),
    (lambda: GramStep(refresh=0), ["GramStep refresh", ">= 1", "0"]),
    (lambda: GramStep(refresh=1.5), ["GramStep refresh", "whole number", "float"]),
    (lambda: RULE.init(W[0]), ["GramStep weight", "matrix", "(4,)"]),
    (lambda: RULE.init([[1.0]]), ["GramStep weight", "torch.Tensor", "list"]),
    (lambda: RULE.update(None, W, B, X, R), ["GramStep state", "init", "NoneType"]),
    (lambda: RULE.update(RULE.init(W.T), W, B, X, R), ["GramStep state", "(1, 3, 4)", "(1, 4, 3)"]),
    (lambda: RULE.update(STATE, W, B[:2], X, R), ["GramStep bias", "(3,)", "(2,)"]),
    (lambda: RULE.update(STATE, W, B, X[:, :3], R), ["GramStep inputs", "(batch, 4)", "(1, 5, 3)"]),
    (lambda: RULE.update(STATE, W, B, X[:0], R[:0]), ["GramStep inputs", "at least one sample"]),
    (lambda: RULE.update(STATE, W, B, X, R[:4]), ["GramStep residual", "(1, 5, 3)", "(1, 4, 3)"]),
    (lambda: RULE.update(STATE, W, B, X.float(), R), ["GramStep inputs", "float64", "float32"]),
    (lambda: RULE.update(STATE, W, B, X, R.long()), ["GramStep residual", "floating-point", "int64"]),
]


@pytest.mark.parametrize(("call", "words"), BAD, ids=range(len(BAD)))
def test_bad_input_is_refused(call: Callable[[], object], words: list[str]) -> None:
    with pytest.raises((InvalidValueError, InvalidTypeError)) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value
