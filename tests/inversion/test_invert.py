"""`invert` from end to end: it finds inputs, says how it went, and treats every image alone."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import torchlift as tl
from contracts.network_cases import CASES
from torchlift.core.errors import InvalidValueError
from torchlift.functions.priors import L1, Box, PlugAndPlay, Tikhonov, TotalVariation
from torchlift.inversion import (
    ALGORITHMS,
    Inversion,
    NestedAdam,
    NestedPDHG,
    Simultaneous,
    Status,
    Sweep,
)
from torchlift.inversion.memory import memory_per_image
from torchlift.networks import Network


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def tanh_network() -> Network:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(5):
        layers += [nn.Linear(10, 10), nn.Tanh()]
    for module in layers[::2]:
        nn.init.orthogonal_(module.weight)
    return tl.lift(nn.Sequential(*layers).double())


def strided_network(side: int = 16, codes: int = 192) -> Network:
    """Two strided convolutions and a code, scaled so that signals keep their size."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 8, 4, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 4, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(side * side, codes),
    )  # fmt: skip
    for layer in module:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.orthogonal_(layer.weight, math.sqrt(2))
    return tl.lift(module.double(), (1, side, side))


def discs(count: int, side: int = 16) -> Tensor:
    """Images of one bright disc each."""
    generator = torch.Generator().manual_seed(1)
    centres = side * (0.3 + 0.4 * torch.rand(count, 2, 1, 1, generator=generator, dtype=torch.float64))
    grid = torch.arange(side, dtype=torch.float64)
    distance = (grid[:, None] - centres[:, 0]) ** 2 + (grid - centres[:, 1]) ** 2
    return (distance < (side / 4) ** 2).double()[:, None]


def encoder() -> Network:
    return strided_network(8, 24)


def test_a_deep_tanh_network_is_inverted() -> None:
    """The output is in the range of tanh, the last activation is clamped, and the map is invertible."""
    net, x = tanh_network(), 0.3 * normal(6, 10)
    with torch.no_grad():
        y = net(x)
    inv = tl.invert(net, y, Tikhonov(), 1e-6, algorithm="sweep", max_steps=400, tolerance=1e-7)
    assert inv.gaps.shape == (6, 5)
    assert float((inv.x - x).abs().max()) < 0.06
    assert float(inv.residual.max()) < 1e-2 * float(y.norm(dim=1).min())
    assert bool(inv.monotone.all())


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "exact"])
def test_strided_convolutions(algorithm: str) -> None:
    """Every algorithm comes nearer to the image and to the output than a grey image is."""
    net, x = strided_network(), discs(3)
    with torch.no_grad():
        clean = net(x)
        y = clean + 0.01 * clean.std() * normal(*clean.shape)
        blank = (net(torch.zeros_like(x)) - y).flatten(1).norm(dim=1)
    inv = tl.invert(net, y, TotalVariation() + Box(0, 1), 3e-3, algorithm=algorithm, max_steps=300)
    assert bool((inv.residual < 0.25 * blank).all())
    error, start = (inv.x - x).flatten(1).norm(dim=1), x.flatten(1).norm(dim=1)
    assert bool((error < 0.8 * start).all())
    assert float(inv.x.min()) >= 0 and float(inv.x.max()) <= 1
    with torch.no_grad():
        torch.testing.assert_close(inv.residual, (net(inv.x) - y).flatten(1).norm(dim=1))


def test_sweeps_need_fewer_steps_than_simultaneous_updates() -> None:
    net, x = strided_network(), discs(3)
    with torch.no_grad():
        y = net(x)
    prior, options = TotalVariation() + Box(0, 1), {"max_steps": 100, "tolerance": 0.0}
    swept = tl.invert(net, y, prior, 1e-4, algorithm="sweep", **options)
    together = tl.invert(net, y, prior, 1e-4, algorithm="paper", **options)
    assert bool((swept.objective < together.objective).all())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_architecture(case) -> None:
    """Residual, unrolled and masked networks as well; contexts go to their own images."""
    net, context = case.build(), case.context()
    x = 0.5 * case.input(net)
    with torch.no_grad():
        y = net(x, context)
        first = (net(torch.zeros_like(x), context) - y).flatten(1).norm(dim=1)
    swept = tl.invert(net, y, context=context, algorithm="sweep", max_steps=50, tolerance=0.0)
    assert bool((swept.residual <= first).all())  # untrained decoders hardly see their input
    parts = tl.invert(net, y, context=context, algorithm="sweep", max_steps=50, tolerance=0.0, batch_limit=2)
    torch.testing.assert_close(parts.x, swept.x, rtol=1e-6, atol=1e-8)
    inv = tl.invert(net, y, context=context, max_steps=50)
    assert bool((inv.residual <= first * (1 + 1e-9)).all())


def test_warm_start_and_anchor() -> None:
    net, x = encoder(), normal(3, 1, 8, 8)
    with torch.no_grad():
        y = net(x)
    guess = x + 0.05 * normal(3, 1, 8, 8, seed=1)
    near = tl.invert(net, y, start=guess, anchor=1e3, max_steps=200)
    assert float((near.x - guess).abs().max()) < 1e-2
    loose = tl.invert(net, y, start=guess, max_steps=20)
    cold = tl.invert(net, y, max_steps=20)
    assert bool((loose.residual < cold.residual).all())
    assert bool((tl.invert(net, y, start=x, max_steps=5).residual < 1e-12).all())


def test_images_do_not_influence_each_other() -> None:
    """One by one, in a batch, in small batches, with images that finish early: the same inputs."""
    net, x = encoder(), normal(8, 1, 8, 8) * torch.logspace(-3, 0, 8, dtype=torch.float64).view(-1, 1, 1, 1)
    with torch.no_grad():
        y = net(x)
    options = {"algorithm": "sweep", "max_steps": 300, "tolerance": 3.0}
    prior = TotalVariation()
    together = tl.invert(net, y, prior, 1e-4, **options)
    assert len(set(together.steps.tolist())) > 2, "images must finish at different times for this test"
    split = tl.invert(net, y, prior, 1e-4, batch_limit=3, **options)
    for field in ("x", "residual", "gaps", "objective"):
        torch.testing.assert_close(getattr(together, field), getattr(split, field), rtol=1e-9, atol=1e-12)
    assert together.steps.tolist() == split.steps.tolist()
    assert together.status.tolist() == split.status.tolist()
    for i in (0, 5):
        alone = tl.invert(net, y[i : i + 1], prior, 1e-4, **options)
        torch.testing.assert_close(alone.x[0], together.x[i], rtol=1e-9, atol=1e-12)


def test_work_shrinks_with_the_images_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = encoder(), normal(8, 1, 8, 8) * torch.logspace(-3, 0, 8, dtype=torch.float64).view(-1, 1, 1, 1)
    with torch.no_grad():
        y = net(x)
    sizes: list[int] = []
    original = Sweep.advance

    def advance(self, problem, state):
        sizes.append(problem.batch)
        return original(self, problem, state)

    monkeypatch.setattr(Sweep, "advance", advance)
    inv = tl.invert(net, y, TotalVariation(), 1e-4, algorithm="sweep", max_steps=300, tolerance=10.0)
    assert sizes[0] == 8 and sizes[-1] <= 4 and sorted(sizes, reverse=True) == sizes
    assert len(sizes) == int(inv.steps.max())
    running = [record.extra["running"] for record in inv.history]
    assert len(running) == len(sizes) and running[-1] == 0


def test_history_is_the_mean_objective_and_decreases() -> None:
    net, y = encoder(), normal(6, 24, seed=2)
    inv = tl.invert(net, y, TotalVariation(), 1e-3, algorithm="sweep", max_steps=60)
    assert inv.history[-1].value == pytest.approx(float(inv.objective.mean()))
    values = [record.value for record in inv.history]
    assert all(b <= a * (1 + 1e-12) for a, b in pairwise(values))
    parts = tl.invert(net, y, TotalVariation(), 1e-3, algorithm="sweep", max_steps=60, batch_limit=4)
    assert [r.value for r in parts.history] == pytest.approx(values, rel=1e-9)


def test_weights_per_image() -> None:
    net, y = encoder(), normal(3, 24, seed=2)
    weights = torch.tensor([0.0, 1e-3, 10.0], dtype=torch.float64)
    inv = tl.invert(net, y, TotalVariation(), weights, max_steps=100)
    torch.testing.assert_close(inv.weight, weights)
    variation = TotalVariation().value(inv.x)
    assert float(variation[2]) < 0.1 * float(variation[1]) < 0.1 * float(variation[0])
    for i, weight in enumerate(weights.tolist()):
        alone = tl.invert(net, y[i : i + 1], TotalVariation(), weight, max_steps=100)
        torch.testing.assert_close(alone.x[0], inv.x[i], rtol=1e-5, atol=1e-6)


def test_a_denoiser_may_stand_in_for_a_prior() -> None:
    """With the prox of ℓ1 as the denoiser, the result is that of ℓ1."""
    net, y = encoder(), normal(2, 24, seed=2)
    for algorithm in ("sweep", "accelerated"):
        options = {"algorithm": algorithm, "max_steps": 400}
        shrink = PlugAndPlay(lambda x, step: x.sign() * (x.abs() - step).clamp_min(0))
        plugged = tl.invert(net, y, shrink, 0.01, **options)
        prior = tl.invert(net, y, PlugAndPlay(L1().split((1, 8, 8)).prox, L1().value), 0.01, **options)
        exact = tl.invert(net, y, L1(), 0.01, **options)
        torch.testing.assert_close(prior.x, exact.x)
        assert float((plugged.x - exact.x).abs().max()) < 0.1 * float(exact.x.abs().max())
    torch.testing.assert_close(
        tl.invert(net, y, shrink, 0.01, start=torch.zeros_like(plugged.x), max_steps=400).x, plugged.x
    )


def test_values_outside_the_range_are_refused_or_projected() -> None:
    net = tl.lift(nn.Sequential(nn.Linear(3, 4), nn.ReLU()).double())
    y = torch.ones(2, 4, dtype=torch.float64)
    y[1, 2] = -0.5
    with pytest.raises(InvalidValueError, match=r"range of ReLU, got -0.5 at index \(1, 2\).*'project'"):
        tl.invert(net, y, algorithm="sweep")
    inv = tl.invert(net, y, algorithm="sweep", on_infeasible="project")
    assert inv.projected == 1 and "1 entries of y were moved" in inv.message
    free = tl.invert(net, y)  # half the squared error is finite everywhere
    assert free.projected == 0 and bool(free.objective.isfinite().all())
    y[1, 2] = 0
    torch.testing.assert_close(tl.invert(net, y, algorithm="sweep").x, inv.x)
    for module in (nn.Tanh(), nn.Softsign(), nn.Sigmoid(), nn.Softmax(-1)):
        net = tl.lift(nn.Sequential(nn.Linear(3, 4), module).double())
        y = torch.full((1, 4), 1.2, dtype=torch.float64)
        inv = tl.invert(net, y, algorithm="sweep", on_infeasible="project", max_steps=5)
        assert inv.projected == 4 and bool(inv.objective.isfinite().all())


def test_what_diverges_is_marked_and_the_best_iterate_returned() -> None:
    """Adam with an absurd step."""
    net, y = encoder(), normal(3, 24, seed=2)
    inv = tl.invert(net, y, Tikhonov(), 1e-3, algorithm=NestedAdam(step_size=1e9))
    assert inv.counts == {"diverged": 3} and bool(inv.failed.all()) and not inv.converged
    assert "diverged" in inv._repr_html_() and "best iterate" in inv.message
    torch.testing.assert_close(inv.x, torch.zeros_like(inv.x))  # nothing was better than the start
    assert bool(inv.objective.isfinite().all()) and not bool(inv.monotone.any())


def test_what_goes_astray_returns_its_best_iterate() -> None:
    """Large steps of Adam go up and down; what is returned is the least objective met, the start's included."""
    net, y = encoder(), normal(1, 24, seed=2)
    inv = tl.invert(net, y, Tikhonov(), 1e-3, algorithm=NestedAdam(step_size=2.0), max_steps=12, tolerance=0.0)
    values = [record.value for record in inv.history]
    assert values[-1] > min(values) >= float(inv.objective)
    expected = 0.5 * inv.residual.square() + 1e-3 * Tikhonov().value(inv.x)
    torch.testing.assert_close(inv.objective, expected)
    assert inv.counts == {"max_steps": 1} and not bool(inv.monotone)


def test_stalling_is_reported() -> None:
    """At a minimiser nothing decreases any more, and a tolerance of 0 is never reached."""
    net, x = encoder(), normal(2, 1, 8, 8)
    with torch.no_grad():
        y = net(x)
    inv = tl.invert(net, y, algorithm=Sweep(patience=3), start=x, max_steps=50, tolerance=0.0)
    assert inv.counts == {"stalled": 2} and max(inv.steps.tolist()) < 9 and "no visible progress" in inv.message
    assert not inv.converged


def test_budgets_and_requests_to_stop() -> None:
    net, y = encoder(), normal(4, 24, seed=2)
    assert tl.invert(net, y, max_steps=3, tolerance=0.0).counts == {"max_steps": 4}
    assert tl.invert(
        net, y, algorithm=Sweep(patience=10**6), max_steps=10**6, tolerance=0.0, time_limit=0.05
    ).counts == {"time_limit": 4}
    seen: list[int] = []

    def stop(record: object) -> bool:
        seen.append(record.step)
        return len(seen) == 5

    inv = tl.invert(net, y, algorithm="sweep", progress=stop, tolerance=0.0, batch_limit=2)
    assert inv.counts == {"stopped": 4} and seen == [1, 2, 3, 4, 5]
    assert inv.steps.tolist() == [5, 5, 0, 0]


def test_memory_is_planned_and_refused_before_it_is_taken() -> None:
    net, y = encoder(), normal(5, 24, seed=2)
    options = {"algorithm": "sweep", "max_steps": 10}
    whole = tl.invert(net, y, TotalVariation(), **options)
    assert whole.problem is not None
    needed = memory_per_image(net, whole.problem)
    inv = tl.invert(net, y, TotalVariation(), memory_limit=2.5 * needed, **options)
    torch.testing.assert_close(inv.x, whole.x)
    with pytest.raises(InvalidValueError, match=r"memory_limit: expected at least [\d,]+ bytes, which one image needs"):
        tl.invert(net, y, memory_limit=1.0, max_steps=2)


def test_single_precision_and_sequentials() -> None:
    module = strided_network(8, 24).to_sequential().float()
    y = normal(2, 24).float()
    x = torch.zeros(2, 1, 8, 8)
    inv = tl.invert(module, y, TotalVariation(), 1e-3, start=x)
    assert inv.x.dtype == torch.float32 and not inv.x.requires_grad
    same = tl.invert(tl.lift(module, (1, 8, 8)), y, TotalVariation(), 1e-3, start=x)
    torch.testing.assert_close(inv.x, same.x)


def test_pictures_of_results() -> None:
    inv = tl.invert(encoder(), normal(2, 24), algorithm="sweep", max_steps=2)
    assert isinstance(inv, Inversion)
    assert repr(inv).startswith("Inversion(2 inputs of shape (1, 8, 8): 2 of 2 images: the number of steps ran out")
    assert "<table>" in inv._repr_html_() and "2 max steps" in inv._repr_html_()
    assert all(status.sentence for status in Status)


def test_nested_baselines_agree_where_the_network_is_affine() -> None:
    """One affine layer: lifted and nested objectives are the same convex function."""
    torch.manual_seed(0)
    net = tl.lift(nn.Sequential(nn.Linear(6, 8)).double())
    y = normal(3, 8)
    options = {"max_steps": 1500, "tolerance": 1e-9}
    swept = tl.invert(net, y, L1(), 0.1, algorithm="sweep", **options)
    for algorithm in (NestedPDHG(), Simultaneous(), NestedAdam(step_size=0.01)):
        other = tl.invert(net, y, L1(), 0.1, algorithm=algorithm, **options)
        loose = 0.1 if isinstance(algorithm, NestedAdam) else 1e-5
        torch.testing.assert_close(other.x, swept.x, rtol=0, atol=loose)
    assert math.isclose(float(swept.objective.sum()), float(other.objective.sum()), rel_tol=1e-3)


def test_a_linear_operator_is_a_network() -> None:
    """With Tikhonov's prior the answer is known: (HᵀH + ρI)⁻¹ Hᵀ y."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    y = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    found = tl.invert(tl.operators.Dense(matrix), y, Tikhonov(), 0.5, tolerance=1e-10, max_steps=500, progress=False)
    exact = torch.linalg.solve(matrix.T @ matrix + 0.5 * torch.eye(4, dtype=torch.float64), matrix.T @ y.T).T
    torch.testing.assert_close(found.x, exact, atol=1e-4, rtol=1e-4)


def test_arrays_of_numpy_are_taken_as_tensors_of_the_networks_kind() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(), nn.Linear(6, 5))
    y = network(torch.rand(3, 4)).detach()
    start = torch.full((3, 4), 0.3)
    wanted = tl.invert(network, y, tl.priors.Tikhonov(), 1e-3, start=start, progress=False)
    found = tl.invert(
        network, y.numpy().astype("float64"), tl.priors.Tikhonov(), 1e-3, start=start.numpy(), progress=False
    )
    assert torch.equal(found.x, wanted.x)
    with pytest.raises(InvalidValueError, match="real numbers"):
        tl.invert(network, y.numpy().astype("complex64"), progress=False)
