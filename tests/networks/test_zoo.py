"""Thirteen modules: the lifted network is the module, its form holds, and objectives and inversions take it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchlift as tl
from networks.zoo import DEEP, MODELS, Model, inputs, trained
from torchlift.core.errors import InvalidValueError, NotRepresentableError
from torchlift.networks import GraphNetwork
from torchlift.operators import BlockOperator

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lifting.md"


@pytest.fixture(params=MODELS, ids=lambda model: model.name)
def model(request: pytest.FixtureRequest) -> Model:
    return request.param


def _lifted(model: Model) -> tuple[nn.Module, GraphNetwork, Tensor]:
    module, y = trained(model), inputs(model)
    network = tl.lift(module, y)
    assert isinstance(network, GraphNetwork)
    return module, network, y


KEPT: dict[str, tuple[nn.Module, GraphNetwork, Tensor]] = {}


def _kept(model: Model) -> tuple[nn.Module, GraphNetwork, Tensor]:
    """The same for all tests that leave it as it is."""
    if model.name not in KEPT:
        KEPT[model.name] = _lifted(model)
    return KEPT[model.name]


def test_outputs_and_gradients_are_the_modules(model: Model) -> None:
    """And the table of docs/lifting.md says what the model is."""
    module, network, y = _lifted(model)
    assert (line := _line(model, network)) in PAGE.read_text(encoding="utf-8"), f"the line of the table is: {line}"
    expected = module(y)
    assert expected.std() > 1e-6
    states = network.states(y)
    for output in (network(y), states.output, network(y, network.context(y))):
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-12 * (1 + float(expected.detach().abs().max())))
    single = copy.deepcopy(module).float()
    difference = tl.lift(single, y.float()).states(y.float()).output - single(y.float())
    assert float(difference.detach().abs().max()) <= 1e-5
    for result, target in ((expected, module), (states.output, network.module)):
        result.square().sum().backward()
        assert all(p.grad is not None for p in target.parameters())
    for (name, one), other in zip(module.named_parameters(), network.module.parameters(), strict=True):
        close = {"rtol": 1e-9, "atol": 1e-11}
        torch.testing.assert_close(other.grad, one.grad, **close, msg=f"gradient of {name}")


def test_states_satisfy_the_form_at_their_context(model: Model) -> None:
    """v = W u + b row by row (opaque rows hold Jacobians instead), N = K u + d."""
    _, network, y = _kept(model)
    form, states, context = network.operators(), network.states(y), network.context(y)
    for j, row in enumerate(network.plan.rows):
        if row.kind != "opaque":
            torch.testing.assert_close(_row(form.W, form.b[j], j, states.u, context), states.v[j], rtol=0, atol=1e-12)
        torch.testing.assert_close(form.pre_activation(j, states.u), states.v[j], rtol=0, atol=1e-12)
        torch.testing.assert_close(form.pre_activation(j, states.u, context), states.v[j], rtol=0, atol=1e-12)
        torch.testing.assert_close(form.activations[j](states.v[j]), states.z[j], rtol=0, atol=0)
    torch.testing.assert_close(_row(form.K, form.d[0], 0, states.u, context), states.output, rtol=0, atol=1e-12)


def test_adjoints_at_a_context(model: Model) -> None:
    _, network, y = _kept(model)
    form, context = network.operators(), network.context(y)
    generator = torch.Generator().manual_seed(3)
    for operator in (form.W, form.K):
        x, w = (
            [torch.randn(len(y), *shape, generator=generator, dtype=y.dtype) for shape in shapes]
            for shapes in (operator.column_shapes, operator.row_shapes)
        )
        pairs = zip(operator(x, context), w, strict=True), zip(x, operator.adjoint(w, context), strict=True)
        left, right = (torch.stack([(a * b).sum() for a, b in pair]).sum().item() for pair in pairs)
        assert abs(left - right) <= 1e-10 * (1 + abs(left))


def test_a_step_by_bregman(model: Model) -> None:
    """The objective is the loss at the forward pass; its gradients are those of its value, in z and θ."""
    module, network, y = _lifted(model)
    with torch.no_grad():
        x = module(y) + 0.5
    objective = tl.Objective(network, tl.liftings.Bregman())
    z = objective.initialise(y)
    loss = 0.5 * (module(y) - x).square().flatten(1).sum(1).mean()
    torch.testing.assert_close(objective.value(y, x, z), loss.detach(), rtol=1e-10, atol=1e-10)

    z = z.map(lambda layer: (layer + 0.1 * torch.rand(layer.shape, generator=_generator(), dtype=y.dtype)).abs())
    gradients = objective.gradients(y, x, z)
    for target, slopes in (
        ([network.get_parameter(name) for name in gradients.parameters], list(gradients.parameters.values())),
        (list(z.buffers), list(gradients.z.buffers)),
    ):
        step = 1e-6
        generator = _generator()
        ways = [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in target]
        values = []
        for sign in (step, -2 * step, step):
            with torch.no_grad():
                for tensor, way in zip(target, ways, strict=True):
                    tensor.add_(way, alpha=sign)
            values.append(objective.smooth_value(y, x, z))
        slope = sum(float((a * b).sum()) for a, b in zip(slopes, ways, strict=True))
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(slope, rel=2e-4, abs=1e-5)


@pytest.mark.parametrize("which", ["early", "late"])
def test_features_are_inverted(model: Model, which: str) -> None:
    """The lifted objective falls; features of one layer come back. What is opaque is refused by its path."""
    _, network, y = _kept(model)
    part = network.up_to(getattr(model, which))
    features, context = part(y).detach(), part.context(y) or None
    if part.plan.opaque:
        with pytest.raises(NotRepresentableError, match="gelu"):
            tl.invert(part, features, weight=0.0, algorithm="sweep", max_steps=2)
        return
    found = tl.invert(part, features, weight=0.0, algorithm="sweep", max_steps=30, context=context)
    zero = torch.zeros_like(y)
    before, after = ((part(x, context) - features).norm() for x in (zero, found.x))
    assert torch.isfinite(found.x).all() and found.monotone.all()
    assert float(found.objective.mean()) < found.history[0].value
    if which == "early":
        assert after < 0.5 * before
    else:  # a signal needs many sweeps to reach the input
        assert after < before and (found.converged or found.counts == {"max_steps": len(y)})
    if part.plan.contextual:
        with pytest.raises(InvalidValueError, match="context"):
            tl.invert(part, features, weight=0.0, algorithm="sweep", max_steps=2)


def test_late_features_are_inverted_through_the_network(model: Model) -> None:
    """Gradients of the composed network: nothing has to be linear, and no context is needed."""
    _, network, y = _kept(model)
    part = network.up_to(model.late)
    features = part(y).detach()
    start = torch.randn(y.shape, generator=_generator(), dtype=y.dtype)
    before = (part(start) - features).norm()
    for algorithm in ("auto", "nested-adam"):
        found = tl.invert(part, features, weight=0.0, algorithm=algorithm, start=start, max_steps=60)
        after = (part(found.x) - features).norm()
        assert after < 0.5 * before and not (found.converged and after > 0.1 * features.norm())


def test_a_start_without_a_signal_has_stalled() -> None:
    """No channel behind the first batch norm of this ResNet is active at zero: its gradient there is zero."""
    model = next(model for model in MODELS if model.name == "ResNet-18")
    _, network, y = _lifted(model)
    part = network.up_to(model.late)
    features = part(y).detach()
    for algorithm in ("nested-adam", "nested-pdhg"):
        found = tl.invert(part, features, weight=0.0, algorithm=algorithm, max_steps=5)
        assert not found.converged and found.counts == {"stalled": len(y)} and "no visible progress" in found.message
        there = tl.invert(part, part(torch.zeros_like(y)).detach(), weight=0.0, algorithm=algorithm, max_steps=5)
        assert there.converged  # the gradient is zero because nothing is left to do


@pytest.mark.parametrize("name", ["ResNet-18", "ViT"])
def test_lifting_takes_less_than_a_hundred_passes(name: str) -> None:
    """Of the same module, forward and backward, in processor time: a busy machine slows both alike."""
    model = next(model for model in MODELS if model.name == name)
    module, y = trained(model), inputs(model)

    def passes() -> None:
        for _ in range(10):
            module(y).sum().backward()

    def seconds(function: Callable[[], object]) -> float:
        start = time.process_time()
        function()
        return time.process_time() - start

    tl.lift(module, y), passes()
    ratios = [seconds(lambda: tl.lift(module, y)) / seconds(passes) for _ in range(3)]
    assert min(ratios) < 10


def _line(model: Model, network: GraphNetwork) -> str:
    rows = network.plan.rows
    counts = [sum(row.kind == kind for row in rows) for kind in ("activation", "sum", "opaque")]
    names = sorted({node.meta["label"].rsplit(".", 1)[-1].split("#")[0] for node in network.plan.contextual})
    part = network.up_to(model.late).plan
    late = "no" if part.opaque else "with context" if part.contextual else "yes"
    cells = [model.name, *map(str, counts), ", ".join(f"`{name}`" for name in names) or "–", f"`{model.late}`: {late}"]
    cells.append(f"yes / {'from the last layers on' if model.name in DEEP else 'yes'}")
    return f"| {' | '.join(cells)} |"


def _row(operator: BlockOperator, bias: Tensor | None, j: int, u: tuple[Tensor, ...], context: dict) -> Tensor:
    total = operator.row(j, u, context)
    assert total is not None
    return total if bias is None else total + bias


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)
