"""Priors and regularisers of torchlift in deepinv, against deepinv's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import torchlift as tl
from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.functions.priors import L1, Box, HuberTV, PlugAndPlay, Tikhonov, TotalVariation
from torchlift.functions.regularisers import NuclearNorm, Ridge

optim = pytest.importorskip("deepinv.optim", reason="needs deepinv: pip install torchlift[deepinv]")
physics = pytest.importorskip("deepinv.physics")


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


PAIRS = {
    "l1": (L1(), optim.L1Prior()),
    "tikhonov": (Tikhonov(), optim.Tikhonov()),
    "total variation": (TotalVariation(), optim.TVPrior(def_crit=1e-9, n_it_max=3000)),
    "regulariser l1": (tl.regularisers.L1(), optim.L1Prior()),
    "ridge": (Ridge(1.0), optim.Tikhonov()),
}
"""Ours, and the same function as deepinv has it."""


@pytest.mark.parametrize("name", PAIRS)
def test_values_and_proximal_maps_are_those_of_deepinv(name: str) -> None:
    ours, theirs = PAIRS[name]
    prior = tl.contrib.deepinv.as_prior(ours, tolerance=1e-6, max_steps=5000)
    assert isinstance(prior, optim.Prior) and prior.explicit_prior
    x = randn(2, 1, 7, 6)
    torch.testing.assert_close(prior.fn(x), theirs.fn(x))
    torch.testing.assert_close(prior(x, 0.3, reduce=False), theirs(x))
    torch.testing.assert_close(prior.prox(x, 0.3, gamma=0.4), theirs.prox(x, gamma=0.4), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["tikhonov", "total variation", "ridge"])
def test_gradients_are_those_of_deepinv(name: str) -> None:
    ours, theirs = PAIRS[name]
    x = randn(2, 1, 7, 6)
    x[:, :, :3] = 0.5  # flat: the gradient of total variation has a corner here
    torch.testing.assert_close(tl.contrib.deepinv.as_prior(ours).grad(x, 0.3), theirs.grad(x))


@pytest.mark.parametrize("ours", [HuberTV(0.3), 2.0 * Tikhonov() + HuberTV(0.1, isotropic=False)])
def test_gradients_are_those_of_autograd(ours: Any) -> None:
    x = randn(2, 2, 5, 6).requires_grad_()
    (expected,) = torch.autograd.grad(ours.value(x).sum(), x)
    torch.testing.assert_close(tl.contrib.deepinv.as_prior(ours).grad(x.detach()), expected)


COMPOSED = {
    "total variation in a box": TotalVariation() + Box(0, 1),
    "sum": 0.5 * TotalVariation(isotropic=False) + L1() + 0.3 * Tikhonov(),
    "two without operator": L1() + 2.0 * Tikhonov(),
    "operator": Tikhonov(tl.operators.FiniteDifference((1, 6, 8))),
    "wavelet": tl.priors.Wavelet("haar", 1),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_the_accuracy_of_a_proximal_map_is_certified(name: str) -> None:
    ours = COMPOSED[name]
    x, gamma = randn(2, 1, 6, 8), torch.tensor([0.2, 0.7], dtype=torch.float64)
    coarse = tl.contrib.deepinv.as_prior(ours, tolerance=1e-3).prox(x, gamma=gamma.view(2, 1, 1, 1))
    fine = tl.contrib.deepinv.as_prior(ours, tolerance=1e-7, max_steps=20_000).prox(x, gamma=gamma)
    size = x.flatten(1).norm(dim=1)
    assert bool(((coarse - fine).flatten(1).norm(dim=1) <= 1.001e-3 * size).all())

    def objective(p: Tensor) -> Tensor:
        return 0.5 * (p - x).square().flatten(1).sum(1) + gamma * ours.value(p)

    best = objective(fine)
    for seed in range(1, 20):  # a minimiser: nothing near it is better by more than what the tolerance leaves
        near = fine + 1e-2 * randn(*x.shape, seed=seed)
        near = near.clamp(0, 1) if "box" in name else near
        assert bool((objective(near) >= best - 1e-7).all())


def test_one_gamma_for_each_image_is_that_of_each_alone() -> None:
    x, gammas = randn(2, 1, 5, 4), torch.tensor([0.1, 0.9], dtype=torch.float64)
    for ours in (TotalVariation(), L1(), NuclearNorm(0.5), tl.regularisers.ElasticNet(0.4, 1.5)):
        prior = tl.contrib.deepinv.as_prior(ours, tolerance=1e-6, max_steps=20_000)
        both = prior.prox(x, gamma=gammas.view(2, 1, 1, 1))
        for i in range(2):
            alone = prior.prox(x[i : i + 1], gamma=float(gammas[i]))
            torch.testing.assert_close(both[i : i + 1], alone, rtol=0, atol=2e-5)


def test_gradients_go_through_a_proximal_map() -> None:
    prior = tl.contrib.deepinv.as_prior(TotalVariation(), tolerance=1e-7, max_steps=20_000)
    x = randn(1, 1, 3, 4).requires_grad_()
    direction = randn(1, 1, 3, 4, seed=1)
    prior.prox(x, gamma=0.3).mul(direction).sum().backward()
    ahead, behind = (prior.prox(x.detach() + sign * 1e-5 * direction, gamma=0.3) for sign in (1, -1))
    assert x.grad is not None
    assert float((x.grad * direction).sum()) == pytest.approx(
        float(((ahead - behind) * direction).sum()) / 2e-5, rel=1e-3
    )


def test_a_proximal_map_that_is_not_accurate_warns() -> None:
    prior = tl.contrib.deepinv.as_prior(TotalVariation(), tolerance=1e-8, max_steps=3)
    with pytest.warns(UserWarning, match=r"stopped after 3 steps with a relative error of up to .* Raise max_steps"):
        prior.prox(randn(1, 1, 6, 6), gamma=1.0)


def test_an_algorithm_of_deepinv_finds_the_same_with_our_prior() -> None:
    matrix, y = randn(6, 10), randn(2, 6, seed=1)
    model = tl.contrib.deepinv.as_physics(tl.operators.Dense(matrix))
    step = 1 / tl.operators.Dense(matrix).norm_bound() ** 2
    settings: dict[str, Any] = {"data_fidelity": optim.L2(), "stepsize": step, "lambda_reg": 0.3, "max_iter": 1000}
    ours, theirs = (
        optim.PGD(prior=prior, early_stop=False, **settings)(y, model)
        for prior in (tl.contrib.deepinv.as_prior(L1()), optim.L1Prior())
    )
    torch.testing.assert_close(ours, theirs)
    gradient = matrix.T @ (matrix @ ours.T - y.T)
    assert float(gradient.abs().max()) <= 0.3 + 1e-4, "the optimality condition of the lasso"
    assert float((gradient.T[ours != 0] + 0.3 * ours[ours != 0].sign()).abs().max()) < 1e-4


def test_what_is_known_of_a_denoiser() -> None:
    half = PlugAndPlay(lambda x, step: x / (1 + step))
    prior = tl.contrib.deepinv.as_prior(2.0 * half + Box(0, 1))
    assert not prior.explicit_prior
    assert tl.contrib.deepinv.as_prior(PlugAndPlay(half.denoise, function=Tikhonov().value)).explicit_prior
    x = randn(2, 1, 3, 3)
    torch.testing.assert_close(tl.contrib.deepinv.as_prior(half).prox(x, gamma=0.5), x / 1.5)
    with pytest.raises(InvalidValueError, match="grad of a prior: expected functions with a gradient, got PlugAndPlay"):
        tl.contrib.deepinv.as_prior(half).grad(x)


def test_what_cannot_be_is_refused_with_words() -> None:
    x = randn(3, 1, 4, 4)
    with pytest.raises(InvalidTypeError, match="as_prior: expected a prior or a regulariser of torchlift, got L1Prior"):
        tl.contrib.deepinv.as_prior(optim.L1Prior())
    with pytest.raises(InvalidValueError, match="grad of a prior: expected functions with a gradient, got Box"):
        tl.contrib.deepinv.as_prior(Box(0, 1)).grad(x)
    with pytest.raises(InvalidValueError, match=r"expected functions with a gradient, got NuclearNorm"):
        tl.contrib.deepinv.as_prior(NuclearNorm()).grad(x)
    with pytest.raises(InvalidValueError, match=r"one for each of 3 images, got shape \(2, 1, 1, 1\)"):
        tl.contrib.deepinv.as_prior(L1()).prox(x, gamma=torch.ones(2, 1, 1, 1))
    with pytest.raises(InvalidValueError, match="prox gamma: expected a number > 0"):
        tl.contrib.deepinv.as_prior(L1()).prox(x, gamma=0.0)
    with pytest.raises(InvalidValueError, match="as_prior tolerance: expected a number > 0"):
        tl.contrib.deepinv.as_prior(TotalVariation(), tolerance=0.0)
    with pytest.raises(InvalidValueError, match=r"TotalVariation: expected images of shape \(height, width\) or"):
        tl.contrib.deepinv.as_prior(TotalVariation()).prox(x[0, 0], gamma=1.0)
