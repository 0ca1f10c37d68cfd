"""Back-propagation as a sweep, descent with it, and the average of the iterates."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from contracts.network_cases import CASES, Case
from torchlift import liftings, losses, networks, prox
from torchlift.core.errors import InvalidValueError
from torchlift.core.tensors import Point
from torchlift.data import as_batches
from torchlift.networks import Network
from torchlift.objective import Objective, ScaledStep, SweepDescent, SweepRule, TrainingBatches, back_propagate
from torchlift.objective.sweep import Sweep
from torchlift.objective.sweep_descent import EVERY, SweepState


def _randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _mlp(widths: Sequence[int] = (5, 7, 7, 7, 3)) -> networks.MLP:
    return networks.MLP(widths, prox.Tanh(), dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def _plain(network: networks.MLP, y: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """u and v of every layer, by hand from the parameters."""
    u, v = [y], []
    for stack in (*network.hidden, *network.output):
        for weight, bias in zip(stack.linear.weight, stack.bias, strict=True):
            v.append(u[-1] @ weight.T + bias)
            u.append(torch.tanh(v[-1]))
    return u[:-1], v


class TestGradients:
    @pytest.mark.parametrize("batch", [1, 3])
    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_are_those_of_autograd(self, case: Case, batch: int) -> None:
        network, context = case.build(), case.context(batch)
        y, x = case.input(network, batch), _randn(1, batch, *network.out_shape)
        sweep = back_propagate(network, losses.SquaredError(), y, x, context)
        loss = 0.5 * (network(y, context) - x).square().sum() / batch
        loss.backward()
        expected = {name: p.grad for name, p in network.named_parameters() if p.requires_grad}
        assert sweep.gradients.keys() == expected.keys()
        assert any(bool(grad.any()) for grad in sweep.gradients.values())
        for name, grad in expected.items():
            torch.testing.assert_close(sweep.gradients[name], grad, rtol=1e-12, atol=1e-13)
        assert float(sweep.loss) == pytest.approx(float(loss.detach()), rel=1e-13)
        tensors = [sweep.loss, sweep.output, *sweep.gradients.values()]
        tensors += [part for layer in sweep.layers for part in (layer.inputs, layer.residual)]
        assert not any(tensor.requires_grad for tensor in tensors) and not y.requires_grad
        # Rules write into them, so no two may share memory.
        assert len({grad.data_ptr() for grad in sweep.gradients.values()}) == len(sweep.gradients)

    def test_residuals_are_the_derivatives_in_v(self) -> None:
        network, y, x = _mlp(), _randn(1, 6, 5), torch.arange(6) % 3
        sweep = back_propagate(network, losses.CrossEntropy(), y, x)
        u, v = _plain(network, y)
        expected = torch.autograd.grad(nn.functional.cross_entropy(v[-1], x, reduction="sum"), v)
        assert [(layer.weight_name, layer.index) for layer in sweep.layers] == [
            ("hidden.0.linear.weight", 0),
            ("hidden.1.linear.weight", 0),
            ("hidden.1.linear.weight", 1),
            ("output.0.linear.weight", 0),
        ]
        for layer, inputs, residual in zip(sweep.layers, u, expected, strict=True):
            torch.testing.assert_close(layer.inputs, inputs.detach(), rtol=0, atol=1e-14)
            torch.testing.assert_close(layer.residual, residual, rtol=0, atol=1e-13)

    @pytest.mark.parametrize("name", ["resnet-euler", "perceptron", "mlp-no-bias", "affine"])
    def test_dense_layers_beside_others_have_residuals_too(self, name: str) -> None:
        """Weights are made of residuals: ∇W = Rᵀu/B."""
        case = next(case for case in CASES if case.name == name)
        network = case.build()
        y, x = case.input(network), _randn(1, 3, *network.out_shape)
        sweep = back_propagate(network, losses.SquaredError(), y, x)
        assert sweep.layers
        for layer in sweep.layers:
            found = layer.residual.T @ layer.inputs / 3
            torch.testing.assert_close(found, sweep.gradients[layer.weight_name][layer.index], rtol=0, atol=1e-13)

    def test_frozen_layers_have_residuals_but_no_gradients(self) -> None:
        network, y, x = _mlp(), _randn(1, 6, 5), _randn(2, 6, 3)
        expected = back_propagate(network, losses.SquaredError(), y, x)
        for name in ("hidden.0.linear.weight", "hidden.0.bias"):
            network.get_parameter(name).requires_grad_(False)
        sweep = back_propagate(network, losses.SquaredError(), y, x)
        assert sweep.gradients.keys() == expected.gradients.keys() - {"hidden.0.linear.weight", "hidden.0.bias"}
        assert all(torch.equal(grad, expected.gradients[name]) for name, grad in sweep.gradients.items())
        for one, two in zip(sweep.layers, expected.layers, strict=True):
            assert torch.equal(one.residual, two.residual)

    def test_targets_of_another_shape_are_refused(self) -> None:
        with pytest.raises(InvalidValueError, match=r"target.*shape \(6, 3\).*\(6, 2\)"):
            back_propagate(_mlp(), losses.SquaredError(), _randn(1, 6, 5), _randn(2, 6, 2))


@pytest.mark.parametrize("name", ["mlp-soft-threshold", "resnet-euler", "lista-blur", "lista-coupled", "autoencoder"])
def test_descent_with_the_conventional_lifting_is_torch_adam(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    network, twin = case.build(), case.build()
    y, x = case.input(network, 8), _randn(1, 8, *network.out_shape)
    batches = TrainingBatches(Objective(network, liftings.Conventional()), as_batches((y, x), batch_size=4))
    solver = SweepDescent(ScaledStep(1e-2), average=0)
    state = solver.init(batches, batches.start())
    optimiser = torch.optim.Adam(twin.parameters(), lr=1e-2)
    for k in range(6):
        state = solver.step(batches, state)
        inputs, targets, _ = batches.batches.batch(k)
        optimiser.zero_grad()
        loss = 0.5 * (twin(inputs) - targets).square().sum() / len(inputs)
        loss.backward()
        optimiser.step()
        assert float(state.loss) == pytest.approx(float(loss.detach()), rel=1e-10)
    trained = [p for p in twin.parameters() if p.requires_grad]
    for ours, theirs, start in zip(state.point["parameters"], trained, _start(case), strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=1e-10)
        assert not torch.equal(ours, start)


def _start(case: Case) -> list[Tensor]:
    return [p.detach() for p in case.build().parameters() if p.requires_grad]


class _Visit(SweepRule):
    """Goes to the k-th unit vector in step k, so that an average of the points shows its own weights."""

    def init(self, names: Sequence[str], point: Point, sweep: Sweep) -> tuple[()]:
        return ()

    def move(
        self, names: Sequence[str], point: Point, sweep: Sweep, state: tuple[()], count: int, share: float, reuse: bool
    ) -> tuple[Point, tuple[()]]:
        return point.like([_unit(point.tensors[0], count + 1)]), ()

    def size(self, state: tuple[()], count: int) -> float:
        return 1.0


class _Stay(_Visit):
    def move(
        self, names: Sequence[str], point: Point, sweep: Sweep, state: tuple[()], count: int, share: float, reuse: bool
    ) -> tuple[Point, tuple[()]]:
        return point, ()


def _unit(like: Tensor, k: int) -> Tensor:
    return torch.eye(like.numel(), dtype=like.dtype)[k].view_as(like)


LENGTH = 400


def _walk(rule: SweepRule, average: float, count: int, start: Tensor | None = None) -> SweepState:
    network: Network = networks.MLP([LENGTH + 1, 1], bias=False, dtype=torch.float64)
    weight = network.get_parameter("output.0.linear.weight")
    with torch.no_grad():
        weight.copy_(_unit(weight, 0) if start is None else start.view_as(weight))
    data = as_batches((torch.zeros(1, LENGTH + 1).double(), torch.zeros(1, 1).double()), batch_size=1)
    batches = TrainingBatches(Objective(network, liftings.Conventional()), data)
    solver = SweepDescent(rule, average=average)
    state = solver.init(batches, batches.start())
    for _ in range(count):
        state = solver.step(batches, state)
    return state


class TestAverage:
    def test_none(self) -> None:
        state = _walk(_Visit(), 0, 7)
        assert state.answer is state.point
        assert torch.equal(state.point.tensors[0].flatten(), _unit(torch.zeros(LENGTH + 1), 7).double())

    @pytest.mark.parametrize("count", [0, 1, 4, 5, 9, 37, LENGTH])
    @pytest.mark.parametrize("average", [0.5, 0.98])
    def test_is_a_convex_combination_of_points(self, average: float, count: int) -> None:
        weights = _walk(_Visit(), average, count).answer.tensors[0].flatten()
        assert float(weights.min()) >= 0
        assert float(weights.sum()) == pytest.approx(1, abs=1e-14)
        assert int(weights.nonzero().max()) == count - (count % EVERY if count > EVERY else 0), "the last one looked at"
        if count:
            assert float(weights[0]) == 0, "the start is forgotten"

    def test_forgets_as_fast_as_it_says(self) -> None:
        """In the long run the points that are looked at, every few steps, lose this factor each time."""
        weights = _walk(_Visit(), 0.98, LENGTH).answer.tensors[0].flatten()[::EVERY].flip(0)
        assert float(weights[0]) == pytest.approx(1 - 0.98**EVERY)
        for one, two in itertools.pairwise(weights[:20]):
            assert float(two / one) == pytest.approx(0.98**EVERY)

    def test_covers_a_share_of_a_short_run(self) -> None:
        """The mean age of the points is about a third of the run's length, not the 50 steps of the long run."""
        weights = _walk(_Visit(), 0.98, 40).answer.tensors[0].flatten()
        age = float((weights * (40 - torch.arange(LENGTH + 1))).sum())
        assert 5 < age < 20

    def test_of_one_point_is_that_point(self) -> None:
        start = _randn(0, LENGTH + 1)
        found = _walk(_Stay(), 0.98, 60, start).answer.tensors[0].flatten()
        torch.testing.assert_close(found, start, rtol=0, atol=1e-15)
