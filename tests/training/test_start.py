"""The start that `train` chooses, and what it falls back to."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchlift as tl
from torchlift.core.errors import InvalidValueError
from torchlift.data import Batch, TensorBatches
from torchlift.functions.losses import SquaredError
from torchlift.liftings import Conventional
from torchlift.training.phase import Phase
from torchlift.training.plan import PlannedPhase
from torchlift.training.starts.choose import Trial, choose
from torchlift.training.starts.recording import lsuv_of_module, record
from torchlift.training.starts.scaled import explodes, matched_start, scaled_start
from torchlift.training.starts.short_runs import PART, start_weights


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def smooth(count: int, side: int = 8, seed: int = 3) -> Tensor:
    """Images (count, 1, side, side) in [0, 1] that neighbours tell much about."""
    coarse = torch.rand(count, 1, 3, 3, generator=seeded(seed))
    return F.interpolate(coarse, size=(side, side), mode="bilinear", align_corners=True)


@pytest.fixture(scope="module")
def noisy() -> tuple[Tensor, Tensor]:
    x = smooth(400)
    return x + 0.2 * torch.randn(x.shape, generator=seeded(1)), x


def mlp(widths: list[int], activation: Any) -> Any:
    return tl.networks.MLP(widths, activation, generator=seeded())


def convolutions(threshold: float) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.Softshrink(threshold), nn.Conv2d(4, 4, 3, padding=1),
        nn.Softshrink(threshold), nn.Conv2d(4, 1, 3, padding=1),
    )  # fmt: skip


def error(network: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return float((network(data[0]) - data[1]).square().mean())


def parameters(network: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in network.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


class Plain(nn.Module):
    """A module that is no chain: functions, a skip connection, a layer that is used twice, a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.inner = nn.Linear(6, 20), nn.Linear(20, 20)
        self.twice, self.normalised, self.last = nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, 2)
        self.norm = nn.BatchNorm1d(20)

    def forward(self, y: Tensor) -> Tensor:
        u = F.softshrink(self.first(y), 2.0)
        u = u + torch.tanh(self.inner(u))
        u = torch.relu(self.twice(F.relu(self.twice(u), inplace=True)))
        return self.last(F.relu(self.norm(self.normalised(u))))


class TestModules:
    y = torch.randn(200, 6, generator=seeded())

    def test_dead_layers_are_found(self) -> None:
        calls = record(Plain(), self.y)
        assert [call.layer for call in calls] == ["first", "inner", "twice", "twice", None]
        assert [call.dead for call in calls][:2] == [True, True]  # nothing passes a threshold of 2

    @pytest.mark.parametrize(("margin", "dead"), [(2, False), (6, True)])
    def test_layers_in_a_loop_are_dead_only_if_every_call_is(self, margin: int, dead: bool) -> None:
        """The first steps in time see rows that are the same in all samples, as the margins of digits are."""

        class Recurrent(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(0)
                self.inner, self.hidden, self.last = nn.Linear(1, 8), nn.Linear(8, 8), nn.Linear(8, 2)

            def forward(self, y: Tensor) -> Tensor:
                h = y.new_zeros(len(y), 8)
                for row in y.split(1, dim=1):
                    h = torch.tanh(self.inner(row) + self.hidden(h))
                return self.last(h)

        y = self.y.clone()
        y[:, :margin] = 0
        assert any(call.dead for call in record(Recurrent(), y)) is dead

    def test_lsuv_revives_them(self) -> None:
        module = Plain()
        before = {name: p.detach().clone() for name, p in module.named_parameters()}
        ways = {start.layer: start.way for start in lsuv_of_module(module, self.y)}
        assert ways == {"first": "lsuv", "inner": "lsuv", "twice": "kept", "normalised": "kept", "last": "kept"}
        assert not any(call.dead for call in record(module, self.y)[:2])
        v = module.first(self.y).detach()
        rms = float(v.square().mean().sqrt())
        assert float(v.mean()) == pytest.approx(0, abs=1e-5)
        assert rms == pytest.approx(2 ** round(math.log2(rms)), rel=1e-5) and rms > 1
        ratio = module.first.weight.detach() / before["first.weight"]  # directions are kept
        torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio))
        assert all(torch.equal(p, before[name]) for name, p in module.named_parameters() if "first" not in name and "inner" not in name)  # fmt: skip  # noqa: E501

    def test_dead_layers_before_targets_in_dollars(self) -> None:
        """LSUV leaves the output layer as it is: of features and targets as they come, it made a loss ten times worse
        than that of a constant answer."""
        spread = torch.logspace(-2, 3, 12)
        y = torch.randn(500, 12, generator=seeded(5)) * spread + 10 * spread
        x = 1e4 + 3e3 * torch.sin(y[:, :1] / spread[:1])
        torch.manual_seed(1)
        module = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        starts = tl.initialise_weights(module, (y, x))
        loss = error(module, (y, x))
        assert [start.way for start in starts][-1] == "matched" and loss < 5 * float(x.var())

    def test_agrees_with_the_chain(self) -> None:
        """For an `nn.Sequential` hooks find what the unified form finds."""
        module, y = convolutions(0.3).double(), smooth(50).double()
        chain = tl.lift(copy.deepcopy(module), (1, 8, 8))
        tl.initialise_weights(chain, y, "lsuv", generator=seeded(2))
        lsuv_of_module(module, y[torch.randperm(50, generator=seeded(2))])
        for one, other in zip(module.parameters(), chain.to_sequential().parameters(), strict=True):
            torch.testing.assert_close(one, other)

    def test_one_line_for_any_optimiser(self) -> None:
        module, x = Plain(), (self.y[:, :2] > 0).float()
        starts = tl.initialise_weights(module, (self.y, x))
        assert [start.way for start in starts].count("lsuv") == 2
        healthy = nn.Sequential(nn.Linear(6, 30), nn.ReLU(), nn.Linear(30, 2))
        given = parameters(healthy)
        assert {start.way for start in tl.initialise_weights(healthy, (self.y, x))} == {"kept"}
        assert same(given, parameters(healthy))

    def test_a_weak_branch_beside_the_input_is_kept(self) -> None:
        """Its last layers hardly respond, but the network beats every constant answer: LSUV would add noise to it."""

        class Residual(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(0)
                hidden = [layer for _ in range(4) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())]
                self.inner = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), *hidden)
                self.inner.append(nn.Conv2d(8, 1, 3, padding=1))

            def forward(self, y: Tensor) -> Tensor:
                return y - self.inner(y)

        module, x = Residual(), smooth(200)
        y = x + 0.05 * torch.randn(x.shape, generator=seeded(1))
        assert any(call.dead for call in record(module, y))
        given = parameters(module)
        choice = choose(module, Trial(lambda count: Batch(y[:count], x[:count], None), SquaredError()), None)
        assert not choice.changed and same(given, parameters(module))
        assert set(choice.losses) == {"lsuv", "as given"} and "as given" in choice.sentence

    def test_one_line_fits_a_denoiser(self, noisy: tuple[Tensor, Tensor]) -> None:
        module = convolutions(0.2)
        starts = tl.initialise_weights(module, noisy, generator=seeded())
        assert "fit" in {start.way for start in starts}
        assert error(module, noisy) < 0.5 * float((noisy[0] - noisy[1]).square().mean())


class TestConvolutionalFits:
    @pytest.mark.parametrize("options", [{"padding": 1}, {"padding": "same", "dilation": 2}])
    def test_ridge_regression_on_patches(self, options: dict[str, Any]) -> None:
        """A single convolution that made the targets is found again, as by least squares."""
        truth = nn.Conv2d(2, 3, 3, **options).double()
        y = torch.randn(30, 2, 7, 6, generator=seeded(), dtype=torch.float64)
        x = truth(y).detach()
        network = tl.lift(nn.Sequential(nn.Conv2d(2, 3, 3, **options).double()), (2, 7, 6))
        tl.initialise_weights(network, (y, x), "layer-wise", ridge=1e-9)
        torch.testing.assert_close(network(y).detach(), x, rtol=1e-6, atol=1e-6)

    def test_leading_channels_are_fitted(self, noisy: tuple[Tensor, Tensor]) -> None:
        network = tl.lift(convolutions(0.2), (1, 8, 8))
        starts = tl.initialise_weights(network, noisy, "layer-wise", generator=seeded())
        assert [start.way for start in starts] == ["fit"] * 3
        states = network.states(noisy[0])
        squares = [float((z.detach()[:, :1] - noisy[1]).square().mean()) for z in states.z]
        assert squares[1] <= squares[0] < float((noisy[0] - noisy[1]).square().mean())
        assert float(states.z[1].detach()[:, 1:].std()) > 0.1  # the other channels are alive


class TestChoice:
    def test_healthy_networks_pay_one_forward_pass(self) -> None:
        y = torch.rand(300, 6)
        network, draws = mlp([6, 20, 20, 3], tl.ReLU()), []
        tl.initialise_weights(network, y, "he", generator=seeded())
        data = Batch(y, torch.arange(300) % 3)
        trial = Trial(
            lambda count: draws.append(count) or Batch(data.y[:count], data.x[:count]), tl.losses.CrossEntropy()
        )
        given = parameters(network)
        choice = choose(network, trial, seeded())
        assert not choice.changed and choice.sentence == "" and draws == [100]
        assert same(given, parameters(network))

    @pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.GELU, lambda: nn.Softshrink(0.3)])
    def test_classifiers_as_torch_draws_them_begin_with_lsuv(self, activation: Callable[[], nn.Module]) -> None:
        """At once, and only once: what was trained is left alone."""
        torch.manual_seed(0)
        y, labels = torch.rand(300, 6), torch.arange(300) % 3
        module = nn.Sequential(nn.Linear(6, 20), activation(), nn.Linear(20, 20), activation(), nn.Linear(20, 3))
        expected = copy.deepcopy(module)
        tl.initialise_weights(expected, y[:100], "lsuv")
        trial = Trial(lambda count: Batch(y[:count], labels[:count]), tl.losses.CrossEntropy())
        assert choose(module, trial, seeded()).name == "lsuv"
        for one, other in zip(parameters(expected), parameters(module), strict=True):
            torch.testing.assert_close(one, other)
        tl.train(module, (y, labels), steps=3, weights="keep", progress=False)
        given = parameters(module)
        assert not choose(module, trial, seeded()).changed and same(given, parameters(module))

    @pytest.mark.parametrize(
        "module",
        [
            nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3)),
            nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 3)),
            nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)),
        ],
    )
    def test_other_healthy_classifiers_keep_their_weights(self, module: nn.Module) -> None:
        y, labels = torch.rand(300, 6, generator=seeded()), torch.arange(300) % 3
        given = parameters(module)
        trial = Trial(lambda count: Batch(y[:count], labels[:count]), tl.losses.CrossEntropy())
        assert not choose(module, trial, seeded()).changed and same(given, parameters(module))

    def test_trained_denoisers_stay_as_they_are(self, noisy: tuple[Tensor, Tensor]) -> None:
        flat = noisy[0].flatten(1), noisy[1].flatten(1)
        network = mlp([64, 64, 64], tl.ReLU())
        tl.train(network, flat, steps=100, progress=False)
        given = parameters(network)
        batches = TensorBatches(*flat, batch_size=50)
        choice = start_weights(PlannedPhase(Phase(steps=100), network, batches, SquaredError()))
        assert not choice.changed and same(given, parameters(network))

    @pytest.mark.parametrize("threshold", [0.2, 0.5])
    def test_dead_denoisers_are_better_than_their_input_at_once(
        self, threshold: float, noisy: tuple[Tensor, Tensor]
    ) -> None:
        flat = noisy[0].flatten(1), noisy[1].flatten(1)
        network = mlp([64] * 6, tl.SoftThreshold(threshold))
        result = tl.train(network, flat, steps=60, progress=False)
        assert error(network, flat) < 0.6 * float((noisy[0] - noisy[1]).square().mean())
        assert "Start: " in result.message and "dead" in result.message and "held-out loss" in result.message
        first = result.history[0]
        assert first["kind"] == "start" and set(first["metrics"]) >= {"lsuv", "identity", "identity-fit"}
        assert first["loss"] == min(first["metrics"].values())

    def test_modules_of_convolutions(self, noisy: tuple[Tensor, Tensor]) -> None:
        model = convolutions(0.3)
        tl.train(model, noisy, steps=40, progress=False)
        assert error(model, noisy) < 0.5 * float((noisy[0] - noisy[1]).square().mean())

    def test_at_most_a_tenth_of_the_steps(self, noisy: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
        from torchlift.training import gradient_step

        made = []
        step = gradient_step.GradientStep.step
        monkeypatch.setattr(gradient_step.GradientStep, "step", lambda self: made.append(1) or step(self))
        flat = noisy[0].flatten(1), noisy[1].flatten(1)
        batches = TensorBatches(*flat, batch_size=50)
        network = mlp([64] * 6, tl.SoftThreshold(0.3))
        start_weights(PlannedPhase(Phase(steps=200), network, batches, SquaredError()))
        assert 0 < len(made) <= PART * 200

    def test_the_same_twice_and_on_after_a_break(self, noisy: tuple[Tensor, Tensor], tmp_path: Path) -> None:
        flat = noisy[0].flatten(1), noisy[1].flatten(1)
        network = mlp([64] * 6, tl.SoftThreshold(0.3))
        runs = []
        for name, stop in (("whole", None), ("broken", 17)):
            trained = copy.deepcopy(network)
            run = partial(tl.train, trained, flat, steps=40, folder=tmp_path / name, progress=False,
                          options=tl.TrainOptions(evaluate_every=1))  # fmt: skip
            result = run(callback=None if stop is None else lambda row: row["step"] == 17)
            if stop is not None:
                result = run(resume=True)
            runs.append(
                (parameters(trained), [row["loss"] for row in result.history], result.message.split("Start")[1])
            )
        assert same(runs[0][0], runs[1][0])
        assert runs[0][1:] == runs[1][1:]

    def test_later_phases_go_on_with_what_they_find(self, noisy: tuple[Tensor, Tensor]) -> None:
        flat = noisy[0].flatten(1), noisy[1].flatten(1)
        options = tl.TrainOptions(phases=[Phase(steps=20), Phase(steps=20)])
        result = tl.train(mlp([64] * 6, tl.SoftThreshold(0.3)), flat, options=options, progress=False)
        assert [row["kind"] for row in result.history].count("start") == 1


class TestSafeguard:
    uphill = partial(torch.optim.SGD, lr=1e-3, maximize=True)

    def test_the_start_is_given_back_without_validation(self, noisy: tuple[Tensor, Tensor], tmp_path: Path) -> None:
        flat = noisy[0].flatten(1), noisy[1].flatten(1)
        network = mlp([64, 64, 64], tl.ReLU())
        given = parameters(network)
        run = partial(tl.train, network, flat, solver=self.uphill, weights="keep", epochs=3, folder=tmp_path,
                      progress=False)  # fmt: skip
        for resume in (False, True):
            result = run(callback=None if resume else lambda row: row["step"] >= 4, resume=resume)
            assert same(given, parameters(network))
            assert "Training ended worse than it began" in result.message

    def test_dead_layers_do_not_diverge(self, noisy: tuple[Tensor, Tensor]) -> None:
        flat = noisy[0].flatten(1), noisy[1].flatten(1)
        network = mlp([64] * 8, tl.SoftThreshold(0.3))
        before = error(network, flat)
        tl.train(network, flat, weights="keep", steps=60, progress=False)
        assert error(network, flat) <= 1.05 * before

    def test_the_input_is_handed_on_where_nothing_is_better(self, noisy: tuple[Tensor, Tensor]) -> None:
        flat = noisy[0].flatten(1), noisy[1].flatten(1)
        network = mlp([64, 70, 64], tl.ReLU())
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(1e3)
        train = partial(tl.train, network, flat, validation=flat, solver=self.uphill, steps=3, progress=False)
        baseline = train(lifting=Conventional(), metrics="loss")
        assert "The input itself is a better answer" in baseline.message and "handed on" not in baseline.message
        assert error(network, flat) > 10  # a baseline keeps its own result
        result = train(metrics="loss", options=tl.TrainOptions(phases=[Phase(weights=None, steps=3)]))
        assert error(network, flat) <= 1.01 * float((noisy[0] - noisy[1]).square().mean())
        assert result.best["value"] < 64 * 0.04

    def test_a_network_that_cannot_hand_on_says_so(self) -> None:
        y = torch.rand(60, 6)
        x = y + 0.01 * torch.randn(60, 6)
        result = tl.train(mlp([6, 1, 6], tl.ReLU()), (y, x), steps=5, progress=False)
        assert "the network cannot hand it on" in result.message
        assert "input itself" not in tl.train(mlp([6, 1, 6], tl.ReLU()), (y, y), steps=5, progress=False).message


@pytest.mark.parametrize(
    ("arguments", "match"),
    [(("he", "lsuv"), "one method, got 'he' and 'lsuv'"), ((torch.rand(5, 6).double(),), "dtype torch.float32")],
)
def test_bad_input(arguments: Any, match: str) -> None:
    with pytest.raises(InvalidValueError, match=match):
        tl.initialise_weights(nn.Sequential(nn.Linear(6, 6), nn.ReLU()), *arguments)


# -- outputs that are far too large -----------------------------------------------------------------------------------


class Repeated(nn.Module):
    """One layer of too large a gain, used eight times, and a number that no layer owns."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.again, self.last = nn.Linear(6, 20), nn.Linear(20, 20), nn.Linear(20, 2)
        self.strength = nn.Parameter(torch.tensor(0.7))
        nn.init.normal_(self.again.weight, std=1.0)

    def forward(self, y: Tensor) -> Tensor:
        u = torch.relu(self.first(y))
        for _ in range(8):
            u = torch.relu(self.again(u))
        return self.strength * self.last(u)


class TestScaled:
    y = torch.randn(200, 6, generator=seeded())
    x = torch.sin(y[:, :2])
    batch = Batch(y, x)

    def test_one_factor_for_all_layers(self) -> None:
        module = Repeated()
        before = {name: p.detach().clone() for name, p in module.named_parameters()}
        given = error(module, (self.y, self.x))
        factor = scaled_start(module, self.batch, SquaredError())
        assert 0 < factor < 1 and explodes(Repeated(), self.batch, SquaredError())
        for name, p in module.named_parameters():
            torch.testing.assert_close(p.detach(), before[name] * (1 if name == "strength" else factor))
        assert error(module, (self.y, self.x)) < 1e-3 * given
        assert not explodes(module, self.batch, SquaredError())

    def test_infinite_outputs(self) -> None:
        module = Repeated()
        with torch.no_grad():
            module.again.weight.mul_(1e5)
        assert not math.isfinite(error(module, (self.y, self.x)))
        assert scaled_start(module, self.batch, SquaredError()) < 1
        assert error(module, (self.y, self.x)) < 10

    def test_nothing_changes_where_it_does_not_help(self) -> None:
        """Targets far from zero are no sign of weights that are too large, and healthy networks are kept."""
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 2))
        before = parameters(module)
        assert not explodes(module, self.batch, SquaredError())
        far = Batch(self.y, self.x + 1000)
        assert explodes(module, far, SquaredError())
        assert scaled_start(module, far, SquaredError()) == 1 and same(parameters(module), before)
        assert matched_start(module, self.batch, SquaredError()) is None and same(parameters(module), before)

    @pytest.mark.parametrize("steps", [8, 400])
    def test_train_scales_before_it_begins(self, steps: int) -> None:
        """After a comparison with the given weights, or without one where there are too few steps for it."""
        result = tl.train(Repeated(), (self.y, self.x), batch_size=20, steps=steps, progress=False)
        assert "Start: scaled (outputs were far off" in result.message
        assert ("held-out loss scaled" in result.message) == (steps == 400)
        assert result.history[-1]["loss"] < 1

    def test_one_line_for_other_optimisers(self) -> None:
        module = Repeated()
        ways = {start.way for start in tl.initialise_weights(module, (self.y, self.x))}
        assert ways == {"scaled"} and error(module, (self.y, self.x)) < 10


class Sliced(nn.Module):
    """Returns a view of what its last layer makes, or, if it is scaled, something else."""

    def __init__(self, scaled: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.scaled = nn.Linear(6, 20), nn.Linear(20, 2), scaled

    def forward(self, y: Tensor) -> Tensor:
        v = self.head(torch.relu(self.body(y)))[:, :, None].squeeze(2)
        return 2 * v if self.scaled else v


class TestMatched:
    """Targets far from zero, of another size: the output layer moves there."""

    y = TestScaled.y
    x = torch.tensor([200_000.0, -50.0]) + 5e4 * torch.tanh(y[:, :2] @ torch.randn(2, 2, generator=seeded(4)))
    batch = Batch(y, x)

    @pytest.mark.parametrize("kind", ["module", "convolution", "chain"])
    def test_mean_and_spread_of_the_targets(self, kind: str) -> None:
        torch.manual_seed(0)
        batch = self.batch
        if kind == "module":
            module: nn.Module = Sliced()
        elif kind == "chain":
            module = mlp([6, 20, 2], tl.ReLU())
        else:
            module = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 2, 3, padding=1))
            batch = Batch(smooth(50), 1000 + 30 * smooth(50, seed=5).expand(50, 2, 8, 8))
        before = {name: p.detach().clone() for name, p in module.named_parameters()}
        name = matched_start(module, batch, SquaredError())
        assert name is not None and name == {"module": "head", "convolution": "2"}.get(kind, name)
        with torch.no_grad():
            output = module(batch.y)
        axes = [axis for axis in range(output.ndim) if axis != 1]
        torch.testing.assert_close(output.mean(axes), batch.x.mean(axes), rtol=1e-3, atol=10.0)
        spreads = [float((t - t.mean(axes, keepdim=True)).square().mean().sqrt()) for t in (output, batch.x)]
        assert spreads[0] == pytest.approx(spreads[1], rel=1e-2)
        changed = [name for name, p in module.named_parameters() if not torch.equal(p, before[name])]
        assert len(changed) == 2  # weight and bias of one layer

    def test_other_outputs_are_left_alone(self) -> None:
        """Where the network does something to the output of its last layer, nobody knows what to match."""
        module = Sliced(scaled=True)
        before = parameters(module)
        assert matched_start(module, self.batch, SquaredError()) is None and same(parameters(module), before)

    @pytest.mark.filterwarnings("ignore:train data targets")
    @pytest.mark.parametrize("steps", [8, 300])
    def test_the_bare_call_learns_prices(self, steps: int) -> None:
        module = Sliced()
        result = tl.train(module, (self.y, self.x), batch_size=20, steps=steps, progress=False)
        assert "Start: matched (outputs were far off" in result.message
        constant = float((self.x - self.x.mean(0)).square().mean())
        assert error(module, (self.y, self.x)) < (0.1 if steps == 300 else 3) * constant


class TestAsked:
    """`train(…, weights=…)` takes what `initialise_weights` takes."""

    def test_a_sequential_is_fitted(self, noisy: tuple[Tensor, Tensor]) -> None:
        """By the loss of the training, as `initialise_weights` does it."""
        flat = noisy[0].flatten(1), noisy[1].flatten(1)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Softshrink(0.2), nn.Linear(64, 64))
        before = error(model, flat)
        result = tl.train(model, flat, weights="layer-wise", steps=1, progress=False)
        assert "Start: layer-wise (as asked)" in result.message and error(model, flat) < 0.1 * before

    @pytest.mark.parametrize(("weights", "way"), [("lsuv", "lsuv"), ("balanced", "lsuv"), ("scaled", "scaled")])
    def test_any_module(self, weights: str, way: str) -> None:
        data = TestScaled.y, TestScaled.x
        module = Plain() if way == "lsuv" else Repeated()
        assert way in {start.way for start in tl.initialise_weights(copy.deepcopy(module), data, weights)}
        result = tl.train(module, data, weights=weights, steps=2, progress=False)
        assert f"Start: {weights} (as asked)" in result.message

    def test_losses_without_a_gradient_are_fitted_by_squares(self, noisy: tuple[Tensor, Tensor]) -> None:
        flat = noisy[0].flatten(1), noisy[1].flatten(1)
        loss = tl.losses.Absolute()
        result = tl.train(mlp([64, 64, 64], tl.ReLU()), flat, loss=loss, weights="layer-wise", steps=1, progress=False)
        assert "layer-wise (as asked)" in result.message
