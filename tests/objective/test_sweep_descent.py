"""Stochastic descent by backward sweeps, on the shared driver."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn

from torchlift import losses, networks, operators, prox
from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.core.tensors import Point
from torchlift.data import as_batches
from torchlift.imaging import load_digits
from torchlift.objective import (
    GramRule,
    Nudge,
    Objective,
    RelativeStep,
    ScaledStep,
    SweepDescent,
    SweepRule,
    TrainingBatches,
)
from torchlift.solvers import (
    Backtracking,
    Cosine,
    GramStep,
    ImplicitStochasticGradient,
    LinearisedBCD,
    ProximalGradient,
    Stopping,
    solve,
    state_from_parts,
    state_to_parts,
)


def _digits(count: int = 1000) -> tuple[Tensor, Tensor]:
    digits = load_digits("train")
    return digits.images[:count].flatten(1), digits.labels[:count]


def _batches(
    activation: prox.ProximalActivation | None = None, count: int = 1000, dtype: torch.dtype = torch.float32
) -> TrainingBatches:
    generator = torch.Generator().manual_seed(0)
    network = networks.MLP([784, 64, 64, 10], activation or prox.ReLU(), generator=generator, dtype=dtype)
    images, labels = _digits(count)
    data = as_batches((images.to(dtype), labels), batch_size=100)
    return TrainingBatches(Objective(network, loss=losses.CrossEntropy()), data)


def _accuracy(batches: TrainingBatches, point: Point) -> float:
    batches.data(0, point)
    y, x, _ = next(batches.batches.ordered(10_000))
    with torch.no_grad():
        return float((batches.objective.network(y).argmax(1) == x).double().mean())


@pytest.mark.parametrize(
    "rule", [RelativeStep(), ScaledStep(3e-3), GramRule(GramStep(0.3)), ScaledStep(Cosine(1e-2, 30, 1e-3))], ids=repr
)
def test_classifies_digits(rule: SweepRule) -> None:
    batches = _batches()
    solution = solve(batches, SweepDescent(rule), batches.start(), stopping=Stopping(30, change=None), record_every=10)
    assert not solution.failed, solution.message
    assert _accuracy(batches, solution.point) > 0.8


def test_vanishing_nudges_and_adam_are_back_propagation_with_adam() -> None:
    batches = _batches(prox.Tanh(), dtype=torch.float64)
    start = batches.start()
    solver = SweepDescent(ScaledStep(1e-3), nudge=Nudge(fixed=1e-5))
    found = solve(batches, solver, start, stopping=Stopping(5, change=None), record_every=0).point["parameters"]
    batches.data(0, start)
    network = batches.objective.network
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    for k in range(5):
        y, x, _ = batches.batches.batch(k)
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(y), x).backward()
        optimiser.step()
    for ours, theirs in zip(found, network.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=1e-7)


def test_learns_where_back_propagation_has_no_gradient() -> None:
    """Soft-thresholds above all pre-activations: the gradient is exactly zero, the sweep's is not."""
    batches = _batches(prox.SoftThreshold(1.0), count=400)
    y, x, _ = batches.data(0, batches.start())
    nn.functional.cross_entropy(batches.objective.network(y), x).backward()
    first = batches.objective.network.get_parameter("hidden.0.linear.weight")
    assert first.grad is not None and float(first.grad.abs().max()) == 0
    solution = solve(
        batches, SweepDescent(ScaledStep(3e-3)), batches.start(), stopping=Stopping(60, change=None), record_every=0
    )
    assert _accuracy(batches, solution.point) > 0.5


@pytest.mark.parametrize("rule", [RelativeStep(), ScaledStep(), GramRule()], ids=["relative", "adam", "gram"])
def test_resumes_through_tensors_and_numbers(rule: SweepRule) -> None:
    solver = SweepDescent(rule)
    start = _batches().start()
    whole = solve(_batches(), solver, start, stopping=Stopping(8, change=None), record_every=0)
    half = solve(_batches(), solver, start, stopping=Stopping(3, change=None), record_every=0)
    tensors, numbers = state_to_parts(half.state)
    again = state_from_parts(solver.init(_batches(), start), tensors, json.loads(json.dumps(numbers)))
    rest = solve(_batches(), solver, state=again, stopping=Stopping(5, change=None), record_every=0)
    assert all(torch.equal(a, b) for a, b in zip(whole.point.tensors, rest.point.tensors, strict=True))


def test_masks_travel_with_their_samples() -> None:
    """An unrolled network that sees each image's own mask, trained in shuffled batches."""
    images = load_digits("train").images[:60, :, ::4, ::4]
    mask = (torch.rand(images.shape, generator=torch.Generator().manual_seed(1)) > 0.3).float()
    H = operators.Mask(shape=(1, 7, 7))
    network = networks.PrimalDual(H, operators.FiniteDifference((1, 7, 7)), 3, context=mask[:1])
    batches = TrainingBatches(Objective(network), as_batches((images * mask, images, mask), batch_size=20))
    y, x, context = batches.data(1, batches.start())
    assert torch.equal(y, x * context), "mask and image belong together"
    start = batches.start()
    first = batches.value(start)
    inner = LinearisedBCD(ProximalGradient(Backtracking()))
    for solver in (SweepDescent(ScaledStep(3e-2)), SweepDescent(), ImplicitStochasticGradient(0.1, inner)):
        solution = solve(batches, solver, start, stopping=Stopping(9, change=None), record_every=3)
        assert not solution.failed, solution.message
        assert solution.history[-1].value < first


def _convolutional() -> TrainingBatches:
    modules = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2))
    objective = Objective(networks.lift(modules, (1, 5, 5)))
    return TrainingBatches(objective, as_batches((torch.randn(8, 1, 5, 5), torch.randn(8, 2)), batch_size=4))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ScaledStep(0.0), ["step_size", "> 0"]),
        (lambda: ScaledStep(scaling="adam"), ["scaling", "Scaling", "str"]),
        (lambda: SweepDescent(0.1), ["rule", "SweepRule", "ScaledStep"]),
        (lambda: SweepDescent(average=1.0), ["average", "[0, 1)"]),
        (lambda: RelativeStep(start=0), ["start", "> 0"]),
        (lambda: RelativeStep(momentum=1.0), ["momentum"]),
        (lambda: RelativeStep(centring=1), ["centring", "True or False"]),
        (lambda: GramRule(0.1), ["gram", "GramStep"]),
        (lambda: SweepDescent(nudge=0.1), ["nudge", "Nudge", "float"]),
        (lambda: SweepDescent().check(None, Point({})), ["TrainingBatches"]),
        (lambda: SweepDescent().check(_batches(), Point({"x": torch.zeros(1)})), ["parameters", "x"]),
        (
            lambda: SweepDescent(GramRule()).check(_convolutional(), _convolutional().start()),
            ["dense layers", "RelativeStep"],
        ),
    ],
    ids=range(12),
)
def test_bad_settings_are_refused(call, words: list[str]) -> None:
    with pytest.raises((InvalidValueError, InvalidTypeError)) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("rule", [RelativeStep(), ScaledStep(), GramRule()], ids=["relative", "adam", "gram"])
def test_reused_memory_changes_nothing_but_the_memory(rule: SweepRule) -> None:
    found = []
    for reuse in (False, True):
        batches = _batches()
        solver = SweepDescent(rule, reuse=reuse)
        state = solver.init(batches, batches.start())
        for _ in range(47):  # past the steps in which the distance is always estimated
            state = solver.step(batches, state)
        found.append((*state.point.tensors, *state.answer.tensors))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
