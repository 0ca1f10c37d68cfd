"""Lifted variables, their start, precision, and bad input."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from torchlift import liftings, losses, networks, prox
from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.objective import Objective
from torchlift.objective.engine import States


def _randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _mlp(widths: list[int], activation: prox.ProximalActivation | None = None) -> networks.MLP:
    generator = torch.Generator().manual_seed(0)
    return networks.MLP(widths, activation or prox.ReLU(), dtype=torch.float64, generator=generator)


class TestStates:
    def test_equal_layers_share_one_buffer_with_the_input(self) -> None:
        objective = Objective(_mlp([4, 4, 4, 4, 7, 7, 2]))
        y = _randn(0, 3, 4)
        z = objective.initialise(y)
        assert [tuple(buffer.shape) for buffer in z.buffers] == [(3, 3, 4), (2, 3, 7)]
        assert z.storage[0].shape == (4, 3, 4)
        assert torch.equal(z.storage[0][0], y)
        assert z[1].data_ptr() == z.storage[0][2].data_ptr(), "layers are views"
        assert len(z) == 5
        assert [tuple(layer.shape) for layer in z[3:]] == [(3, 7), (3, 7)]

    def test_an_input_changed_in_place_is_noticed(self) -> None:
        objective = Objective(_mlp([4, 4, 4, 2]))
        y, x = _randn(0, 3, 4), _randn(1, 3, 2)
        z = objective.initialise(y)
        y.add_(1.0)
        fresh = objective.initialise(y)
        for one, other in zip(fresh, z, strict=True):
            one.copy_(other)
        assert torch.equal(objective.value(y, x, z), objective.value(y, x, fresh))

    def test_clone_and_map(self) -> None:
        z = Objective(_mlp([4, 4, 2]), coupling=0.3).initialise(_randn(0, 3, 4))
        twin = z.clone()
        doubled = z.map(lambda part: 2 * part)
        twin[0].zero_()
        assert z[0].abs().max() > 0
        assert torch.equal(doubled[0], 2 * z[0])
        assert z.u is not None and doubled.u is not None and torch.equal(doubled.u[0], 2 * z.u[0])
        assert z.numel() == 2 * 12
        assert "1 layers" in repr(z)


class TestInitialise:
    def test_forward_is_consistent(self) -> None:
        network = _mlp([4, 6, 5, 2], prox.Tanh())
        y = _randn(0, 3, 4)
        z = Objective(network).initialise(y)
        for ours, theirs in zip(z, network.states(y).z, strict=True):
            assert torch.equal(ours, theirs)

    def test_input_is_replicated_cut_or_padded(self) -> None:
        y = _randn(0, 3, 4)
        z = Objective(_mlp([4, 4, 6, 2, 1], prox.SoftThreshold(0.2))).initialise(y, "input")
        assert torch.equal(z[0], y)
        assert torch.equal(z[1], torch.cat([y, torch.zeros(3, 2)], 1))
        assert torch.equal(z[2], y[:, :2])

    @pytest.mark.parametrize("how", ["input", "random"])
    @pytest.mark.parametrize("activation", [prox.ReLU(), prox.Softmax(), prox.Tanh(), prox.L2Ball(1.0)], ids=repr)
    def test_starts_inside_the_domain(self, activation: prox.ProximalActivation, how: str) -> None:
        objective = Objective(_mlp([4, 4, 3, 2], activation))
        y = 3 * _randn(0, 3, 4)
        z = objective.initialise(y, how, generator=torch.Generator().manual_seed(1))
        assert torch.isfinite(objective.value(y, _randn(1, 3, 2), z))

    def test_random_is_reproducible(self) -> None:
        objective = Objective(_mlp([4, 5, 2], prox.SoftThreshold(0.1)))
        y = _randn(0, 3, 4)
        draws = [objective.initialise(y, "random", generator=torch.Generator().manual_seed(s))[0] for s in (1, 1, 2)]
        assert torch.equal(draws[0], draws[1])
        assert not torch.equal(draws[0], draws[2])


class TestPrecision:
    def _float32(self, count: int) -> tuple[Tensor, Tensor, Objective, Objective]:
        network = _mlp([32] * (count + 2), prox.SoftThreshold(0.02)).float()
        y, x = _randn(0, 16, 32).float(), _randn(1, 16, 32).float()
        return y, x, Objective(network, engine="stacked"), Objective(network, engine="general")

    def test_engines_agree_in_single_precision_within_a_few_ulp(self) -> None:
        """Largest difference in units of the last place of the largest entry: at most 4."""
        y, x, stacked, general = self._float32(9)
        z, other = stacked.initialise(y, "input"), general.initialise(y, "input")
        ours, theirs = stacked.gradients(y, x, z), general.gradients(y, x, other)
        pairs = [*zip(ours.z, theirs.z, strict=True)]
        pairs += [(ours.parameters[name], grad) for name, grad in theirs.parameters.items()]
        for one, two in pairs:
            ulp = torch.finfo(torch.float32).eps * float(two.abs().max())
            assert float((one - two).abs().max()) <= 4 * ulp

    def test_bfloat16_storage_computes_in_single_precision(self) -> None:
        """Half the memory; gradients keep about the eight bits that the stored states have."""
        network = _mlp([32] * 6, prox.SoftThreshold(0.02)).float()
        y, x = _randn(0, 16, 32).float(), _randn(1, 16, 32).float()
        exact, short = Objective(network), Objective(network, state_dtype=torch.bfloat16)
        z, rounded = exact.initialise(y, "input"), short.initialise(y, "input")
        assert rounded.dtype == torch.bfloat16
        assert rounded.storage[0].element_size() * 2 == z.storage[0].element_size()
        ours, theirs = short.gradients(y, x, rounded), exact.gradients(y, x, z)
        assert ours.z.dtype == torch.float32
        for name, grad in theirs.parameters.items():
            error = float((ours.parameters[name] - grad).norm() / grad.norm())
            assert 0 < error < 2e-2, "rounded, and not by much"
        # Computing with the rounded states themselves gives the same numbers: nothing else was rounded.
        same = exact.initialise(y, "input")
        for one, two in zip(same, rounded, strict=True):
            one.copy_(two)
        again = exact.gradients(y, x, same)
        for name, grad in again.parameters.items():
            torch.testing.assert_close(ours.parameters[name], grad, rtol=1e-6, atol=1e-6)

    def test_gradients_can_reuse_memory(self) -> None:
        y, x, objective, _ = self._float32(5)
        z = objective.initialise(y, "input")
        first = objective.gradients(y, x, z)
        expected = {name: grad.clone() for name, grad in first.parameters.items()}
        states = first.z.clone()
        addresses = [buffer.data_ptr() for buffer in first.z.buffers]
        second = objective.gradients(y, x, z, out=first)
        assert [buffer.data_ptr() for buffer in second.z.buffers] == addresses
        for name, grad in expected.items():
            assert torch.equal(second.parameters[name], grad)
        assert all(torch.equal(a, b) for a, b in zip(second.z, states, strict=True))


class TestWeights:
    def test_one_weight_per_layer(self) -> None:
        network = _mlp([4, 4, 4, 4, 2], prox.Tanh())
        y, x = _randn(0, 3, 4), _randn(1, 3, 2)
        weights = (0.5, 2.0, 1.5)
        objective = Objective(network, liftings.Bregman(weights))
        z = objective.initialise(y, "input")
        each = [Objective(network, liftings.Bregman(1.0)).report(y, x, z).penalties[j] for j in range(3)]
        found = objective.report(y, x, z).penalties
        assert found == pytest.approx([w * p for w, p in zip(weights, each, strict=True)])
        ours = objective.gradients(y, x, z)
        theirs = Objective(network, liftings.Bregman(weights), engine="general")
        other = theirs.gradients(y, x, theirs.initialise(y, "input"))
        for one, two in zip(ours.z, other.z, strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=1e-12)

    def test_report_names_the_inconsistent_layer(self) -> None:
        objective = Objective(_mlp([4, 4, 4, 2], prox.Tanh()))
        y, x = _randn(0, 3, 4), _randn(1, 3, 2)
        z = objective.initialise(y)
        with torch.no_grad():
            z[1].add_(0.1)
        report = objective.report(y, x, z)
        assert report.gaps[0] < 1e-12
        assert report.gaps[1] == pytest.approx(0.2, rel=1e-9)
        assert "layer 2" in str(report)
        assert "<table>" in report._repr_html_()


def _convolutional() -> networks.Chain:
    modules = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2)).double()
    return networks.lift(modules, (1, 5, 5))


NETWORK = _mlp([4, 5, 2])
GOOD = Objective(NETWORK)
Y, X = _randn(0, 3, 4), _randn(1, 3, 2)
Z = GOOD.initialise(Y)

BAD: list[tuple[Callable[[], object], list[str]]] = [
    (lambda: Objective(nn.Linear(2, 2)), ["Objective network", "Network", "Linear"]),
    (lambda: Objective(NETWORK, "bregman"), ["Objective lifting", "Lifting", "str"]),
    (lambda: Objective(NETWORK, loss=nn.MSELoss()), ["Objective loss", "Loss", "MSELoss"]),
    (lambda: Objective(NETWORK, liftings.Bregman((1.0, 2.0))), ["1: one per layer", "2"]),
    (lambda: Objective(NETWORK, coupling=-1.0), ["coupling", "> 0", "-1"]),
    (lambda: Objective(NETWORK, engine="fast"), ["'auto'", "stacked", "fast"]),
    (lambda: Objective(networks.Shallow(3, [2, 2]), engine="stacked"), ["chain", "Shallow", "auto"]),
    (lambda: Objective(NETWORK, coupling=1.0, engine="stacked"), ["hard coupling"]),
    (lambda: Objective(_mlp([4, 5, 2], prox.Softmax()), liftings.Fenchel()), ["Bregman"]),
    (lambda: GOOD.initialise(Y, "forwards"), ["forward", "forwards"]),
    (lambda: GOOD.initialise(Y.float()), ["float64", "float32"]),
    (lambda: GOOD.initialise(_randn(0, 3, 5)), ["(batch, 4)", "(3, 5)"]),
    (lambda: GOOD.initialise(Y[:0]), ["at least one sample"]),
    (lambda: GOOD.value(Y, X), ["Bregman", "initialise"]),
    (lambda: GOOD.value(Y[:2], X[:2], Z), ["a batch of 2", "3"]),
    (lambda: GOOD.value(Y, X[:, :1], Z), ["(3, 2)", "(3, 1)"]),
    (lambda: GOOD.value(Y, X, [Y]), ["States", "list"]),
    (lambda: Objective(_mlp([4, 6, 2])).value(Y, X, Z), ["(6,)", "(5,)"]),
    (lambda: Objective(NETWORK, coupling=1.0).value(Y, X, Z), ["states with u", "initialise"]),
    (lambda: Objective(NETWORK, liftings.Conventional()).value(Y, X, Z), ["no lifted variables"]),
    (lambda: Objective(NETWORK, loss=losses.Target()).gradients(Y, X, Z), ["Target"]),
    (lambda: Objective(NETWORK, loss=losses.CrossEntropy()).value(Y, torch.tensor([0, 1]), Z), ["(3,)", "(2,)"]),
]


@pytest.mark.parametrize(("call", "words"), BAD, ids=range(len(BAD)))
def test_bad_input_is_refused(call: Callable[[], object], words: list[str]) -> None:
    with pytest.raises((InvalidValueError, InvalidTypeError)) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


def test_convolutional_networks_mix_both_ways() -> None:
    """A convolution by vector–Jacobian products beside a dense output in closed form, equal to the general engine."""
    network = _convolutional()
    stacked, general = Objective(network, engine="stacked"), Objective(network, engine="general")
    assert stacked.engine.name == "stacked"
    y, x = _randn(0, 3, 1, 5, 5), _randn(1, 3, 2)
    z = stacked.initialise(y)
    assert isinstance(z, States)
    with torch.no_grad():
        z[0].add_(0.2)
        other = general.initialise(y)
        other[0].copy_(z[0])
    ours, theirs = stacked.gradients(y, x, z), general.gradients(y, x, other)
    for name, grad in theirs.parameters.items():
        torch.testing.assert_close(ours.parameters[name], grad, rtol=0, atol=1e-12)
