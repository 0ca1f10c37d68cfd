"""Denoisers with learned filters: the algorithms behind them, the certificate, training, use as a prior."""

from __future__ import annotations

import pytest
import torch

import torchlift as tl
from torchlift.core.errors import InvalidValueError
from torchlift.networks import DDFB, FirmDenoiser, Network, ScCP


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def small(kind: type[Network], iterations: int = 3, **settings: object) -> Network:
    generator = torch.Generator().manual_seed(0)
    return kind((1, 8, 7), iterations, features=12, size=3, generator=generator, dtype=torch.float64, **settings)


@pytest.mark.parametrize("kind", [DDFB, ScCP])
def test_many_iterations_reach_the_minimiser(kind: type[Network]) -> None:
    """½‖x − y‖² + λ‖Dx‖₁ over [0, 1]: both algorithms go to the point where the duality gap vanishes."""
    net = small(kind, 800, tied=True, threshold=0.1)
    y = 1.4 * draw(2, 1, 8, 7) - 0.2
    (bank,) = net.filters.stack.operators()
    with torch.no_grad():
        states = net.states(y)
        x, p = states.output, 0.1 * states.u[-2]
        primal = 0.5 * (x - y).square().flatten(1).sum(1) + 0.1 * bank(x).abs().flatten(1).sum(1)
        nearest = (y - bank.adjoint(p)).clamp(0, 1)
        # min over x in [0, 1] of ½‖x − y‖² + ⟨Dx, p⟩ is attained at the projection of y − Dᵀp
        dual = (0.5 * (nearest - y).square() + nearest * bank.adjoint(p)).flatten(1).sum(1)
    assert float(primal.min()) > 0.1
    torch.testing.assert_close(primal, dual, rtol=1e-5 if kind is DDFB else 1e-3, atol=0)


def test_firm_denoisers_are_firmly_nonexpansive_whatever_their_weights() -> None:
    for seed, size in enumerate((0.1, 1.0, 10.0)):
        net = small(FirmDenoiser, 4)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.copy_(size * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
            net.threshold.log.clamp_(-4, 1)
            assert net.certificate().firmly_nonexpansive and len(net.certificate().norms) == 4
            for scale in (1e-3, 1.0, 30.0):
                a, b = draw(50, 1, 8, 7, seed=1), draw(50, 1, 8, 7, seed=2)
                b = a + scale * (b - 0.5)
                change, moved = (net(a) - net(b)).flatten(1), (a - b).flatten(1)
                assert bool((change.square().sum(1) <= (change * moved).sum(1) * (1 + 1e-9)).all())
        assert float(moved.norm()) > float(change.norm()) > 0


def test_firm_denoisers_are_firm_along_the_worst_direction() -> None:
    """‖2J − I‖ ≤ 1 for the Jacobian, which random pairs would hardly find."""
    net = small(FirmDenoiser, 3, threshold=0.02)
    with torch.no_grad():
        net.filters.stack.weight.mul_(3)
    for seed in range(3):
        y = draw(1, 1, 8, 7, seed=seed)
        jacobian = torch.autograd.functional.jacobian(net, y).reshape(56, 56)
        assert float(torch.linalg.matrix_norm(2 * jacobian - torch.eye(56), 2)) <= 1 + 1e-9


def test_one_step_is_a_proximal_map() -> None:
    """Its Jacobian is symmetric with eigenvalues in [0, 1] (Moreau)."""
    net = small(FirmDenoiser, 1, threshold=0.05)
    jacobian = torch.autograd.functional.jacobian(net, draw(1, 1, 8, 7)).reshape(56, 56)
    torch.testing.assert_close(jacobian, jacobian.T, rtol=0, atol=1e-12)
    values = torch.linalg.eigvalsh(jacobian)
    assert float(values.min()) >= -1e-9 and float(values.max()) <= 1 + 1e-9


@pytest.mark.parametrize("kind", [DDFB, ScCP, FirmDenoiser])
def test_other_sizes_share_the_weights(kind: type[Network]) -> None:
    net = small(kind)
    other = net.for_images((1, 12, 5))
    y = draw(2, 1, 12, 5)
    assert other(y).shape == y.shape and net.in_shape == (1, 8, 7)
    with torch.no_grad():
        before = other(y)
        net.filters.stack.weight.mul_(1.3)
        assert not torch.equal(other(y), before)
    # far from the border both see the same
    y = torch.zeros(1, 1, 30, 30, dtype=torch.float64)
    y[..., 13:17, 13:17] = draw(4, 4)
    large, medium = net.for_images((1, 30, 30))(y), net.for_images((1, 24, 24))(y[..., 3:27, 3:27])
    torch.testing.assert_close(large[..., 3:27, 3:27], medium)
    with pytest.raises(InvalidValueError, match="1 channels"):
        net.for_images((3, 8, 8))


@pytest.mark.parametrize("kind", [DDFB, ScCP, FirmDenoiser])
@pytest.mark.parametrize("lifting", [None, tl.liftings.Conventional()])
def test_training_removes_noise(kind: type[Network], lifting: object) -> None:
    generator = torch.Generator().manual_seed(0)
    net = kind((1, 8, 8), 3, features=8, size=3, threshold=0.2, generator=generator)
    edges = torch.rand(60, 1, 1, 1, generator=generator) > torch.linspace(0, 1, 8)
    x = edges.float().expand(60, 1, 8, 8).contiguous()
    y = x + 0.2 * torch.randn(x.shape, generator=generator)
    result = tl.train(net, (y[:50], x[:50]), validation=(y[50:], x[50:]), lifting=lifting, steps=60, progress=False)
    with torch.no_grad():
        error = float((result.network(y[50:]) - x[50:]).square().mean())
    assert error < 0.6 * float((y[50:] - x[50:]).square().mean())


@pytest.mark.parametrize("lifting", [tl.liftings.Bregman(), tl.liftings.MACQP()])
def test_lifted_solvers_take_them(lifting: object) -> None:
    net = small(FirmDenoiser, 2).float()
    x = draw(10, 1, 8, 7).float()
    result = tl.train(net, (x + 0.1, x), lifting=lifting, steps=3, progress=False)
    assert result.steps == 3


def test_a_trained_denoiser_is_a_prior() -> None:
    net = small(FirmDenoiser, 2, threshold=0.02)
    prior = tl.priors.PlugAndPlay(net)
    encoder = tl.lift(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(56, 40)).double(), input_shape=(1, 8, 7))
    x = draw(2, 1, 8, 7)
    found = tl.invert(encoder, encoder(x).detach(), prior=prior, weight=1e-3, max_steps=20)
    assert found.x.shape == x.shape and bool(torch.isfinite(found.x).all())


@pytest.mark.parametrize("kind", [DDFB, ScCP, FirmDenoiser])
def test_images_of_any_size_and_steps(kind: type[Network]) -> None:
    net = small(kind, 2)
    x = draw(3, 1, 11, 6)
    torch.testing.assert_close(net(x), net.for_images((1, 11, 6))(x))
    with pytest.raises(InvalidValueError, match="1 channels"):
        net(draw(3, 2, 8, 7))
    if kind is not FirmDenoiser:
        net.constraint = tl.Identity()  # the network with thresholds sλ is then s·N(x/s)
    steps = torch.tensor([0.0, 1.0, 0.3], dtype=x.dtype).reshape(3, 1, 1, 1)
    result = tl.priors.PlugAndPlay(net).prox(x, steps.flatten())
    torch.testing.assert_close(result, torch.stack([x[0], net(x)[1], 0.3 * net(x / 0.3)[2]]))


def test_starts_are_frames_without_a_mean() -> None:
    for features in (3, 8, 20):
        net = DDFB((1, 9, 9), 1, features=features, size=3, generator=torch.Generator().manual_seed(0))
        weight = net.filters.stack.weight[0].detach()
        assert float(weight.sum((1, 2, 3)).abs().max()) < 1e-6
        assert float(tl.operators.filter_norm(weight)) < 1.01
    colour = ScCP((3, 9, 9), 1, features=24, size=3).filters.stack.weight[0].detach()
    assert float(colour.sum((2, 3)).abs().max()) < 1e-6


@pytest.mark.parametrize(("name", "value"), [("size", 4), ("features", 0), ("threshold", -1.0), ("iterations", 0)])
def test_settings_are_checked(name: str, value: float) -> None:
    arguments = {"iterations": 2, "size": 3, "features": 4, "threshold": 0.1, name: value}
    with pytest.raises(ValueError, match=f"FirmDenoiser {name}"):
        FirmDenoiser((1, 8, 8), **arguments)
