"""Centred coordinates of dense layers, scaled steps in them, and rules on networks they do not serve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from torchlift import losses, networks, prox
from torchlift.core.errors import InvalidValueError
from torchlift.core.tensors import Point
from torchlift.networks import Network
from torchlift.objective import GramRule, RelativeStep, ScaledStep, SweepRule, back_propagate, backward_sweep
from torchlift.objective.centring import Mean, centre, centre_differences, mean_inputs, uncentre
from torchlift.objective.sweep import Sweep
from torchlift.solvers import AdamScaling, Cosine, GramStep, NoScaling

ALPHA = 0.1


def _randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _mlp(widths: Sequence[int] = (5, 7, 7, 7, 3), **options: bool) -> networks.MLP:
    generator = torch.Generator().manual_seed(0)
    return networks.MLP(widths, prox.Tanh(), dtype=torch.float64, generator=generator, **options)


def _data() -> tuple[Tensor, Tensor]:
    """Inputs that are far from centred."""
    return _randn(1, 6, 5) + 2, _randn(2, 6, 3)


def _sweep(network: Network, y: Tensor, x: Tensor) -> Sweep:
    return back_propagate(network, losses.SquaredError(), y, x)


def _trained(network: Network) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in network.named_parameters() if p.requires_grad}


@torch.no_grad()
def _load(network: Network, values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        network.get_parameter(name).copy_(value)


def _steps(
    rule: SweepRule, network: Network, y: Tensor, x: Tensor, count: int, share: float = 1.0
) -> dict[str, Tensor]:
    """The parameters after some steps."""
    names = list(_trained(network))
    state: Any = None
    for k in range(count):
        point = Point({"parameters": list(_trained(network).values())})
        sweep = _sweep(network, y, x)
        if k == 0:
            rule.check(names, sweep)
            state = rule.init(names, point, sweep)
        point, state = rule.move(names, point, sweep, state, k, share)
        _load(network, dict(zip(names, point.tensors, strict=True)))
    return _trained(network)


class TestCentring:
    @pytest.mark.parametrize("sweeping", [back_propagate, backward_sweep])
    def test_gradients_become_those_of_centred_inputs(self, sweeping: Any) -> None:
        network, (y, x) = _mlp(), _data()
        sweep = sweeping(network, losses.SquaredError(), y, x)
        biases = {name: grad.clone() for name, grad in sweep.gradients.items() if name.endswith("bias")}
        means = centre(sweep)
        assert len(means) == len(sweep.layers) == 4
        for layer, mean in zip(sweep.layers, means, strict=True):
            torch.testing.assert_close(mean.inputs, layer.inputs.mean(0), rtol=0, atol=1e-15)
            expected = layer.residual.T @ (layer.inputs - layer.inputs.mean(0)) / len(y)
            found = sweep.gradients[layer.weight_name][layer.index]
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
        assert all(torch.equal(sweep.gradients[name], grad) for name, grad in biases.items())

    def test_gradients_are_derivatives_in_the_new_coordinates(self) -> None:
        """Of the loss of v = W(u − ū) + c, by autograd, for the one layer whose inputs do not move."""
        network, (y, x) = _mlp((5, 3)), _data()
        W, b = (network.get_parameter(f"output.0.{name}").detach()[0] for name in ("linear.weight", "bias"))
        mean = y.mean(0)
        leaves = W.clone().requires_grad_(), (b + W @ mean).requires_grad_()
        loss = 0.5 * ((y - mean) @ leaves[0].T + leaves[1] - x).square().sum() / len(y)
        expected = torch.autograd.grad(loss, leaves)
        sweep = _sweep(network, y, x)
        centre(sweep)
        torch.testing.assert_close(sweep.gradients["output.0.linear.weight"][0], expected[0], rtol=0, atol=1e-13)
        torch.testing.assert_close(sweep.gradients["output.0.bias"][0], expected[1], rtol=0, atol=1e-13)

    def test_a_step_changes_the_function_as_in_the_new_coordinates(self) -> None:
        network, (y, x) = _mlp(), _data()
        before, sweep = _trained(network), _sweep(network, y, x)
        after = _steps(ScaledStep(ALPHA, NoScaling(), centring=True), network, y, x, 1)
        for weight_name, bias_name, i, u, residual in (vars(layer).values() for layer in sweep.layers):
            centred = u - u.mean(0)
            W = before[weight_name][i] - ALPHA * residual.T @ centred / len(y)
            c = before[bias_name][i] + before[weight_name][i] @ u.mean(0) - ALPHA * residual.mean(0)
            v = u @ after[weight_name][i].T + after[bias_name][i]
            torch.testing.assert_close(v, centred @ W.T + c, rtol=0, atol=1e-13)

    def test_differences_there_and_back(self) -> None:
        network, (y, x) = _mlp(), _data()
        means = centre(_sweep(network, y, x))
        steps = {name: torch.randn_like(value) for name, value in _trained(network).items()}
        moved = {name: step.clone() for name, step in steps.items()}
        uncentre(moved, means)
        assert not torch.allclose(moved["hidden.1.bias"], steps["hidden.1.bias"])
        centre_differences(moved, means)
        for name, step in steps.items():
            torch.testing.assert_close(moved[name], step, rtol=0, atol=1e-14)

    @pytest.mark.parametrize(
        "rule",
        [
            ScaledStep(ALPHA, NoScaling(), centring=True),
            ScaledStep(1e-2, AdamScaling(), centring=True),
            RelativeStep(),
            RelativeStep(start=1e-4),
        ],
        ids=["plain", "adam", "relative", "relative-from-little"],
    )
    def test_a_shift_of_the_inputs_changes_the_first_bias_only(self, rule: SweepRule) -> None:
        """Over many steps, so that ρ must not see the shift either."""
        (y, x), a = _data(), 5 * _randn(3, 5)
        start = _trained(_mlp())
        plain = _steps(rule, _mlp(), y, x, 15)
        shifted = _mlp()
        W = start["hidden.0.linear.weight"][0]
        _load(shifted, {"hidden.0.bias": start["hidden.0.bias"] - W @ a})
        found = _steps(rule, shifted, y + a, x, 15)
        expected = plain | {"hidden.0.bias": plain["hidden.0.bias"] - plain["hidden.0.linear.weight"][0] @ a}
        for name, value in expected.items():
            assert not torch.allclose(value, start[name], rtol=0, atol=1e-6), "it moved"
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-9)

    def test_without_centring_the_shift_is_felt(self) -> None:
        (y, x), a = _data(), 5 * _randn(3, 5)
        rule = ScaledStep(ALPHA, NoScaling())
        plain = _steps(rule, _mlp(), y, x, 1)
        shifted = _mlp()
        W, b = (shifted.get_parameter(f"hidden.0.{name}").detach() for name in ("linear.weight", "bias"))
        _load(shifted, {"hidden.0.bias": b - W[0] @ a})
        found = _steps(rule, shifted, y + a, x, 1)
        assert not torch.allclose(found["hidden.0.linear.weight"], plain["hidden.0.linear.weight"], atol=1e-3)

    def test_layers_without_a_bias_are_left_alone(self) -> None:
        network, (y, x) = _mlp(bias=False), _data()
        sweep, expected = _sweep(network, y, x), _sweep(network, y, x)
        assert centre(sweep) == ()
        assert all(torch.equal(grad, expected.gradients[name]) for name, grad in sweep.gradients.items())
        one, two = (_steps(ScaledStep(ALPHA, centring=on), _mlp(bias=False), y, x, 3) for on in (True, False))
        assert all(torch.equal(one[name], two[name]) for name in one)

    @pytest.mark.parametrize("frozen", ["hidden.1.bias", "hidden.1.linear.weight"])
    def test_layers_with_a_frozen_half_are_left_alone(self, frozen: str) -> None:
        network, (y, x) = _mlp(), _data()
        network.get_parameter(frozen).requires_grad_(False)
        sweep, expected = _sweep(network, y, x), _sweep(network, y, x)
        means = centre(sweep)
        assert [mean.weight_name for mean in means] == ["hidden.0.linear.weight", "output.0.linear.weight"]
        other = {"hidden.1.bias", "hidden.1.linear.weight"} - {frozen}
        assert all(torch.equal(sweep.gradients[name], expected.gradients[name]) for name in other)
        before = network.get_parameter(frozen).detach().clone()
        for rule in (ScaledStep(ALPHA, NoScaling(), centring=True), RelativeStep()):
            after = _steps(rule, network, y, x, 2)
            assert frozen not in after and torch.equal(network.get_parameter(frozen), before)
            assert all(bool(value.isfinite().all()) for value in after.values())


class TestScaledStep:
    def test_plain_steps_are_gradient_descent(self) -> None:
        network, (y, x) = _mlp(), _data()
        found = _steps(ScaledStep(ALPHA, NoScaling()), network, y, x, 4)
        twin = _mlp()
        optimiser = torch.optim.SGD(twin.parameters(), lr=ALPHA)
        for _ in range(4):
            optimiser.zero_grad()
            (0.5 * (twin(y) - x).square().sum() / len(y)).backward()
            optimiser.step()
        for name, value in _trained(twin).items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-14)

    @pytest.mark.parametrize("centring", [True, False])
    def test_annealing_multiplies_the_step(self, centring: bool) -> None:
        y, x = _data()
        start = _trained(_mlp())
        rule = ScaledStep(ALPHA, NoScaling(), centring=centring, anneal=True)
        ends = {share: _steps(rule, _mlp(), y, x, 1, share) for share in (1.0, 0.25, 0.0)}
        for name, value in start.items():
            assert torch.equal(ends[0.0][name], value)
            torch.testing.assert_close(ends[0.25][name] - value, 0.25 * (ends[1.0][name] - value), rtol=0, atol=1e-14)
        steady = replace(rule, anneal=False)
        assert all(torch.equal(v, ends[1.0][n]) for n, v in _steps(steady, _mlp(), y, x, 1, 0.25).items())

    def test_schedules_are_asked_for_the_step(self) -> None:
        rule = ScaledStep(Cosine(0.5, 10, 0.1))
        state = rule.init(["w"], Point({"parameters": torch.zeros(1)}), None)  # pyright: ignore[reportArgumentType]
        assert [rule.size(state, k) for k in (0, 5, 10)] == pytest.approx([0.5, 0.3, 0.1])


class TestGramRule:
    def test_annealing_multiplies_the_step_size(self) -> None:
        y, x = _data()
        annealed = _steps(GramRule(GramStep(0.4), anneal=True), _mlp(), y, x, 2, share=0.5)
        expected = _steps(GramRule(GramStep(0.2)), _mlp(), y, x, 2)
        assert all(torch.equal(value, expected[name]) for name, value in annealed.items())

    @pytest.mark.parametrize("frozen", ["hidden.1.bias", "hidden.0.linear.weight"])
    def test_frozen_layers_are_refused(self, frozen: str) -> None:
        network, (y, x) = _mlp(), _data()
        network.get_parameter(frozen).requires_grad_(False)
        with pytest.raises(InvalidValueError, match=rf"GramRule.*trained dense layers.*{frozen}.*RelativeStep"):
            _steps(GramRule(), network, y, x, 1)


@pytest.mark.parametrize("bias", [True, False])
def test_a_sweep_that_centres_on_the_way_finds_the_same(bias: bool) -> None:
    network, (y, x) = _mlp(bias=bias), _data()
    plain, centred = (backward_sweep(network, losses.SquaredError(), y, x, centred=flag) for flag in (False, True))
    assert centred.centred and not plain.centred
    moved = max(float((centred.gradients[name] - g).abs().max()) for name, g in plain.gradients.items())
    assert (moved > 1e-3) == bias, "without a bias there is nothing to centre"
    means = centre(plain), centre(centred)
    assert [mean[:3] for mean in means[0]] == [mean[:3] for mean in means[1]]
    for name, gradient in plain.gradients.items():
        torch.testing.assert_close(centred.gradients[name], gradient, rtol=1e-10, atol=1e-12)


def test_layers_without_a_mean_have_zero() -> None:
    means = [Mean("W", "b", 2, _randn(0, 4)), Mean("V", "c", 0, _randn(1, 4)), Mean("W", "b", 0, _randn(2, 4))]
    found = mean_inputs(means, "W", 3)
    assert torch.equal(found, torch.stack([means[2].inputs, torch.zeros(4).double(), means[0].inputs]))
