"""Stages with late signals, against a recursion written from their definition; resumption; refusals."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import torchlift as tl
from torchlift.core.errors import TorchliftError
from torchlift.core.solution import Result
from torchlift.data import as_batches
from torchlift.liftings import Contrastive, Conventional
from torchlift.training import BackPropagation, ContrastiveDescent, SweepDescent
from training.runs import called

RATE = 0.05
SGD = partial(torch.optim.SGD, lr=RATE)


def dense() -> nn.Sequential:
    torch.manual_seed(3)
    sizes = [6, 9, 8, 7, 8, 3]
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1]).double()


def convolutional() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Unflatten(1, (1, 6, 1)), nn.Conv2d(1, 4, (3, 1)), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 3, (3, 1)), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3),
    ).double()  # fmt: skip


def data(samples: int = 23) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return tuple(torch.randn(samples, n, generator=generator, dtype=torch.float64) for n in (6, 3))  # type: ignore


def run(network: nn.Module, method: Any, steps: int = 17, **settings: Any) -> tl.training.Training:
    lifting = Conventional() if isinstance(method, BackPropagation) else None
    options = {"steps": steps, "batch_size": 5, "weights": "keep", "progress": False, "lifting": lifting}
    return tl.train(network, data(), solver=method, **called(options | settings))


def delayed(network: nn.Sequential, stages: int, steps: int, recompute: bool) -> list[Tensor]:
    """Gradient descent in which stage p sees batch n with its parameters as they were predicted d updates ago.

    d = 2(P − 1 − p) − 1, and the last of the updates before counts for the d to come.
    """
    batches = as_batches(data(), batch_size=5, seed=0)
    ranges = tl.parallel.cut_sequential(network, data()[0], stages)
    parts = [nn.Sequential(*list(network)[slice(*part.modules)]) for part in ranges]
    versions = [[{name: p.detach().clone() for name, p in part.named_parameters()}] for part in parts]
    last = stages - 1
    for n in range(steps - last):  # a batch whose way back reaches the last stage
        batch = batches.batch(n)
        inputs, used = [batch.y], []
        for p, part in enumerate(parts):
            delay = 0 if p == last else 2 * (last - p) - 1
            now = versions[p][max(0, n - delay)]
            earlier = versions[p][max(0, n - delay - 1)]
            used.append({name: now[name] + delay * (now[name] - earlier[name]) for name in now})
            inputs.append(functional_call(part, used[-1], (inputs[-1],)).detach())
        signal: Tensor | None = None
        for p in reversed(range(stages)):
            leaves = {k: v.clone().requires_grad_() for k, v in (versions[p][n] if recompute else used[p]).items()}
            u = inputs[p].clone().requires_grad_()
            value = functional_call(parts[p], leaves, (u,))
            value = tl.losses.SquaredError().mean(value, batch.x) if p == last else (value * signal).sum()
            *gradients, signal = torch.autograd.grad(value, [*leaves.values(), u])
            new = [v - RATE * g for v, g in zip(versions[p][n].values(), gradients, strict=True)]
            versions[p].append(dict(zip(leaves, new, strict=True)))
    # stage p has made the updates whose signals have come back to it
    return [t for p, kept in enumerate(versions) for t in kept[max(0, steps - 2 * last + p)].values()]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("stages", [2, 3, 5])
def test_delayed_gradients(stages: int, recompute: bool) -> None:
    network, steps = dense(), 17
    expected = delayed(dense(), stages, steps, recompute)
    run(network, BackPropagation(SGD, stages=stages, recompute=recompute), steps)
    for parameter, value in zip(network.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.detach(), value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("make", [dense, lambda: tl.lift(dense()), convolutional])
@pytest.mark.parametrize("recompute", [False, True])
def test_resumes_bit_for_bit_with_batches_in_flight(
    make: Callable[[], nn.Module], recompute: bool, tmp_path: Path
) -> None:
    method = SweepDescent(stages=3, recompute=recompute)
    whole = run(make(), method, evaluate_every=4)
    stopped = run(make(), method, folder=tmp_path, evaluate_every=4, callback=lambda row: row["step"] == 8)
    assert stopped.steps == 8
    resumed = run(make(), method, folder=tmp_path, resume=True, evaluate_every=4)
    assert [row["loss"] for row in resumed.history] == [row["loss"] for row in whole.history]
    for a, b in zip(whole.network.state_dict().values(), resumed.network.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_chain_and_its_modules_are_trained_alike() -> None:
    plain, chain = dense(), tl.lift(dense())
    run(plain, SweepDescent(stages=3))
    run(chain, SweepDescent(stages=3))
    for a, b in zip(plain.parameters(), chain.to_sequential().parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_a_run_with_stages_is_not_resumed_with_others(tmp_path: Path) -> None:
    run(dense(), SweepDescent(stages=3), steps=6, folder=tmp_path)
    for stages in (1, 2):
        with pytest.raises(TorchliftError, match="stages"):
            run(dense(), SweepDescent(stages=stages), steps=9, folder=tmp_path, resume=True)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 3).double(), nn.Linear(6, 3).double()

    def forward(self, y: Tensor) -> Tensor:
        return self.a(y) + self.b(y)


def test_what_is_no_chain_is_refused() -> None:
    with pytest.raises(TorchliftError, match=r"chain of layers, got Branches"):
        run(Branches(), SweepDescent(stages=2))
    with pytest.raises(TorchliftError, match=r"at most 5 stages"):
        run(dense(), SweepDescent(stages=6))
    with pytest.raises(TorchliftError, match=r"ContrastiveDescent stages: expected 1"):
        run(tl.lift(dense()), ContrastiveDescent(stages=2), lifting=Contrastive())
    shared = nn.Linear(6, 6).double()
    with pytest.raises(TorchliftError, match=r"weights of their own"):
        run(nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(6, 3).double()), SweepDescent(stages=2))


def test_a_loss_that_overflows_ends_the_run() -> None:
    method = BackPropagation(partial(torch.optim.SGD, lr=1e6), stages=3)
    result = run(dense(), method, steps=200)
    assert result.result is Result.NOT_FINITE
