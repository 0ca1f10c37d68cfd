"""What the theory says about lifted objectives, checked on problems small enough to solve."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchlift import liftings, losses, networks, prox
from torchlift.networks import MLP, Network
from torchlift.objective import Objective
from torchlift.objective.engine import Gradients, States

BATCH = 12


def _randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _network(activation: prox.ProximalActivation, widths: tuple[int, ...] = (3, 5, 5, 2)) -> MLP:
    return MLP(list(widths), activation, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def _descend(
    objective: Objective, y: Tensor, x: Tensor, z: States, steps: int, rate: float, train: bool = True
) -> States:
    """Plain alternating proximal gradient, enough for tiny problems."""
    gradients: Gradients | None = None
    for _ in range(steps):
        gradients = objective.gradients(y, x, z, out=gradients)
        for buffer, slope in zip(z.buffers, gradients.z.buffers, strict=True):
            buffer.sub_(slope, alpha=rate * len(y))
        z = objective.prox_states(z, rate * len(y))
        if train:
            gradients = objective.gradients(y, x, z, out=gradients)
            for name, slope in gradients.parameters.items():
                objective.network.get_parameter(name).sub_(slope, alpha=rate)
    return z


def test_large_weights_approach_conventional_training() -> None:
    """min_z E(θ, z) → L(N_θ(y)) as μ → ∞, for every lifting whose penalty vanishes only at z = σ(v)."""
    network = _network(prox.LeakyReLU(0.3))
    y, x = _randn(1, BATCH, 3), _randn(2, BATCH, 2)
    conventional = float(Objective(network, liftings.Conventional()).value(y, x))
    for kind in (liftings.MACQP, liftings.Bregman, liftings.Fenchel):
        gaps = []
        for mu in (1.0, 10.0, 100.0):
            objective = Objective(network, kind(mu))
            z = _descend(objective, y, x, objective.initialise(y), 600, 0.3 / mu, train=False)
            gaps.append(conventional - float(objective.value(y, x, z)))
        assert gaps[0] > gaps[1] > gaps[2] > 0, kind
        assert gaps[1] / gaps[2] == pytest.approx(10, rel=0.15), "the gap shrinks like 1/μ"


def test_classical_lifting_collapses_to_an_affine_network() -> None:
    """Its minimisers keep every unit in the linear regime of ReLU; those of the Bregman lifting do not."""
    y = _randn(3, 40, 2)
    x = (y[:, :1] * y[:, 1:]).sign()  # a checkerboard, which no affine map fits
    design = torch.cat([y, torch.ones(40, 1, dtype=y.dtype)], dim=1)
    best_affine = 0.5 * float((design @ torch.linalg.lstsq(design, x).solution - x).square().mean())

    def trained(lifting: liftings.Lifting) -> tuple[float, float, float]:
        """Lifted loss, loss of the network itself, and the share of v that ReLU changes."""
        network = _network(prox.ReLU(), (2, 12, 1))
        objective = Objective(network, lifting)
        z = _descend(objective, y, x, objective.initialise(y), 1500, 0.1)
        v = objective.engine.evaluate(y, z).parts[0].v
        bent = float((torch.relu(v) - v).square().sum() / v.square().sum())
        return objective.report(y, x, z).loss, float(Objective(network, liftings.Conventional()).value(y, x)), bent

    lifted, own, bent = trained(liftings.Classical(1.0))
    assert lifted < 0.01, "the lifted objective claims a fit"
    assert own > 0.95 * best_affine, "but the network is no better than an affine map"
    assert bent < 1e-3

    lifted, own, bent = trained(liftings.Bregman(1.0))
    assert lifted < 0.01
    assert own < 0.5 * best_affine
    assert bent > 0.3


@pytest.mark.parametrize("activation", [prox.ReLU(), prox.Tanh(), prox.SoftThreshold(0.2)], ids=repr)
def test_objective_is_convex_in_each_block(activation: prox.ProximalActivation) -> None:
    """Along random segments in z of one layer, and in all weights with z fixed (Bregman)."""
    network = _network(activation)
    objective = Objective(network, liftings.Bregman(0.8))
    y, x = _randn(4, BATCH, 3), _randn(5, BATCH, 2)
    with torch.no_grad():
        for trial in range(20):
            z = objective.initialise(y)
            for layer in z:
                layer.copy_(activation(_randn(100 + trial, *layer.shape)))
            ends = [activation(_randn(200 + 2 * trial + k, *z[0].shape)) for k in (0, 1)]
            values = []
            for t in (0.0, 0.5, 1.0):
                z[trial % 2].copy_((1 - t) * ends[0] + t * ends[1])
                values.append(float(objective.value(y, x, z)))
            assert values[1] <= 0.5 * (values[0] + values[2]) + 1e-10
            start = {name: p.clone() for name, p in network.named_parameters()}
            values = []
            for t in (0.0, 0.5, 1.0):
                for k, (name, p) in enumerate(network.named_parameters()):
                    p.copy_(start[name] + t * _randn(300 + 10 * trial + k, *p.shape))
                values.append(float(objective.value(y, x, z)))
            assert values[1] <= 0.5 * (values[0] + values[2]) + 1e-10


class TestContrastive:
    """Clamped minus free energy."""

    def _setup(self, network: Network | None = None) -> tuple[Objective, Tensor, Tensor]:
        network = network or _network(prox.ReLU())
        objective = Objective(network, liftings.Contrastive(0.7))
        return objective, _randn(6, 4, *network.in_shape), _randn(7, 4, *network.out_shape)

    def test_free_energy_is_at_most_that_of_any_states(self) -> None:
        objective, y, x = self._setup()
        z = objective.initialise(y)
        free = objective.report(y, x, z).free_energy
        classical = Objective(objective.network, liftings.Classical(0.7))
        for seed in range(20):
            with torch.no_grad():
                other = objective.initialise(y)
                for layer in other:
                    layer.add_(0.3 * _randn(seed, *layer.shape)).clamp_(min=0)
            energy = sum(classical.report(y, x, other).penalties)
            assert energy >= free - 1e-9
        forward = sum(classical.report(y, x, z).penalties)
        assert free < forward - 1e-6, "minimising over all layers at once is better than the forward pass"

    def test_non_negative_and_zero_at_agreement(self) -> None:
        objective, y, x = self._setup()
        classical = Objective(objective.network, liftings.Classical(0.7))
        clamped = _descend(classical, y, x, objective.initialise(y), 500, 0.2, train=False)
        assert float(objective.value(y, x, clamped)) > 1e-3
        # With the target at the free solution's own output both energies agree.
        free = _descend(
            Objective(objective.network, liftings.Classical(0.7), _Nothing()),
            y,
            x,
            objective.initialise(y),
            1500,
            0.3,
            False,
        )
        target = objective.engine.evaluate(y, free).output
        assert float(objective.value(y, target, free)) == pytest.approx(0, abs=1e-8)

    @pytest.mark.parametrize("kind", ["mlp", "resnet"])
    def test_parameter_gradient_against_finite_differences(self, kind: str) -> None:
        network = None
        if kind == "resnet":
            network = networks.ResNet(3, [4, 4], 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        objective, y, x = self._setup(network)
        with torch.no_grad():
            z = objective.initialise(y)
            for layer in z:
                layer.add_(0.1)
        found = objective.gradients(y, x, z).parameters
        for k, (name, parameter) in enumerate(objective.network.named_parameters()):
            direction, step, values = _randn(30 + k, *parameter.shape), 1e-5, []
            for sign in (1, -2):
                with torch.no_grad():
                    parameter.add_(direction, alpha=sign * step)
                values.append(float(objective.value(y, x, z)))
            with torch.no_grad():
                parameter.add_(direction, alpha=step)
            slope = (values[0] - values[1]) / (2 * step)
            assert float((found[name] * direction).sum()) == pytest.approx(slope, rel=1e-4, abs=1e-6), name


class _Nothing(losses.Loss):
    """A loss that is always zero."""

    def value(self, prediction: Tensor, target: Tensor) -> Tensor:
        return prediction.new_zeros(len(prediction))

    def grad(self, prediction: Tensor, target: Tensor) -> Tensor:
        return torch.zeros_like(prediction)

    def curvature(self) -> float:
        return 0.0

    def prox(self, prediction: Tensor, target: Tensor, step: float | Tensor = 1.0) -> Tensor:
        return prediction
