"""Lifted gradients in `.grad`: their limits, how they accumulate, how they train, and bad input."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchlift import liftings, losses, prox
from torchlift.core.errors import InvalidTypeError, InvalidValueError, NotRepresentableError
from torchlift.imaging import load_digits
from torchlift.networks import LISTA, MLP, Residual, ResNet, RungeKutta, Shallow, lift
from torchlift.objective import Nudge, Objective, TrainingProblem
from torchlift.operators import Identity
from torchlift.solvers import FISTA, Stopping, solve
from torchlift.training.gradients import _MEMORIES, lifted_gradients

TINY = Nudge(fixed=1e-6)


def _randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _dense(activation: Callable[[], nn.Module] = nn.Tanh) -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Linear(6, 5), activation(), nn.Linear(5, 5), activation(), nn.Linear(5, 5), activation())
    return nn.Sequential(*layers, nn.Linear(5, 3)).double()


def _convolutional() -> nn.Sequential:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Softplus(), nn.Conv2d(4, 2, 2, stride=2, bias=False))
    decoder = (nn.Tanh(), nn.ConvTranspose2d(2, 3, 2, stride=2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(27, 3))
    return nn.Sequential(encoder, nn.Dropout(0.0), *decoder).double()


def _residual() -> nn.Sequential:
    torch.manual_seed(0)
    through_v = Residual(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 6, bias=False), step=0.5)
    through_w = Residual(nn.Sequential(nn.Linear(6, 4), nn.Softplus()), nn.Linear(4, 6))
    stages = RungeKutta(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 6, bias=False), 0.5, "rk4")
    return nn.Sequential(nn.Linear(6, 6), through_v, nn.Sequential(through_w, stages), nn.Linear(6, 3)).double()


def _twice() -> nn.Sequential:
    """One module in two places gets one gradient."""
    torch.manual_seed(0)
    shared = nn.Linear(6, 6)
    return nn.Sequential(shared, nn.Tanh(), shared, nn.ELU(), nn.Linear(6, 3)).double()


MODULES = {
    "dense": (_dense, (6,)),
    "convolutional": (_convolutional, (1, 6, 6)),
    "residual": (_residual, (6,)),
    "used twice": (_twice, (6,)),
}


def _autograd(module: nn.Module, loss: losses.Loss, y: Tensor, x: Tensor) -> dict[str, Tensor]:
    value = loss.value(module(y), x).mean()
    names, parameters = zip(*[(n, p) for n, p in module.named_parameters() if p.requires_grad], strict=True)
    return dict(zip(names, torch.autograd.grad(value, parameters), strict=True))


def _grads(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def _assert_close(module: nn.Module, expected: dict[str, Tensor], tolerance: float = 1e-6) -> None:
    found = _grads(module)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert found[name].shape == gradient.shape
        assert float((found[name] - gradient).norm()) <= tolerance * float(gradient.norm()), name


class TestSweep:
    @pytest.mark.parametrize("name", MODULES)
    @pytest.mark.parametrize("loss", [losses.SquaredError(), losses.CrossEntropy()], ids=["squared", "entropy"])
    def test_small_nudges_give_the_gradient_of_autograd(self, name: str, loss: losses.Loss) -> None:
        build, shape = MODULES[name]
        module, y = build(), _randn(1, 7, *shape)
        x = torch.arange(7) % 3 if isinstance(loss, losses.CrossEntropy) else _randn(2, 7, 3)
        value = lifted_gradients(module, y, x, loss, nudge=TINY)
        _assert_close(module, _autograd(module, loss, y, x))
        assert float(value) == pytest.approx(float(loss.value(module(y), x).mean().detach()))
        assert not value.requires_grad

    @pytest.mark.parametrize(
        "build",
        [
            lambda: MLP([6, 5, 5, 3], prox.Tanh(), dtype=torch.float64),
            lambda: ResNet(6, [4, 4], 3, prox.Tanh(), dtype=torch.float64),
            lambda: Shallow(6, [4, 5], 3, prox.Tanh(), output_bias=True, dtype=torch.float64),
            lambda: LISTA(Identity((6,)), _randn(3, 6, 3), 3),
        ],
        ids=["mlp", "resnet", "shallow", "lista"],
    )
    def test_networks(self, build: Callable[[], Any]) -> None:
        network, y = build(), _randn(1, 7, 6)
        x = _randn(2, 7, *network.out_shape)
        lifted_gradients(network, y, x, nudge=TINY)
        _assert_close(network, _autograd(network, losses.SquaredError(), y, x))

    def test_calls_follow_the_weights(self) -> None:
        """The twin is kept; its weights are those of the module at every call."""
        module, y, x = _dense(), _randn(1, 7, 6), _randn(2, 7, 3)
        lifted_gradients(module, y, x, nudge=TINY)
        twin = _MEMORIES[module].twin
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(1.5).add_(0.1)
        module.zero_grad()
        lifted_gradients(module, y, x, nudge=TINY)
        _assert_close(module, _autograd(module, losses.SquaredError(), y, x))
        assert _MEMORIES[module].twin is twin

    @pytest.mark.parametrize("change", ["activation", "module", "size", "dtype", "setting", "frozen"])
    def test_a_changed_structure_is_seen(self, change: str) -> None:
        module: Any = _convolutional()[0]
        y, x = _randn(1, 5, 1, 6, 6), _randn(2, 5, 2, 3, 3)
        lifted_gradients(module, y, x, nudge=TINY)
        module.zero_grad()
        nudge = TINY
        if change == "activation":
            module[1] = nn.Tanh()
        elif change == "module":
            module.append(nn.Conv2d(2, 2, 1).double())
        elif change == "size":
            y, x = _randn(1, 5, 1, 8, 8), _randn(2, 5, 2, 4, 4)
        elif change == "dtype":
            module.float()
            y, x, nudge = y.float(), x.float(), Nudge(fixed=1e-2)
        elif change == "setting":
            module[1].beta = 3.0
        else:
            module[0].weight.requires_grad_(False)
        lifted_gradients(module, y, x, nudge=nudge)
        _assert_close(module, _autograd(module, losses.SquaredError(), y, x), 1e-3 if change == "dtype" else 1e-6)

    def test_gradients_accumulate_as_those_of_autograd(self) -> None:
        module, y, x = _dense(), _randn(1, 7, 6), _randn(2, 7, 3)
        lifted_gradients(module, y, x, nudge=TINY)
        first = {name: grad.clone() for name, grad in _grads(module).items()}
        held = module[0].weight.grad
        lifted_gradients(module, y, x, nudge=TINY)
        assert module[0].weight.grad is held
        for name, gradient in first.items():
            torch.testing.assert_close(_grads(module)[name], 2 * gradient)
        module.zero_grad()
        assert _grads(module) == {}

    def test_frozen_parameters_are_left_alone(self) -> None:
        module, y, x = _dense(), _randn(1, 7, 6), _randn(2, 7, 3)
        module[2].requires_grad_(False)
        module[4].bias.requires_grad_(False)
        lifted_gradients(module, y, x, nudge=TINY)
        _assert_close(module, _autograd(module, losses.SquaredError(), y, x))
        assert module[2].weight.grad is None and module[4].bias.grad is None

    def test_a_sleeping_layer_is_woken_from_call_to_call(self) -> None:
        """Autograd sees nothing behind a soft-threshold that no value passes; growing nudges reach it."""
        module = nn.Sequential(nn.Linear(4, 4), nn.Softshrink(5.0), nn.Linear(4, 2)).double()
        y, x = _randn(1, 20, 4), _randn(2, 20, 2)
        assert not _autograd(module, losses.SquaredError(), y, x)["0.weight"].any()
        seen = []
        for _ in range(12):
            module.zero_grad()
            lifted_gradients(module, y, x)
            seen.append(bool(_grads(module)["0.weight"].any()))
        assert not seen[0] and seen[-1]

    def test_modules_are_not_kept_alive(self) -> None:
        module = _dense()
        lifted_gradients(module, _randn(1, 7, 6), _randn(2, 7, 3))
        known = weakref.ref(module)
        del module
        gc.collect()
        assert known() is None


class TestLifting:
    @pytest.mark.parametrize("name", MODULES)
    def test_conventional_is_back_propagation(self, name: str) -> None:
        build, shape = MODULES[name]
        module, y, x = build(), _randn(1, 7, *shape), _randn(2, 7, 3)
        lifted_gradients(module, y, x, lifting=liftings.Conventional())
        _assert_close(module, _autograd(module, losses.SquaredError(), y, x), 1e-12)

    @pytest.mark.parametrize(
        ("name", "lifting"),
        [
            ("dense", liftings.Bregman),
            ("dense", liftings.Fenchel),
            ("dense", liftings.MACQP),
            ("residual", liftings.Bregman),
            ("convolutional", liftings.Bregman),
            ("convolutional", liftings.MACQP),
        ],
    )
    def test_heavy_penalties_tend_to_the_gradient_of_autograd(self, name: str, lifting: Any) -> None:
        build, shape = MODULES[name]
        module, y, x = build(), _randn(1, 7, *shape), _randn(2, 7, 3)
        if name == "residual":
            module = nn.Sequential(*module[:2], module[-1])  # fewer stages, fewer rounds until z is at rest
        expected = _autograd(module, losses.SquaredError(), y, x)
        errors = []
        for mu in (50.0, 500.0):
            module.zero_grad()
            lifted_gradients(module, y, x, lifting=lifting(mu), inner_steps=30)
            found = _grads(module)
            assert found.keys() == expected.keys()
            errors.append(max(float((found[n] - g).norm() / g.norm()) for n, g in expected.items()))
        assert errors[0] < 0.3
        assert errors[1] < 0.2 * errors[0]

    def test_many_steps_give_the_gradient_of_the_least_energy(self) -> None:
        """∇_θ E(θ, z) at the minimising z is ∇_θ min_z E(θ, z): checked by differences of the minimum."""
        network = MLP(
            [4, 5, 3], prox.SoftThreshold(0.1), dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        )
        y, x = _randn(1, 6, 4), _randn(2, 6, 3)
        lifting = liftings.Bregman(2.0)

        def least() -> float:
            problem = TrainingProblem(Objective(network, lifting), y, x)
            solver = replace(FISTA(), blocks=("states",))
            stopping = Stopping(max_steps=3000, change=1e-15)
            return problem.value(solve(problem, solver, problem.start(), stopping=stopping, record_every=0).point)

        lifted_gradients(network, y, x, lifting=lifting, inner_steps=300)
        for name, parameter in network.named_parameters():
            gradient, size = parameter.grad, 1e-5
            assert gradient is not None
            direction = _randn(5, *parameter.shape)
            values = []
            for sign in (1, -1):
                with torch.no_grad():
                    parameter.add_(sign * size * direction)
                values.append(least())
                with torch.no_grad():
                    parameter.sub_(sign * size * direction)
            expected = (values[0] - values[1]) / (2 * size)
            assert float((gradient * direction).sum()) == pytest.approx(expected, rel=1e-4, abs=1e-7), name

    @pytest.mark.parametrize("kind", [liftings.Bregman, liftings.MACQP, liftings.Classical])
    def test_one_round_reaches_every_layer(self, kind: Any) -> None:
        module, y, x = _dense(nn.ReLU), _randn(1, 7, 6), _randn(2, 7, 3)
        lifted_gradients(module, y, x, lifting=kind(1.0))
        expected, found = _autograd(module, losses.SquaredError(), y, x), _grads(module)
        assert all(float(found[name].norm()) > 0.01 * float(gradient.norm()) > 0 for name, gradient in expected.items())


class TestTraining:
    @pytest.mark.parametrize(
        ("optimiser", "lifting"),
        [
            (lambda p: torch.optim.SGD(p, 0.05, momentum=0.9), None),
            (lambda p: torch.optim.Adam(p, 2e-3), None),
            (lambda p: torch.optim.Adam(p, 2e-3), liftings.Bregman(10.0)),
        ],
        ids=["sgd", "adam", "adam bregman"],
    )
    def test_digits(self, optimiser: Any, lifting: Any) -> None:
        torch.manual_seed(0)
        digits, test = load_digits("train"), load_digits("validation")
        hidden = (nn.Linear(784, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU())
        module = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(50, 10))
        steps, loss = optimiser(module.parameters()), losses.CrossEntropy()
        for first in range(0, 5000, 50):
            part = slice(first, first + 50)
            steps.zero_grad()
            lifted_gradients(module, digits.images[part], digits.labels[part], loss, lifting=lifting)
            steps.step()
        accuracy = (module(test.images).argmax(1) == test.labels).double().mean()
        assert float(accuracy) > 0.85

    def test_the_price_is_that_of_back_propagation(self) -> None:
        """About 1.1 times on a quiet machine; the limit only catches a lost cache or lost closed forms."""
        module = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
        y, x, loss = torch.rand(500, 784), torch.arange(500) % 10, losses.CrossEntropy()

        def seconds(step: Callable[[], object]) -> float:
            begin = time.perf_counter()
            step()
            return time.perf_counter() - begin

        def back_propagation() -> None:
            nn.functional.cross_entropy(module(y), x).backward()

        lifted_gradients(module, y, x, loss)
        pairs = [(seconds(back_propagation), seconds(lambda: lifted_gradients(module, y, x, loss))) for _ in range(15)]
        assert min(lifted for _, lifted in pairs) < 2 * min(bp for bp, _ in pairs)


class TestChain:
    """`Chain.layers`, `Chain.load` and `Chain.scatter`, on which all this rests."""

    @pytest.mark.parametrize("name", MODULES)
    def test_load_and_scatter_invert_each_other(self, name: str) -> None:
        build, shape = MODULES[name]
        module = build()
        chain = lift(module, shape)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(_randn(parameter.numel(), *parameter.shape))
        chain.load(module)
        y = _randn(1, 4, *shape)
        torch.testing.assert_close(chain(y), module(y))
        back = chain.scatter(dict(chain.named_parameters()))
        assert list(back) == [plain for plain, _ in chain.to_sequential().named_parameters()]
        for value, parameter in zip(back.values(), module.parameters(), strict=True):
            assert torch.equal(value, parameter)

    def test_scatter_leaves_out_what_is_not_given(self) -> None:
        chain = lift(_dense())
        assert list(chain.scatter({"output.0.bias": torch.ones(1, 3)})) == ["6.bias"]

    def test_layers_are_views(self) -> None:
        chain = lift(_dense())
        layers = chain.layers()
        assert [layer.name for layer in layers] == ["hidden.0[0]", "hidden.1[0]", "hidden.1[1]", "output.0[0]"]
        bias = layers[2].bias
        assert bias is not None and not bias.requires_grad
        layers[2].operator.tensors()["weight"].fill_(2.0)
        bias.fill_(3.0)
        assert bool((chain.get_parameter("hidden.1.linear.weight")[1] == 2).all())
        assert bool((chain.get_parameter("hidden.1.bias")[1] == 3).all())

    def test_load_refuses_other_shapes(self) -> None:
        with pytest.raises(InvalidValueError, match=r"Chain.load: expected parameters of shapes \[\(5, 6\), .*Lift"):
            lift(_dense()).load(nn.Sequential(nn.Linear(2, 2)))


class TestBadInput:
    y, x = _randn(1, 7, 6), _randn(2, 7, 3)

    @pytest.mark.parametrize(
        ("options", "error", "match"),
        [
            ({"module": nn.Linear(6, 3)}, InvalidTypeError, r"an nn.Sequential or a Network, got Linear. Wrap it"),
            ({"module": "net"}, InvalidTypeError, "module: expected .* got str"),
            ({"y": [1.0]}, InvalidTypeError, "input: expected a torch.Tensor, got list"),
            ({"y": _randn(1, 7, 5)}, NotRepresentableError, "module 0 .*takes 6 features but its input has 5"),
            ({"y": _randn(1, 0, 6)}, InvalidValueError, "at least one sample"),
            ({"y": torch.ones(7, 6)}, InvalidValueError, "expected dtype torch.float64, got torch.float32"),
            ({"x": _randn(1, 6, 3)}, InvalidValueError, r"target: expected shape \(7, 3\), got \(6, 3\)"),
            ({"loss": nn.MSELoss()}, InvalidTypeError, "loss: expected a Loss, got MSELoss"),
            (
                {"loss": losses.Absolute(), "lifting": liftings.Bregman()},
                InvalidValueError,
                "smooth loss, got Absolute",
            ),
            ({"lifting": "bregman"}, InvalidTypeError, "lifting: expected a Lifting, got str"),
            ({"lifting": liftings.Contrastive()}, InvalidValueError, "a lifting with free states, got Contrastive"),
            ({"inner_steps": 3}, InvalidValueError, "inner_steps: expected 1 without a lifting, got 3"),
            ({"inner_steps": 0, "lifting": liftings.Bregman()}, InvalidValueError, "a whole number >= 1, got 0"),
            ({"nudge": 0.1}, InvalidTypeError, "nudge: expected a Nudge, got float"),
            ({"nudge": Nudge(), "lifting": liftings.Bregman()}, InvalidValueError, "none together with a lifting"),
        ],
        ids=lambda value: value[:25] if isinstance(value, str) else "",
    )
    def test_is_named(self, options: dict[str, Any], error: Any, match: str) -> None:
        arguments = {"module": _dense(), "y": self.y, "x": self.x} | options
        with pytest.raises(error, match=match):
            lifted_gradients(**arguments)
        assert not isinstance(arguments["module"], nn.Module) or _grads(arguments["module"]) == {}

    def test_batch_norms(self) -> None:
        module = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3), nn.ReLU()).double().eval()
        with pytest.raises(NotRepresentableError, match=r"module 1 \(BatchNorm1d\) .* folded into others"):
            lifted_gradients(module, self.y, self.x)

    def test_modules_that_cannot_be_lifted(self) -> None:
        with pytest.raises(NotRepresentableError, match="dropout is random"):
            lifted_gradients(nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)).double(), self.y, self.x)

    def test_modules_without_activations_are_differentiated(self) -> None:
        module = nn.Sequential(nn.Linear(6, 3), nn.LayerNorm(3)).double()
        lifted_gradients(module, self.y, self.x)
        found = [parameter.grad for parameter in module.parameters()]
        loss = 0.5 * (module(self.y) - self.x).square().sum(1).mean()
        for grad, expected in zip(found, torch.autograd.grad(loss, list(module.parameters())), strict=True):
            torch.testing.assert_close(grad, expected)

    def test_thresholds_that_would_need_a_gradient(self) -> None:
        threshold = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
        module = nn.Sequential(nn.Linear(6, 3).double(), prox.SoftThreshold(threshold).to_module())
        with pytest.raises(InvalidValueError, match=r"module 1 \(SoftThreshold\): .* got threshold"):
            lifted_gradients(module, self.y, self.x)
