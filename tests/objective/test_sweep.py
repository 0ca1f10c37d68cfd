"""The backward sweep: its limit, its reach where back-propagation is blind, its cost and its bad input."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from contracts.network_cases import CASES, Case
from torchlift import liftings, losses, networks, prox
from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.networks import Network
from torchlift.objective import Objective
from torchlift.objective.nudge import CHUNK, two_sided
from torchlift.objective.sweep import Nudge, NudgeState, backward_sweep
from torchlift.objective.taped_sweep import TapedSweep
from torchlift.operators import Context
from torchlift.solvers.state import state_from_parts, state_to_parts

TINY = Nudge(fixed=1e-5)


def _randn(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def _mlp(widths: list[int], activation: prox.ProximalActivation, **options: bool) -> networks.MLP:
    generator = torch.Generator().manual_seed(0)
    return networks.MLP(widths, activation, dtype=torch.float64, generator=generator, **options)


def _back_propagation(network: Network, loss: losses.Loss, y: Tensor, x: Tensor, context: Context = None) -> dict:
    return Objective(network, liftings.Conventional(), loss).gradients(y, x, context=context).parameters


def _error(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest relative difference of a parameter's gradient."""
    assert found.keys() == expected.keys()
    assert any(bool(grad.any()) for grad in expected.values())
    pairs = [(found[name], grad) for name, grad in expected.items()]
    assert all(one.shape == two.shape for one, two in pairs)
    return max(float((one - two).norm() / two.norm().clamp(min=1e-12)) for one, two in pairs)


def _labels(count: int, classes: int) -> Tensor:
    return torch.arange(count) % classes


class TestLimit:
    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_every_network_reaches_back_propagation(self, case: Case) -> None:
        """MLP, ResNet, Runge–Kutta, LISTA and primal-dual with thresholds and steps, convolutions, masks."""
        network, context = case.build(), case.context()
        y = case.input(network)
        x, loss = _randn(1, 3, *network.out_shape), losses.SquaredError()
        expected = _back_propagation(network, loss, y, x, context)
        found = backward_sweep(network, loss, y, x, TINY, context=context)
        assert _error(found.gradients, expected) < 1e-6
        assert float(found.loss) == pytest.approx(float(loss.value(network(y, context), x).mean().detach()))
        assert torch.equal(found.output, network(y, context).detach())
        assert not any(tensor.requires_grad for tensor in (found.loss, found.output, *found.gradients.values()))

    @pytest.mark.parametrize("widths", [[5, 7, 7, 7, 3], [5, 8, 6, 4, 3]], ids=["stacked", "unequal"])
    @pytest.mark.parametrize(
        "activation",
        [prox.Tanh(), prox.LeakyReLU(0.2), prox.SoftThreshold(0.05), prox.Softmax(), prox.L2Ball(0.5)],
        ids=lambda a: type(a).__name__,
    )
    def test_cross_entropy(self, widths: list[int], activation: prox.ProximalActivation) -> None:
        network, loss = _mlp(widths, activation), losses.CrossEntropy()
        y, x = _randn(0, 6, 5), _labels(6, 3)
        expected = _back_propagation(network, loss, y, x)
        assert _error(backward_sweep(network, loss, y, x, TINY).gradients, expected) < 1e-6

    def test_the_error_falls_with_the_square_of_the_nudge(self) -> None:
        network, loss = _mlp([5, 7, 7, 3], prox.Tanh()), losses.SquaredError()
        y, x = _randn(0, 6, 5), _randn(1, 6, 3)
        expected = _back_propagation(network, loss, y, x)
        errors = [_error(backward_sweep(network, loss, y, x, Nudge(gamma=g)).gradients, expected) for g in (0.1, 0.01)]
        assert errors[0] / errors[1] == pytest.approx(100, rel=0.1)

    def test_thresholds_and_steps_have_gradients_of_their_own(self) -> None:
        """The limit test would pass on zeros if the learned scalars had none."""
        for name in ("lista-blur", "primal-dual-mask"):
            case = next(case for case in CASES if case.name == name)
            network = case.build()
            y, x = case.input(network), _randn(1, 3, *network.out_shape)
            found = backward_sweep(network, losses.SquaredError(), y, x, TINY, context=case.context()).gradients
            scalars = [grad for key, grad in found.items() if key.endswith(".log")]
            assert len(scalars) >= 2 and all(bool((grad.abs() > 1e-6).all()) for grad in scalars)

    def test_rows_in_chunks_change_nothing(self) -> None:
        """Layers larger than a chunk, elementwise and groupwise."""
        for activation in (prox.Tanh(), prox.Softmax()):
            network, loss = _mlp([5, 64, 64, 3], activation), losses.SquaredError()
            batch = 2 * CHUNK // 64 + 3
            y, x = _randn(0, batch, 5), _randn(1, batch, 3)
            expected = _back_propagation(network, loss, y, x)
            assert _error(backward_sweep(network, loss, y, x, TINY).gradients, expected) < 1e-6

    @pytest.mark.parametrize(
        "activation",
        [prox.GroupSoftThreshold(0.2, dim=0), prox.GroupSoftThreshold(0.2, dim=1), prox.ReLU()],
        ids=["along samples", "within samples", "elementwise"],
    )
    def test_chunks_never_cut_a_group(self, activation: prox.ProximalActivation) -> None:
        above, below = _randn(0, CHUNK // 16 + 3, 40), _randn(1, CHUNK // 16 + 3, 40)
        expected = activation(above) - activation(below)
        assert torch.equal(two_sided(activation, above, below), expected)

    def test_frozen_parameters_get_none(self) -> None:
        network = _mlp([5, 7, 7, 3], prox.Tanh())
        network.get_parameter("hidden.0.linear.weight").requires_grad_(False)
        y, x, loss = _randn(0, 6, 5), _randn(1, 6, 3), losses.SquaredError()
        found = backward_sweep(network, loss, y, x, TINY).gradients
        assert "hidden.0.linear.weight" not in found
        assert _error(found, _back_propagation(network, loss, y, x)) < 1e-6

    def test_inputs_and_parameters_are_left_alone(self) -> None:
        network, loss = _mlp([5, 7, 7, 3], prox.ReLU()), losses.SquaredError()
        y, x = _randn(0, 6, 5), _randn(1, 6, 3)
        before = [tensor.clone() for tensor in (y, x, *network.parameters())]
        first = backward_sweep(network, loss, y, x)
        again = backward_sweep(network, loss, y, x)
        assert all(torch.equal(a, b) for a, b in zip(before, (y, x, *network.parameters()), strict=True))
        assert all(torch.equal(grad, again.gradients[name]) for name, grad in first.gradients.items())


class TestMemory:
    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_nothing_outlives_a_sweep(self, case: Case) -> None:
        """The tape holds what its nodes need; if that held the tape again, every step would leak its batch."""
        network, context = case.build(), case.context()
        sweep = TapedSweep(network, case.input(network), context, Nudge(), torch.ones(network.depth).double(), set())
        sweep.gradients(torch.ones_like(sweep.output), dict(network.named_parameters()))
        alive = [weakref.ref(sweep), *map(weakref.ref, sweep.u[1:])]
        del sweep
        assert [ref() for ref in alive] == [None] * len(alive)


class TestLayers:
    def test_records_hold_what_the_gradients_are_made_of(self) -> None:
        network, loss = _mlp([5, 7, 7, 7, 3], prox.Tanh()), losses.SquaredError()
        y, x = _randn(0, 6, 5), _randn(1, 6, 3)
        found = backward_sweep(network, loss, y, x)
        inputs = network.states(y).u
        assert [layer.index for layer in found.layers] == [0, 0, 1, 0]
        for layer, u in zip(found.layers, inputs, strict=True):
            torch.testing.assert_close(layer.inputs, u.detach(), rtol=0, atol=0)
            weight = found.gradients[layer.weight_name][layer.index]
            torch.testing.assert_close(layer.residual.T @ layer.inputs / 6, weight, rtol=0, atol=1e-14)
            assert layer.bias_name is not None
            torch.testing.assert_close(
                layer.residual.mean(0), found.gradients[layer.bias_name][layer.index], rtol=0, atol=1e-14
            )
        # The output's residual is the gradient of each sample's loss, without 1/B.
        torch.testing.assert_close(found.layers[-1].residual, network(y).detach() - x, rtol=0, atol=1e-14)

    def test_layers_without_bias_name_none(self) -> None:
        network = _mlp([5, 7, 3], prox.Tanh(), bias=False)
        found = backward_sweep(network, losses.SquaredError(), _randn(0, 6, 5), _randn(1, 6, 3))
        assert [layer.bias_name for layer in found.layers] == [None, None]

    def test_a_dense_head_after_convolutions_is_recorded(self) -> None:
        modules = nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(18, 4), nn.Tanh(), nn.Linear(4, 2)
        ).double()
        network, loss = networks.lift(modules, (1, 5, 5)), losses.CrossEntropy()
        y, x = _randn(0, 6, 1, 5, 5), _labels(6, 2)
        found = backward_sweep(network, loss, y, x, TINY)
        assert [tuple(layer.inputs.shape) for layer in found.layers] == [(6, 4)]
        assert _error(found.gradients, _back_propagation(network, loss, y, x)) < 1e-6


def _asleep(activation: prox.ProximalActivation) -> tuple[networks.MLP, Tensor, Tensor]:
    """A network whose hidden units are all just inside the flat part of σ."""
    network = _mlp([4, 6, 2], activation)
    with torch.no_grad():
        network.get_parameter("hidden.0.linear.weight").mul_(0.01)
        network.get_parameter("hidden.0.bias").fill_(-0.002)
    return network, _randn(0, 20, 4).abs() * 0.01, _randn(1, 20, 2)


class TestFlatParts:
    @pytest.mark.parametrize("activation", [prox.ReLU(), prox.SoftThreshold(0.003)], ids=repr)
    def test_a_dead_unit_still_gets_a_signal(self, activation: prox.ProximalActivation) -> None:
        network, y, x = _asleep(activation)
        loss = losses.SquaredError()
        assert not network.states(y).z[0].any()
        expected = _back_propagation(network, loss, y, x)["hidden.0.linear.weight"]
        found = backward_sweep(network, loss, y, x).gradients["hidden.0.linear.weight"]
        assert not expected.any(), "back-propagation is blind here"
        assert bool((found.abs().amax(2) > 0).all()), "every unit learns"
        # and in the direction in which an active unit would
        residual = network(y).detach() - x
        signal = (residual @ network.get_parameter("output.0.linear.weight")[0].detach()).T @ y
        assert float(F.cosine_similarity(signal.flatten(), found.flatten(), dim=0)) > 0.5

    def test_the_multiplier_grows_until_the_layer_wakes(self) -> None:
        """Twice as far each time, and back by 1.2 once more than a tenth of the residuals differ from zero."""
        network, y, x = _asleep(prox.SoftThreshold(0.5))
        loss, state, seen, shares = losses.SquaredError(), None, [], []
        for _ in range(12):
            found = backward_sweep(network, loss, y, x, state=state)
            state = found.state
            seen.append(float(state.multipliers[0]))
            shares.append(float((found.layers[0].residual != 0).double().mean()))
        awake = next(k for k, share in enumerate(shares) if share >= 0.1)
        assert awake > 3
        assert seen[:awake] == [2.0 ** (k + 1) for k in range(awake)]
        assert seen[awake] == pytest.approx(2.0**awake / 1.2)
        before = 1.0
        for share, after in zip(shares, seen, strict=True):
            assert after == pytest.approx(2 * before if share < 0.1 else max(1.0, before / 1.2))
            before = after

    def test_the_nudge_has_the_stated_size(self) -> None:
        """Recovered from σ(v ± d) of a soft-threshold that is flat on one side of each nudge only."""
        network, loss = _mlp([4, 6, 2], prox.ReLU()), losses.SquaredError()
        y, x = _randn(0, 20, 4), _randn(1, 20, 2)
        nudge = Nudge(gamma=0.7, floor=0.01)
        residual = backward_sweep(network, loss, y, x, nudge, NudgeState(_ones(1) * 3)).layers[0].residual
        v = network.states(y).v[0].detach()
        signal = (network(y).detach() - x) @ network.get_parameter("output.0.linear.weight")[0].detach()
        size = 3 * 0.7 * float(v.std(correction=0)) / float(signal.square().mean().sqrt())
        expected = (torch.relu(v + size * signal) - torch.relu(v - size * signal)) / (2 * size)
        torch.testing.assert_close(residual, expected, rtol=0, atol=1e-12)

    def test_the_spread_has_a_floor(self) -> None:
        network, y, x = _asleep(prox.ReLU())
        loss = losses.SquaredError()
        small, large = (
            backward_sweep(network, loss, y, x, Nudge(floor=f)).layers[0].residual.ne(0).sum() for f in (1e-9, 1.0)
        )
        assert int(small) < int(large)

    def test_no_signal_means_no_growth_and_no_nan(self) -> None:
        network, y, _ = _asleep(prox.ReLU())
        x = network(y).detach()
        found = backward_sweep(network, losses.SquaredError(), y, x, state=NudgeState(_ones(1) * 4))
        assert not any(bool(grad.any()) for grad in found.gradients.values())
        assert float(found.state.multipliers[0]) == pytest.approx(4 / 1.2)

    def test_growth_is_limited_and_fixed_nudges_do_not_adapt(self) -> None:
        network, y, x = _asleep(prox.SoftThreshold(1e6))
        loss, start = losses.SquaredError(), NudgeState(_ones(1) * 5)
        assert float(backward_sweep(network, loss, y, x, Nudge(limit=6), start).state.multipliers) == 6
        assert float(backward_sweep(network, loss, y, x, TINY, start).state.multipliers) == 5

    def test_a_saved_state_continues_identically(self) -> None:
        network, y, x = _asleep(prox.SoftThreshold(0.5))
        loss = losses.SquaredError()
        state = backward_sweep(network, loss, y, x).state
        tensors, numbers = state_to_parts(state)
        restored = state_from_parts(NudgeState(_ones(1)), {k: t.clone() for k, t in tensors.items()}, numbers)
        one, two = (backward_sweep(network, loss, y, x, state=s) for s in (state, restored))
        assert torch.equal(one.state.multipliers, two.state.multipliers)
        assert float(one.state.multipliers) == 4.0
        assert all(torch.equal(one.gradients[name], two.gradients[name]) for name in one.gradients)


def _ones(count: int) -> Tensor:
    return torch.ones(count, dtype=torch.float64)


class TestCost:
    @pytest.mark.parametrize("widths", [[12, 9, 9, 9, 4], [12, 7, 4]], ids=["stacked", "unequal"])
    def test_matrix_products_are_those_of_back_propagation(self, widths: list[int]) -> None:
        """Every mm, addmm and bmm that torch dispatches, in floating-point operations."""
        network, loss = _mlp(widths, prox.ReLU()), losses.CrossEntropy()
        y, x = _randn(0, 8, 12), _labels(8, 4)
        with FlopCounterMode(display=False) as ours:
            backward_sweep(network, loss, y, x)
        with FlopCounterMode(display=False) as theirs:
            output = network(y)
            torch.autograd.grad(F.cross_entropy(output, x), list(network.parameters()))
        layers = list(itertools.pairwise(widths))
        products = sum(a * b for a, b in layers) * 2 + sum(a * b for a, b in layers[1:])
        assert ours.get_total_flops() == theirs.get_total_flops() == 2 * 8 * products

    def test_a_dense_chain_needs_no_tape(self) -> None:
        network, loss = _mlp([12, 9, 9, 4], prox.ReLU()), losses.CrossEntropy()
        calls: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.autograd, "grad", lambda *_, **__: calls.append(1))
            backward_sweep(network, loss, _randn(0, 8, 12), _labels(8, 4))
        assert calls == []

    def test_single_precision_is_close_to_double(self) -> None:
        network, loss = _mlp([12, 9, 9, 4], prox.Tanh()), losses.CrossEntropy()
        y, x = _randn(0, 8, 12), _labels(8, 4)
        exact = backward_sweep(network, loss, y, x).gradients
        found = backward_sweep(network.float(), loss, y.float(), x).gradients
        assert all(grad.dtype == torch.float32 for grad in found.values())
        assert _error({name: grad.double() for name, grad in found.items()}, exact) < 1e-4


NETWORK = _mlp([4, 5, 2], prox.ReLU())
LOSS = losses.SquaredError()
Y, X = _randn(0, 3, 4), _randn(1, 3, 2)

BAD: list[tuple[Callable[[], object], list[str]]] = [
    (lambda: Nudge(gamma=0), ["Nudge gamma", "> 0", "0"]),
    (lambda: Nudge(floor=-1.0), ["Nudge floor", "> 0", "-1"]),
    (lambda: Nudge(share=1.5), ["Nudge share", "[0, 1]", "1.5"]),
    (lambda: Nudge(growth=0.5), ["Nudge growth", ">= 1", "0.5"]),
    (lambda: Nudge(relax=0.9), ["Nudge relax", ">= 1", "0.9"]),
    (lambda: Nudge(limit=0.0), ["Nudge limit", ">= 1", "0"]),
    (lambda: Nudge(fixed=0.0), ["Nudge fixed", "> 0", "0"]),
    (lambda: replace(Nudge(), gamma="a"), ["Nudge gamma", "real number", "str"]),
    (lambda: backward_sweep(nn.Linear(4, 2), LOSS, Y, X), ["network", "Network", "Linear"]),
    (lambda: backward_sweep(NETWORK, nn.MSELoss(), Y, X), ["loss", "Loss", "MSELoss"]),
    (lambda: backward_sweep(NETWORK, LOSS, Y, X, 0.1), ["nudge", "Nudge", "float"]),
    (lambda: backward_sweep(NETWORK, LOSS, Y[:, :3], X), ["input", "(batch, 4)", "(3, 3)"]),
    (lambda: backward_sweep(NETWORK, LOSS, Y.float(), X), ["input", "float64", "float32"]),
    (lambda: backward_sweep(NETWORK, LOSS, Y, X[:2]), ["target", "(3, 2)", "(2, 2)"]),
    (lambda: backward_sweep(NETWORK, LOSS, Y, X, state=_ones(1)), ["state", "NudgeState", "Tensor"]),
    (lambda: backward_sweep(NETWORK, LOSS, Y, X, state=NudgeState(_ones(3))), ["1 multipliers", "3"]),
    (lambda: backward_sweep(NETWORK, losses.Target(), Y, X), ["Target"]),
]


@pytest.mark.parametrize(("call", "words"), BAD, ids=range(len(BAD)))
def test_bad_input_is_refused(call: Callable[[], object], words: list[str]) -> None:
    with pytest.raises((InvalidValueError, InvalidTypeError)) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value
