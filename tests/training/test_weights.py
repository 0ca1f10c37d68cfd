"""Ways to start: their distributions, what passes through, what is fitted, and bad input."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from torchlift import losses, prox
from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.data import Denoising, load_digits, psnr
from torchlift.networks import LISTA, MLP, Chain, Perceptron, Residual, ResNet, Shallow, lift
from torchlift.operators import Identity
from torchlift.training.starts.draws import weight_of
from torchlift.training.starts.identity import passing_bias
from torchlift.training.starts.initialise import initialise_weights


def _seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _data(count: int, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * torch.rand(count, *shape, generator=_seeded(7), dtype=torch.float64)


def _mlp(widths: list[int], activation: Any, **options: Any) -> MLP:
    return MLP(widths, activation, dtype=torch.float64, generator=_seeded(), **options)


def _convolutions(**options: Any) -> Chain:
    modules = (nn.Conv2d(2, 5, 3, padding=1), nn.Softshrink(0.3), nn.Conv2d(5, 2, **options), nn.ReLU())
    return lift(nn.Sequential(*modules).double(), (2, 6, 7))


class TestDraws:
    @pytest.mark.parametrize(
        "build", [lambda g: MLP([6, 5, 5, 5, 3], generator=g), lambda g: ResNet(4, [6, 6], 3, generator=g)]
    )
    def test_default_repeats_the_draws_of_the_constructor(self, build: Any) -> None:
        """The same distribution, from the same numbers: what torch's modules do, layer by layer."""
        network, fresh = build(_seeded(0)), build(_seeded(5))
        starts = initialise_weights(network, "default", generator=_seeded(5))
        for one, two in zip(network.parameters(), fresh.parameters(), strict=True):
            assert torch.equal(one, two)
        assert {start.way for start in starts} == {"default"}
        assert len(starts) == len([layer for layer in network.layers() if layer.name])

    def test_default_has_the_bounds_of_torch_for_convolutions(self) -> None:
        module = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 4, 5))
        network = lift(module, (4, 9, 9))
        initialise_weights(network, "default", generator=_seeded())
        plain: Any = network.to_sequential()
        for index, inputs in ((0, 4 * 9), (2, 4 * 25)):
            for parameter in plain[index].parameters():
                assert float(parameter.detach().abs().max()) <= 1 / math.sqrt(inputs)
        assert float(plain[2].weight.detach().std()) == pytest.approx(1 / math.sqrt(3 * 4 * 25), rel=0.05)

    def test_he_keeps_the_mean_square_through_many_rectifiers(self) -> None:
        network = _mlp([300] * 12, prox.ReLU())
        initialise_weights(network, "he", generator=_seeded())
        y = torch.randn(200, 300, generator=_seeded(1), dtype=torch.float64)
        assert all(not layer.bias.any() for layer in network.layers() if layer.bias is not None)
        ratio = float(network.states(y).v[-1].detach().square().mean() / (2 * y.square().mean()))
        assert 0.5 < ratio < 2.0

    def test_he_counts_the_inputs_of_transposed_convolutions(self) -> None:
        network = lift(
            nn.Sequential(nn.ConvTranspose2d(16, 40, 4, stride=2, padding=1, bias=False)).double(), (16, 20, 20)
        )
        initialise_weights(network, "he", generator=_seeded(), gain=1.0)
        y = torch.randn(4, 16, 20, 20, generator=_seeded(1), dtype=torch.float64)
        assert float(network(y).var().detach()) == pytest.approx(1.0, rel=0.1)

    @pytest.mark.parametrize("gain", [1.0, 0.5])
    def test_orthogonal(self, gain: float) -> None:
        network = _convolutions(kernel_size=3)
        initialise_weights(network, "orthogonal", generator=_seeded(), gain=gain)
        for layer in (layer for layer in network.layers() if layer.name):
            rows = weight_of(layer).flatten(1)
            small = rows @ rows.T if rows.shape[0] <= rows.shape[1] else rows.T @ rows
            torch.testing.assert_close(small, gain**2 * torch.eye(len(small), dtype=small.dtype))
            assert layer.bias is not None and not layer.bias.any()

    @pytest.mark.parametrize("how", ["default", "he", "orthogonal"])
    def test_the_generator_decides(self, how: str) -> None:
        network = _mlp([4, 4, 4], prox.ReLU())
        found = []
        for seed in (1, 1, 2):
            initialise_weights(network, how, generator=_seeded(seed))
            found.append([p.detach().clone() for p in network.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(found[0], found[1], strict=True))
        assert any(not torch.equal(a, b) for a, b in zip(found[0], found[2], strict=True))


class TestPassingBias:
    @pytest.mark.parametrize(
        ("activation", "values", "bias"),
        [
            (prox.SoftThreshold(0.2), (0.0, 1.0), 0.2),
            (prox.SoftThreshold(0.2), (-3.0, -1.0), -0.2),
            (prox.ReLU(), (0.0, 2.0), 0.0),
            (prox.LeakyReLU(0.1), (0.0, 2.0), 0.0),
            (prox.Identity(), (-1.0, 5.0), 0.0),
            (prox.Box(-1, 2), (-1.0, 1.5), 0.0),
        ],
        ids=lambda value: str(value),
    )
    def test_exact_where_psi_is_affine(self, activation: Any, values: Any, bias: float) -> None:
        found = passing_bias(activation, values, torch.zeros(1, 1, dtype=torch.float64))
        assert float(found) == pytest.approx(bias, abs=1e-12)

    @given(
        st.sampled_from(
            [prox.SoftThreshold(0.3), prox.Tanh(), prox.Sigmoid(), prox.Softplus(), prox.Box(0, 1), prox.ELU()]
        ),
        st.floats(-2, 0.5),
        st.floats(0.1, 3),
    )
    def test_no_other_bias_is_better(self, activation: prox.ProximalActivation, low: float, length: float) -> None:
        t = torch.linspace(low, low + length, 513, dtype=torch.float64)[:, None]
        found = passing_bias(activation, (low, low + length), torch.zeros(1, 1, dtype=torch.float64))

        def loss(b: Tensor) -> Tensor:
            return (activation(t + b) - t).square().mean(0)

        reach = 2 * (1 + abs(low) + abs(low + length))  # a sigmoid would like b → −∞ where t < 0
        others = torch.linspace(-reach, reach, 2001, dtype=torch.float64)[None]
        assert float(loss(found)) <= float(loss(others).min()) + 1e-12

    def test_one_per_channel(self) -> None:
        activation = prox.SoftThreshold(torch.tensor([0.1, 0.4], dtype=torch.float64))
        found = passing_bias(activation, (0.0, 1.0), torch.zeros(1, 2, dtype=torch.float64))
        torch.testing.assert_close(found, torch.tensor([[0.1, 0.4]], dtype=torch.float64))


class TestIdentity:
    def test_a_deep_soft_threshold_network_is_the_identity_on_images(self) -> None:
        network = MLP([784] * 9, prox.SoftThreshold(0.2))
        y = load_digits("validation").images[:50].flatten(1)
        starts = initialise_weights(network, "pass-through")
        assert float((network(y).detach() - y).abs().max()) < 1e-6
        assert len(starts) == 8 and all(start.error == pytest.approx(0, abs=1e-9) for start in starts)

    @pytest.mark.parametrize("activation", [prox.ReLU(), prox.LeakyReLU(0.2), prox.Box(0, 3), prox.Identity()])
    def test_wider_layers_pass_too(self, activation: prox.ProximalActivation) -> None:
        network, y = _mlp([4, 7, 5, 9, 4], activation), _data(20, 4, high=2.5)
        initialise_weights(network, "pass-through", y)
        torch.testing.assert_close(network(y), y)

    @pytest.mark.parametrize(
        "options",
        [
            {"kernel_size": 3, "padding": 1},
            {"kernel_size": 5, "padding": 4, "dilation": 2},
            {"kernel_size": 4, "padding": "same"},
            {"kernel_size": 1},
        ],
        ids=str,
    )
    def test_convolutions(self, options: Any) -> None:
        network, y = _convolutions(**options), _data(3, 2, 6, 7)
        initialise_weights(network, "pass-through", y)
        torch.testing.assert_close(network(y), y)

    def test_groups_transposes_and_flattening(self) -> None:
        modules = (
            nn.Conv2d(4, 4, 3, padding=1, groups=2),
            nn.Softshrink(0.1),
            nn.ConvTranspose2d(4, 6, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(6, 4, 3, padding=1, bias=False),
            nn.Flatten(),
            nn.Linear(4 * 25, 4 * 25),
            nn.Softshrink(0.2),
            nn.Unflatten(1, (4, 5, 5)),
        )
        network, y = lift(nn.Sequential(*modules).double(), (4, 5, 5)), _data(3, 4, 5, 5)
        initialise_weights(network, "pass-through", y)
        torch.testing.assert_close(network(y), y)

    def test_thresholds_per_channel(self) -> None:
        sigma = prox.SoftThreshold(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64))
        modules = (nn.Conv2d(3, 3, 3, padding=1), sigma.to_module(), nn.Flatten(), nn.Linear(12, 12))
        network, y = lift(nn.Sequential(*modules).double(), (3, 2, 2)), _data(5, 3, 2, 2)
        initialise_weights(network, "pass-through")
        torch.testing.assert_close(network(y), y.flatten(1))

    def test_residual_blocks_pass_and_can_learn(self) -> None:
        """The branch is zero because its last map is; the map before it is not, so that gradients exist."""
        bias = Residual(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 5), step=0.5)
        through_v = Residual(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 5, bias=False))
        bare = Residual(nn.Linear(5, 5), nn.Softshrink(0.1))
        deep = Residual(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 8), nn.Sigmoid(), nn.Linear(8, 5, bias=False))
        network = lift(nn.Sequential(bias, through_v, bare, deep, nn.Linear(5, 5), nn.Softshrink(0.2)).double())
        y = _data(10, 5)
        starts = initialise_weights(network, "pass-through", y, generator=_seeded())
        torch.testing.assert_close(network(y), y)
        assert [start.way for start in starts].count("zero") == 4
        network(y).square().sum().backward()
        coupling = [p.grad for name, p in network.named_parameters() if name.startswith("coupling")]
        assert coupling and all(grad is not None and bool(grad.any()) for grad in coupling)

    @pytest.mark.parametrize("tableau", ["euler", "rk4"])
    def test_runge_kutta(self, tableau: str) -> None:
        network = ResNet(4, [6, 6], 4, prox.Tanh(), tableau=tableau, dtype=torch.float64)
        y = _data(10, 4, low=-1)
        initialise_weights(network, "pass-through", y)
        torch.testing.assert_close(network(y), y)

    def test_the_error_is_reported(self) -> None:
        """On [−1, 1] no bias undoes a soft-threshold; what is said to remain is what is seen."""
        network = Perceptron(1, 1, prox.SoftThreshold(0.3), dtype=torch.float64)
        y = torch.linspace(-1, 1, 2001, dtype=torch.float64)[:, None]
        (start,) = initialise_weights(network, "pass-through", (y, y))
        assert start.error is not None and start.error > 0.1
        assert float((network(y).detach() - y).abs().max()) == pytest.approx(start.error, abs=1e-3)

    def test_ranges_are_followed(self) -> None:
        """After layers that cut off negative values the next ones are exact on what is left."""
        network = _mlp([1] * 6, prox.SoftThreshold(0.2))
        y = torch.linspace(-0.3, 1.5, 50, dtype=torch.float64)[:, None]
        errors = [start.error or 0.0 for start in initialise_weights(network, "pass-through", y)]
        assert errors[0] > 0.1 and max(errors[2:]) < 1e-9

    def test_margin_thresholds(self) -> None:
        network, y = _mlp([6, 6, 6], prox.SoftThreshold(0.2)), _data(30, 6)
        initialise_weights(network, "pass-through", margin=0.05)
        torch.testing.assert_close(network(y), prox.SoftThreshold(0.05)(y))

    def test_without_bias(self) -> None:
        network = _mlp([3, 3, 3], prox.SoftThreshold(0.2), bias=False)
        first, _ = initialise_weights(network, "pass-through")
        assert first.error == pytest.approx(0.2)

    @pytest.mark.parametrize(
        ("modules", "match"),
        [
            ((nn.Conv2d(1, 1, 3, stride=2),), r"the output: .* Conv2d, which has stride \(2, 2\)"),
            ((nn.Conv2d(1, 1, 3), nn.ReLU()), r"layer 1: .* Conv2d, which maps images of size \(8, 8\) to \(6, 6\)"),
            ((nn.Conv2d(1, 1, 2, dilation=2, padding=1),), "no tap that reads the pixel itself"),
            ((nn.AvgPool2d(2), nn.Conv2d(1, 1, 1)), "AveragePool2d, which changes its input"),
            ((nn.Flatten(), nn.Linear(64, 4), nn.Softmax(1)), "layer 1: expected an elementwise .* got Softmax"),
            ((Residual(nn.Conv2d(1, 1, 1), nn.Sigmoid()),), "layer 2: expected a branch whose last map has weights"),
        ],
        ids=lambda value: "" if isinstance(value, tuple) else value[:20],
    )
    def test_refuses_by_name(self, modules: Any, match: str) -> None:
        """And leaves the weights as they were, also those of the layers before."""
        network = lift(nn.Sequential(nn.Conv2d(1, 1, 1), nn.Identity(), *modules), (1, 8, 8))
        before = [p.detach().clone() for p in network.parameters()]
        with pytest.raises(InvalidValueError, match=match):
            initialise_weights(network, "pass-through")
        assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))

    def test_refuses_groups_of_unequal_width(self) -> None:
        network = lift(nn.Sequential(nn.Conv2d(4, 2, 1, groups=2)), (4, 3, 3))
        with pytest.raises(InvalidValueError, match="2 groups of unequal width"):
            initialise_weights(network, "identity")

    def test_units_beyond_those_of_the_input_are_alive(self) -> None:
        """They are not read, so the output is the input, but training can use them: their outgoing weights move."""
        network, y = _mlp([4, 9, 9, 4], prox.ReLU()), _data(30, 4)
        initialise_weights(network, "identity", y, generator=_seeded())
        torch.testing.assert_close(network(y), y)
        assert float(network.states(y).z[1].detach()[:, 4:].std(0).max()) > 0.01
        network(y).square().sum().backward()
        gradient = network.get_parameter("output.0.linear.weight").grad
        assert gradient is not None and float(gradient[..., 4:].abs().max()) > 0

    def test_refuses_a_margin_that_stops_everything(self) -> None:
        with pytest.raises(InvalidValueError, match="layer 1: expected an activation that lets the data through"):
            initialise_weights(_mlp([2, 2, 2], prox.ReLU()), "pass-through", margin=2.0)


class TestLayerWise:
    def test_a_dead_network_denoises(self) -> None:
        """Default weights give a constant; the fit is far better than its noisy input, on other images too."""
        images = [load_digits(split).images[:600, :, 4:24:2, 4:24:2].double() for split in ("train", "validation")]
        (x, y), (xv, yv) = [(i.flatten(1), Denoising(0.15).degrade(i, _seeded()).y.flatten(1)) for i in images]
        network = _mlp([100] * 8, prox.SoftThreshold(0.3))
        assert float(network(yv).detach().std(0).max()) < 1e-3
        starts = initialise_weights(network, "layer-wise", (y, x), generator=_seeded())
        gain = psnr(network(yv).detach(), xv).mean() - psnr(yv, xv).mean()
        assert float(gain) > 3
        assert {start.way for start in starts} == {"fit"}
        errors = [start.error or 0.0 for start in starts[:-1]]
        assert all(0 < later <= before for before, later in pairwise(errors))

    def test_a_linear_map_is_left_to_the_output(self) -> None:
        """Hidden layers that would gain nothing hand the input on, whole."""
        network, y = _mlp([6, 6, 6, 6], prox.SoftThreshold(0.3)), _data(400, 6)
        clean = 0.5 + y @ torch.linspace(0.1, 1.0, 36, dtype=y.dtype).view(6, 6)
        x = clean + 0.1 * torch.randn(clean.shape, dtype=y.dtype, generator=_seeded())
        starts = initialise_weights(network, "layer-wise", (y, x), ridge=1e-3, generator=_seeded())
        assert [start.way for start in starts] == ["identity", "identity", "fit"]
        torch.testing.assert_close(network.states(y).z[-1].detach(), y)
        assert float((network(y).detach() - clean).square().mean().sqrt()) < 0.03

    def test_single_precision_fits_the_output_as_well(self) -> None:
        """One iteration is exact for squared errors, up to rounding."""
        y, x = _data(50, 4), _data(50, 4) ** 2
        outputs = []
        for dtype in (torch.float32, torch.float64):
            network = lift(nn.Sequential(nn.Linear(4, 4)).to(dtype))
            initialise_weights(network, "layer-wise", (y.to(dtype), x.to(dtype)), generator=_seeded())
            outputs.append(network(y.to(dtype)).detach().double())
        torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)

    def test_a_linear_output_is_ridge_regression(self) -> None:
        """A quadratic loss is met at once: the solution has the closed form around the identity."""
        network = lift(nn.Sequential(nn.Linear(4, 4)).double())
        y, x = _data(50, 4), _data(50, 4) ** 2
        initialise_weights(network, "layer-wise", (y, x), ridge=0.5, generator=_seeded())
        X = torch.cat([y, torch.ones(50, 1, dtype=y.dtype)], 1)
        rho = 0.5 * 4 / 50 * float(X.square().mean())
        start = torch.eye(4, 5, dtype=y.dtype)
        expected = torch.linalg.solve(X.T @ X / 50 + rho * torch.eye(5), X.T @ x / 50 + rho * start.T)
        X0 = torch.cat([_data(9, 4), torch.ones(9, 1, dtype=y.dtype)], 1)
        torch.testing.assert_close(network(X0[:, :4]), X0 @ expected, rtol=1e-6, atol=1e-8)

    @pytest.mark.parametrize(
        "activation",
        [prox.ReLU(), prox.SoftThreshold(2.0), prox.Tanh(), prox.Box(0, 1), prox.Softmax()],
        ids=lambda a: type(a).__name__,
    )
    def test_other_widths_are_alive(self, activation: prox.ProximalActivation) -> None:
        network, y = _mlp([20] + [30, 17] * 5 + [3], activation), _data(301, 20, low=-0.2)
        labels = torch.arange(301) % 3
        starts = initialise_weights(network, "layer-wise", (y, labels), generator=_seeded())
        states = network.states(y)
        for v, z in zip(states.v, states.z, strict=True):
            assert float((z != 0).double().mean()) >= 0.5
            assert float(v.detach().std(0).mean()) > 0.5
        assert [start.way for start in starts] == ["scaled"] * 10 + ["fit"]

    def test_classification(self) -> None:
        digits = load_digits("train")
        y, x = digits.images[:1000].flatten(1).double(), digits.labels[:1000]
        network = _mlp([784, 100, 100, 10], prox.ReLU())
        initialise_weights(network, "layer-wise", (y, x), generator=_seeded(), samples=500)
        accuracy = (network(y[500:]).argmax(1) == x[500:]).double().mean()
        assert float(accuracy) > 0.7

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
        network, y = lift(nn.Sequential(*modules).double(), (1, 8, 8)), _data(40, 1, 8, 8)
        starts = initialise_weights(network, "layer-wise", (y, y), generator=_seeded())
        ways = {start.layer: start.way for start in starts}
        assert ways["hidden.0[0]"] == "fit" and ways["output.0[0]"] == "scaled"
        output = network(y).detach()
        assert float(output.std()) == pytest.approx(float(y.std()), rel=0.1)
        if bias:
            assert float(output.mean()) == pytest.approx(float(y.mean()), rel=1e-6)
            assert all(float((z != 0).double().mean()) >= 0.5 for z in network.states(y).z)

    def test_shared_weights_are_scaled_once(self) -> None:
        network = ResNet(5, [5, 5], 5, prox.Tanh(), tableau="rk4", dtype=torch.float64, generator=_seeded())
        y = _data(50, 5)
        starts = initialise_weights(network, "layer-wise", (y, y**2), generator=_seeded())
        assert len({start.layer for start in starts}) == len(starts) == 5
        assert float(network.states(y).v[0].detach().std()) == pytest.approx(1.0)  # the first of four stages
        assert float((network(y).detach() - y**2).square().mean()) < 0.5 * float((y**2).var())


class TestBadInput:
    network = MLP([4, 4, 4], prox.SoftThreshold(0.2))

    @pytest.mark.parametrize(
        ("arguments", "options", "error", "match"),
        [
            (("layerwise",), {}, InvalidValueError, "Did you mean 'layer-wise'"),
            (("Pass_Through",), {}, InvalidValueError, "Did you mean 'pass-through'"),
            (("zzz",), {}, InvalidValueError, r"one of 'default', 'he', .* got 'zzz'\.$"),
            ((None, 3), {}, InvalidTypeError, "how: expected a name"),
            (("layer-wise",), {}, InvalidValueError, r"expected \(y, x\) for 'layer-wise', got none"),
            (("layer-wise", torch.ones(3, 4)), {}, InvalidTypeError, "expected a pair"),
            (
                ("layer-wise", (torch.ones(3, 5), torch.ones(3, 4))),
                {},
                InvalidValueError,
                r"\(batch, 4\), got \(3, 5\)",
            ),
            (("layer-wise", (torch.ones(3, 4), torch.ones(3, 5))), {}, InvalidValueError, r"target: expected shape"),
            (("layer-wise", (torch.ones(3, 4), torch.ones(3, 4) / 0)), {}, InvalidValueError, "target: .* finite"),
            (
                ("pass-through", torch.full((3, 4), math.nan)),
                {},
                InvalidValueError,
                "inputs: expected finite values, got nan",
            ),
            (
                ("pass-through", torch.ones(3, 4)),
                {},
                InvalidValueError,
                "expected inputs that differ, got all of them 1.0",
            ),
            (("pass-through", torch.ones(3, 4).double()), {}, InvalidValueError, "dtype torch.float32"),
            (("balanced",), {}, InvalidValueError, "expected inputs for 'lsuv', got none. Try data=inputs"),
            (
                ("balanced", torch.ones(3, 5)),
                {},
                InvalidValueError,
                r"inputs: expected shape \(batch, 4\), got \(3, 5\)",
            ),
            (
                ("balanced", torch.full((3, 4), math.nan)),
                {},
                InvalidValueError,
                "inputs: expected finite values, got nan",
            ),
            (
                ("balanced", (torch.ones(3, 4), torch.ones(3, 4))),
                {},
                InvalidValueError,
                r"layer 1 \(hidden.0\[0\]\): expected pre-activations that vary with the data, got none",
            ),
            (
                ("balanced", torch.rand(3, 4)),
                {"samples": 1},
                InvalidValueError,
                "samples: expected a whole number >= 2",
            ),
            (("balanced", torch.rand(3, 4)), {"gain": 2.0}, InvalidValueError, "gain: expected none for 'lsuv'"),
            (("balance", torch.rand(3, 4)), {}, InvalidValueError, "Did you mean 'balanced'"),
            (("pass-through", ()), {}, InvalidTypeError, "expected a torch.Tensor, got tuple"),
            (("he",), {"margin": 0.1}, InvalidValueError, r"margin: expected none for 'he', got 0.1. .*'identity'"),
            (("he",), {"gain": -1.0}, InvalidValueError, "gain: expected a number > 0"),
            (("layer-wise", (torch.rand(3, 4),) * 2), {"samples": 0}, InvalidValueError, "samples: expected a whole"),
            (("layer-wise", (torch.rand(3, 4),) * 2), {"loss": losses.Absolute()}, InvalidValueError, "a smooth loss"),
            (("layer-wise", (torch.rand(3, 4),) * 2), {"loss": "mse"}, InvalidTypeError, "loss: expected a loss such"),
        ],
        ids=lambda value: str(value)[:30] if isinstance(value, str) else "",
    )
    def test_is_named(self, arguments: Any, options: Any, error: Any, match: str) -> None:
        before = [p.detach().clone() for p in self.network.parameters()]
        with pytest.raises(error, match=match):
            initialise_weights(self.network, *arguments, **options)
        assert all(torch.equal(a, b) for a, b in zip(before, self.network.parameters(), strict=True))

    @pytest.mark.parametrize(
        "network",
        [LISTA(Identity((3,)), Identity((3,)), 2), Shallow(3, 4), nn.Linear(2, 2)],
        ids=["lista", "shallow", "linear"],
    )
    def test_other_networks(self, network: Any) -> None:
        with pytest.raises(InvalidTypeError, match=f"expected a chain: .* got {type(network).__name__}"):
            initialise_weights(network)

    def test_frozen_weights(self) -> None:
        network = MLP([4, 4, 4]).requires_grad_(False)
        with pytest.raises(InvalidValueError, match=r"frozen ones: \['hidden.0.bias'"):
            initialise_weights(network)
