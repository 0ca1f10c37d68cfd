"""Where scales differ from the paper's: facts about the code that docs/differences-from-the-paper.md states."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from torchlift.core.tensors import Point
from torchlift.data import as_batches, psnr
from torchlift.inversion import Simultaneous, invert
from torchlift.lab.problem import build
from torchlift.liftings import Bregman
from torchlift.networks import MLP
from torchlift.objective import Objective, TrainingBatches, TrainingProblem
from torchlift.prox import SoftThreshold
from torchlift.solvers import ImplicitStochasticGradient, ProximalAdam
from torchlift.training.metrics import METRICS

BATCH = 8


def _randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("scale", [1.0, BATCH])
def test_the_threshold_of_proximal_adam(scale: float) -> None:
    """αμλ/B by default, αμλ as the paper prints it with prox_scale = B; in the first step Adam's direction is ±1."""
    lr, mu, threshold = 0.3, 0.7, 0.9
    network = MLP([3, 4, 2], SoftThreshold(threshold), dtype=torch.float64)
    problem = TrainingProblem(Objective(network, Bregman(mu)), _randn(1, BATCH, 3), _randn(2, BATCH, 2))
    start = problem.start()
    start = start.merge(Point({"states": [_randn(3, *z.shape) for z in start["states"]]}))
    solver = ProximalAdam(lr, eps=1e-300, prox_scale=scale)
    state = solver.step(problem, solver.init(problem, start))
    (gradient,), (z,) = problem.gradient(start)["states"], start["states"]
    expected = F.softshrink(z - lr * gradient.sign(), lr * mu * threshold * scale / BATCH)
    torch.testing.assert_close(state.point["states"][0], expected, rtol=0, atol=1e-12)


def test_tau_of_implicit_steps_belongs_to_a_mean() -> None:
    """argmin Σ ½‖W y + b − x‖² + ‖θ − θ₀‖²/2τ, the paper's sum, is the step with B·τ."""
    network, tau = MLP([3, 2], dtype=torch.float64), 0.4
    y, x = _randn(1, BATCH, 3), _randn(2, BATCH, 2)
    problem = TrainingBatches(Objective(network), as_batches((y, x), batch_size=BATCH, like=network.like))
    start = problem.start()
    solver = ImplicitStochasticGradient(tau=BATCH * tau)
    after = solver.step(problem, solver.init(problem, start)).point
    Y = torch.cat([y, torch.ones(BATCH, 1, dtype=torch.float64)], 1)
    before, result = (_matrix(point["parameters"]) for point in (start, after))
    system = Y.T @ Y + torch.eye(4, dtype=torch.float64) / tau
    expected = torch.linalg.solve(system, Y.T @ x + before.T / tau).T
    torch.testing.assert_close(result, expected)


def _matrix(parameters: tuple[Tensor, ...]) -> Tensor:
    """(W, b) of one layer from two outputs of three inputs."""
    bias, weight = sorted(parameters, key=Tensor.numel)
    return torch.cat([weight.reshape(2, 3), bias.reshape(2, 1)], 1)


def test_seven_hidden_layers_have_seven_penalties() -> None:
    network = build(0.2, seed=0)
    assert network.depth == 7 and len(network.operators().W.row_shapes) == 7


def test_psnr_is_the_mean_over_images() -> None:
    images, x = _randn(1, 4, 1, 12, 12), torch.zeros(4, 1, 12, 12, dtype=torch.float64)
    metric = METRICS["psnr"]
    value = float(metric.of_means(metric.terms(images * torch.arange(1, 5)[:, None, None, None], x).double().mean(0)))
    own = [psnr(images[i : i + 1] * (i + 1), x[:1]) for i in range(4)]
    assert value == pytest.approx(float(torch.stack(own).mean()))


def test_the_papers_algorithm_starts_z_at_the_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    network = MLP([6, 5, 4], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    starts = []

    def advance(self: Simultaneous, problem: object, state: object) -> object:
        starts.append(state)
        return state

    monkeypatch.setattr(Simultaneous, "advance", advance)
    x = _randn(1, 2, 6)
    invert(network, network(x).detach(), weight=0.1, algorithm="paper", max_steps=1, start=x)
    z = network.operators().activations[0](network.operators().pre_activation(0, [x]))
    torch.testing.assert_close(starts[0].point["z"][0], z.detach())
    assert bool((z != 0).any())
