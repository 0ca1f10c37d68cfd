"""LSUV: what it keeps, what it makes of data, and which layers count as dead."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from torchlift import prox
from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.networks import LISTA, MLP, Chain, PrimalDual, Residual, ResNet, lift
from torchlift.operators import Dense, Mask
from torchlift.training.starts.draws import weight_of
from torchlift.training.starts.initialise import initialise_weights
from torchlift.training.starts.lsuv import dead_layers


def _seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _data(count: int, *shape: int, offset: float = 0.0) -> Tensor:
    return offset + torch.rand(count, *shape, generator=_seeded(7), dtype=torch.float64)


def _mlp(widths: list[int], activation: Any, **options: Any) -> MLP:
    return MLP(widths, activation, dtype=torch.float64, generator=_seeded(), **options)


def _pre_activations(network: Chain, y: Tensor) -> list[Tensor]:
    return [v.detach() for v in network.states(y).v]


def _rms(v: Tensor) -> float:
    return float(v.square().mean().sqrt())


def _alive(activation: prox.ProximalActivation, v: Tensor, epsilon: float) -> float:
    return float((activation(v + epsilon) != activation(v - epsilon)).double().mean())


class TestLsuv:
    @pytest.mark.parametrize(
        "activation", [prox.ReLU(), prox.Tanh(), prox.SoftThreshold(0.2)], ids=lambda a: str(a)[:9]
    )
    def test_mean_and_size(self, activation: prox.ProximalActivation) -> None:
        network, y = _mlp([20] + [30] * 12 + [3], activation), _data(200, 20)
        starts = initialise_weights(network, "lsuv", y)
        assert [start.way for start in starts] == ["lsuv"] * 12 + ["kept"]
        for v in _pre_activations(network, y):
            assert float(v.mean()) == pytest.approx(0, abs=1e-10)
            assert _rms(v) == pytest.approx(1)
            assert _rms(v - v.mean(0)) > 1 / math.sqrt(26.01)  # at most 5 times as much between the units

    @given(st.floats(0, 1e4), st.integers(1, 4))
    def test_offsets_of_the_inputs_do_not_silence_a_layer(self, offset: float, depth: int) -> None:
        """Where the differences between units would drown the data, they are cut to five times its spread."""
        network, y = _mlp([6] + [8] * depth + [2], prox.Tanh()), _data(50, 6, offset=offset)
        initialise_weights(network, "lsuv", y)
        assert dead_layers(network, y) == ()
        v = _pre_activations(network, y)[0]
        if offset > 100:
            between = _rms(v.mean(0) - v.mean())
            assert between == pytest.approx(5 * _rms(v - v.mean(0)), rel=1e-6)

    def test_keeps_directions_and_the_output(self) -> None:
        network = _mlp([10, 12, 12, 12, 4], prox.Tanh())
        before = [weight_of(layer).clone() for layer in network.layers()]
        bias = network.get_parameter("output.0.bias").detach().clone()
        initialise_weights(network, "lsuv", _data(100, 10))
        *hidden, output = zip(before, network.layers(), strict=True)
        for weight, layer in hidden:
            ratio = weight_of(layer) / weight
            assert float(ratio.mean()) > 0
            torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio))
        assert torch.equal(output[0], weight_of(output[1]))
        assert torch.equal(bias, network.get_parameter("output.0.bias"))

    def test_a_second_time_changes_nothing(self) -> None:
        network, y = _mlp([10] + [12] * 5 + [4], prox.SoftThreshold(0.3)), _data(100, 10)
        initialise_weights(network, "lsuv", y)
        before = [p.detach().clone() for p in network.parameters()]
        initialise_weights(network, "lsuv", y)
        for one, two in zip(before, network.parameters(), strict=True):
            torch.testing.assert_close(one, two.detach())

    def test_a_wide_threshold_gets_larger_pre_activations(self) -> None:
        activation = prox.SoftThreshold(2.0)
        network, y = _mlp([20] + [30] * 6 + [3], activation), _data(300, 20)
        initialise_weights(network, "lsuv", y)
        for v in _pre_activations(network, y):
            t = _rms(v)
            assert math.log2(t) == pytest.approx(round(math.log2(t)))
            assert _alive(activation, v, 1e-3 * t) >= 0.3 > _alive(activation, v / 2, 5e-4 * t)

    def test_the_best_there_is_where_thirty_per_cent_are_out_of_reach(self) -> None:
        network, y = _mlp([20, 30, 3], prox.Box(5.0, 6.0)), _data(300, 20)
        initialise_weights(network, "lsuv", y)
        (v,) = _pre_activations(network, y)
        shares = {t: _alive(prox.Box(5.0, 6.0), t / _rms(v) * v, 1e-3 * t) for t in [2.0**k for k in range(11)]}
        assert _rms(v) == pytest.approx(max(shares, key=lambda t: shares[t]))
        assert 0 < max(shares.values()) < 0.3

    def test_softmax_counts_as_alive(self) -> None:
        """It ignores a shift of all its entries, but not one of some."""
        network, y = _mlp([5, 6, 6, 2], prox.Softmax()), _data(50, 5)
        initialise_weights(network, "lsuv", y)
        assert all(_rms(v) == pytest.approx(1) for v in _pre_activations(network, y))
        assert dead_layers(network, y) == ()

    def test_without_bias_only_the_scale(self) -> None:
        network, y = _mlp([20, 30, 30, 3], prox.Tanh(), bias=False), _data(100, 20)
        initialise_weights(network, "lsuv", y)
        for v in _pre_activations(network, y):
            assert _rms(v) == pytest.approx(1)

    def test_revives_a_deep_network(self) -> None:
        network, y = _mlp([20] + [64] * 10 + [3], prox.SoftThreshold(0.3)), _data(200, 20)
        assert dead_layers(network, y) == tuple(range(2, 11))
        assert float(network(y).detach().std(0).max()) < 1e-12
        initialise_weights(network, "lsuv", y)
        assert dead_layers(network, y) == ()
        assert float(network(y).detach().std(0).min()) > 1e-2

    @pytest.mark.parametrize("bias", [True, False])
    def test_convolutions_and_residual_blocks(self, bias: bool) -> None:
        modules = (
            nn.Conv2d(1, 4, 3, padding=1, bias=bias),
            nn.ReLU(),
            Residual(nn.Conv2d(4, 6, 3, padding=1, bias=bias), nn.Softshrink(0.5), nn.Conv2d(6, 4, 1, bias=bias)),
            nn.Conv2d(4, 2, 2, stride=2, bias=bias),
            nn.Flatten(),
            nn.Tanh(),
            nn.Unflatten(1, (2, 4, 4)),
            nn.ConvTranspose2d(2, 1, 2, stride=2, bias=bias),
        )
        torch.manual_seed(0)
        network, y = lift(nn.Sequential(*modules).double(), (1, 8, 8)), _data(40, 1, 8, 8)
        starts = initialise_weights(network, "lsuv", y)
        ways = [start.way for start in starts]
        # the map at the end of the branch stands in V, or in a sum with the skip where it has a bias
        assert ways == ["lsuv", "lsuv", "kept", "lsuv", "kept"]
        states = _pre_activations(network, y)
        summed = {2} if bias else set()
        for j, v in enumerate(states):
            if j not in summed:
                assert _rms(v) == pytest.approx(1, rel=1e-6)
                assert not bias or float(v.mean()) == pytest.approx(0, abs=1e-10)

    def test_shared_weights_are_set_once(self) -> None:
        network = ResNet(5, [5, 5], 5, prox.Tanh(), tableau="rk4", dtype=torch.float64, generator=_seeded())
        y = _data(50, 5)
        starts = initialise_weights(network, "lsuv", y)
        assert len(starts) == 5
        rms = [_rms(v) for v in _pre_activations(network, y)]
        assert rms[0] == pytest.approx(1) and rms[4] == pytest.approx(1)  # the first of four stages each
        assert rms[1] != pytest.approx(1, abs=1e-9)

    def test_samples_are_drawn(self) -> None:
        y = _data(400, 10)
        one, two, other = (_mlp([10, 12, 4], prox.Tanh()) for _ in range(3))
        for network, seed in ((one, 1), (two, 1), (other, 2)):
            initialise_weights(network, "lsuv", y, samples=30, generator=_seeded(seed))
        assert torch.equal(weight_of(one.layers()[0]), weight_of(two.layers()[0]))
        assert not torch.equal(weight_of(one.layers()[0]), weight_of(other.layers()[0]))

    def test_refuses_a_dead_layer_and_leaves_the_weights(self) -> None:
        network, y = _mlp([5, 6, 6, 2], prox.ReLU()), _data(30, 5)
        with torch.no_grad():
            weight_of(network.layers()[1]).zero_()
        before = [p.detach().clone() for p in network.parameters()]
        with pytest.raises(InvalidValueError, match=r"layer 2 \(hidden.1\[0\]\): .* all weights zero"):
            initialise_weights(network, "lsuv", y)
        assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))

    def test_refuses_an_activation_that_never_responds(self) -> None:
        network = _mlp([5, 6, 2], prox.SoftThreshold(1e9))
        with pytest.raises(
            InvalidValueError,
            match=r"layer 1 .hidden.0.*: expected an activation that responds .* a flat SoftThreshold",
        ):
            initialise_weights(network, "lsuv", _data(30, 5))


class TestDeadLayers:
    def test_default_weights(self) -> None:
        y = _data(600, 20)
        assert dead_layers(_mlp([20, 30, 30, 3], prox.ReLU()), y) == ()
        assert 50 in dead_layers(_mlp([20] + [30] * 50 + [3], prox.ReLU()), y)

    def test_saturated_activations_are_flat(self) -> None:
        network, y = _mlp([20, 30, 3], prox.Tanh()), _data(100, 20)
        with torch.no_grad():
            weight_of(network.layers()[0]).mul_(1e4)
        assert dead_layers(network, y) == (1,)

    def test_zero_weights(self) -> None:
        network = _mlp([20, 30, 3], prox.Tanh())
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.zero_()
        assert dead_layers(network, _data(10, 20)) == (1,)

    def test_only_some_samples_are_looked_at(self) -> None:
        """Every third of 1,300: those between are constant and would make the layer look dead."""
        network, y = _mlp([20, 30, 3], prox.Tanh()), _data(1300, 20, offset=-0.5)
        y[torch.arange(1300) % 3 != 0] = 1e3
        assert dead_layers(network, y) == ()

    def test_unrolled_networks(self) -> None:
        matrix = torch.randn(8, 12, generator=_seeded(), dtype=torch.float64) / 4
        y = torch.randn(100, 8, generator=_seeded(1), dtype=torch.float64)
        dictionary = torch.eye(12, dtype=torch.float64)
        H = Dense(matrix)
        assert dead_layers(LISTA(H, dictionary, 4, threshold=0.05), y) == ()
        assert dead_layers(PrimalDual(H, dictionary, 3, threshold=0.05), y) == ()
        assert dead_layers(LISTA(H, dictionary, 4, threshold=50.0), y)[-1:] == (5,)

    def test_context(self) -> None:
        y = _data(700, 6)
        mask = (torch.rand(700, 6, generator=_seeded()) > 0.3).to(y)
        network = LISTA(Mask(shape=(6,)), torch.eye(6, dtype=y.dtype), 2, threshold=0.05, context={"mask": mask})
        assert dead_layers(network, y * mask, {"mask": mask}) == ()

    @pytest.mark.parametrize(
        ("y", "error", "match"),
        [
            (None, InvalidTypeError, "dead_layers inputs: expected a torch.Tensor, got NoneType"),
            (torch.rand(5, 3), InvalidValueError, r"dead_layers inputs: expected shape \(batch, 4\), got \(5, 3\)"),
            (torch.rand(1, 4), InvalidValueError, "dead_layers inputs: expected two samples or more, got 1"),
            (torch.full((5, 4), math.nan), InvalidValueError, "dead_layers inputs: expected finite values, got nan"),
            (torch.rand(5, 4).double(), InvalidValueError, "expected dtype torch.float32"),
        ],
        ids=["none", "shape", "one", "nan", "dtype"],
    )
    def test_bad_input(self, y: Any, error: Any, match: str) -> None:
        with pytest.raises(error, match=match):
            dead_layers(MLP([4, 4, 2]), y)

    def test_other_modules(self) -> None:
        with pytest.raises(InvalidTypeError, match=r"dead_layers network: expected a Network, got Linear\. Lift it"):
            dead_layers(nn.Linear(4, 2), torch.rand(3, 4))  # pyright: ignore[reportArgumentType]
