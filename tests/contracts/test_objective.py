"""Every architecture × lifting × loss: values and gradients against an objective written independently."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from contracts.network_cases import CASES, Case
from torchlift import liftings, losses
from torchlift.core.errors import InvalidValueError
from torchlift.networks import Network
from torchlift.objective import Objective
from torchlift.objective.engine import States
from torchlift.prox import ProximalActivation

BATCH = 3
MU = 0.7
LIFTINGS = {
    "mac-qp": liftings.MACQP(MU),
    "classical": liftings.Classical(MU),
    "fenchel": liftings.Fenchel(MU),
    "bregman": liftings.Bregman(MU),
}
LOSSES = {
    "squared-error": losses.SquaredError(),
    "huber": losses.Huber(0.3),
    "absolute": losses.Absolute(),
    "cross-entropy": losses.CrossEntropy(),
}


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


def _randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _target(loss: losses.Loss, network: Network) -> Tensor:
    if isinstance(loss, losses.CrossEntropy):
        return torch.tensor([0, 1, 0])
    return _randn(5, BATCH, *network.out_shape)


@torch.no_grad()
def _states(objective: Objective, case: Case, y: Tensor) -> States:
    """Inside the domain of every Ψ, but not consistent."""
    z = objective.initialise(y, "forward", context=case.context())
    for j, (layer, activation) in enumerate(zip(z, objective.network.operators().activations, strict=True)):
        layer.copy_(0.9 * activation(layer + 0.5 * _randn(20 + j, *layer.shape)))
    for j, layer in enumerate(z.u or []):
        layer.add_(0.1 * _randn(40 + j, *layer.shape))
    return z


# -- the independent objective: dense matrices, textbook formulas, autograd


def _loss(loss: losses.Loss, output: Tensor, x: Tensor) -> Tensor:
    if isinstance(loss, losses.CrossEntropy):
        return torch.nn.functional.cross_entropy(output, x, reduction="sum")
    difference = output - x
    if isinstance(loss, losses.SquaredError):
        return 0.5 * (difference**2).sum()
    if isinstance(loss, losses.Absolute):
        return difference.abs().sum()
    small = difference.abs() <= loss.delta
    return torch.where(small, 0.5 * difference**2, loss.delta * (difference.abs() - 0.5 * loss.delta)).sum()


def _smooth_penalty(lifting: liftings.Lifting, activation: ProximalActivation, z: Tensor, v: Tensor) -> Tensor:
    if isinstance(lifting, liftings.MACQP):
        return 0.5 * ((z - activation(v)) ** 2).sum()
    if isinstance(lifting, liftings.Classical):
        return 0.5 * ((z - v) ** 2).sum()
    p = activation(v)
    conjugate = (v * p).sum() - 0.5 * (p**2).sum() - activation.psi(p).sum()
    return 0.5 * (z**2).sum() + conjugate - (z * v).sum()


def _nonsmooth_penalty(lifting: liftings.Lifting, activation: ProximalActivation, z: Tensor) -> Tensor:
    if isinstance(lifting, liftings.MACQP):
        return z.new_zeros(())
    factor = 1 / MU if isinstance(lifting, liftings.Classical) else 1.0
    return factor * activation.psi(z).sum()


def _independent(
    objective: Objective, y: Tensor, x: Tensor, z: list[Tensor], u: list[Tensor] | None, context: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(smooth part, rest) of the mean objective, through dense matrices sample by sample."""
    form = objective.network.operators()
    smooth, rest = y.new_zeros(()), y.new_zeros(())
    shapes = form.W.row_shapes
    for i in range(len(y)):
        own = None if context is None else context[i : i + 1]
        K, M, V, W = (getattr(form, name).to_dense(own) for name in "KMVW")
        first = y[i].flatten()
        flat_z = torch.cat([layer[i].flatten() for layer in z]) if z else first[:0]
        if u is None:
            right = V @ flat_z - M[:, : len(first)] @ first if z else first[:0]
            rear = torch.linalg.solve_triangular(M[:, len(first) :], right[:, None], upper=False)[:, 0] if z else right
        else:
            rear = torch.cat([first[:0], *(layer[i].flatten() for layer in u)])
        flat_u = torch.cat([first, rear])
        if u:
            smooth = smooth + 0.5 * objective.coupling * ((M @ flat_u - V @ flat_z) ** 2).sum()
        output = (K @ flat_u + form.d.to_dense()).reshape(1, *objective.network.out_shape)
        smooth = smooth + _loss(objective.loss, output, x[i : i + 1])
        flat_v = W @ flat_u + form.b.to_dense() if z else flat_z
        start = 0
        for shape, activation in zip(shapes, form.activations, strict=True):
            size = shape.numel() if isinstance(shape, torch.Size) else torch.Size(shape).numel()
            z_j, v_j = (part[start : start + size].reshape(1, *shape) for part in (flat_z, flat_v))
            smooth = smooth + MU * _smooth_penalty(objective.lifting, activation, z_j, v_j)
            rest = rest + MU * _nonsmooth_penalty(objective.lifting, activation, z_j)
            start += size
    return smooth / len(y), rest / len(y)


def _defined(case: Case, lifting: liftings.Lifting, loss: losses.Loss) -> str:
    """Why a cell of the matrix is not defined, or nothing."""
    network = case.build()
    if isinstance(loss, losses.CrossEntropy) and len(network.out_shape) != 1:
        return "cross-entropy needs one score per class"
    try:
        for activation in network.operators().activations:
            lifting.check(activation)
    except InvalidValueError as error:
        return str(error)
    return ""


def _evaluate(
    case: Case, network: Network, lifting: liftings.Lifting, loss: losses.Loss, coupling: float | None
) -> None:
    objective = Objective(network, lifting, loss, coupling=coupling)
    y, context = case.input(network), case.context()
    objective.value(y, _target(loss, network), objective.initialise(y, context=context), context)


@pytest.mark.parametrize("coupling", [None, 0.4], ids=["hard", "quadratic"])
@pytest.mark.parametrize("lifting", LIFTINGS.values(), ids=LIFTINGS.keys())
def test_value_and_gradients(case: Case, lifting: liftings.Lifting, coupling: float | None) -> None:
    """Every case meets every lifting and every loss, and every lifting every loss: the terms are added up."""
    number = CASES.index(case) + list(LIFTINGS.values()).index(lifting) + 2 * (coupling is None)
    loss = list(LOSSES.values())[number % len(LOSSES)]
    reason = _defined(case, lifting, loss)
    network = case.build()
    y, x, context = case.input(network), _target(loss, network), case.context()
    if reason:
        with pytest.raises(InvalidValueError):
            _evaluate(case, network, lifting, loss, coupling)
        return
    objective = Objective(network, lifting, loss, coupling=coupling)
    z = _states(objective, case, y)
    z_leaves = [layer.clone().requires_grad_() for layer in z]
    u_leaves = None if z.u is None else [layer.clone().requires_grad_() for layer in z.u]
    smooth, rest = _independent(objective, y, x, z_leaves, u_leaves, context)
    torch.testing.assert_close(objective.value(y, x, z, context), (smooth + rest).detach(), rtol=1e-11, atol=1e-12)

    parameters = dict(network.named_parameters())
    found = objective.gradients(y, x, z, context)
    inner = [*z_leaves, *(u_leaves or [])]
    expected = torch.autograd.grad(smooth, inner, retain_graph=True, allow_unused=True) if inner else ()
    got = [*found.z, *(found.z.u or [])]
    for ours, theirs in zip(got, expected, strict=True):
        reference = torch.zeros_like(ours) if theirs is None else theirs
        torch.testing.assert_close(ours, reference, rtol=1e-10, atol=1e-11)
    expected = torch.autograd.grad(smooth + rest, list(parameters.values()), allow_unused=True)
    for (name, parameter), theirs in zip(parameters.items(), expected, strict=True):
        reference = torch.zeros_like(parameter) if theirs is None else theirs
        ours = found.parameters.get(name, torch.zeros_like(parameter))
        torch.testing.assert_close(
            ours, reference, rtol=1e-10, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_both_engines_agree(case: Case) -> None:
    network = case.build()
    y = case.input(network)
    general = Objective(network, liftings.Bregman(MU), engine="general")
    try:
        stacked = Objective(network, liftings.Bregman(MU), engine="stacked")
    except InvalidValueError:
        pytest.skip("not a chain")
    x = _target(general.loss, network)
    one, other = _states(general, case, y), _states(stacked, case, y)
    torch.testing.assert_close(stacked.value(y, x, other), general.value(y, x, one), rtol=1e-12, atol=1e-12)
    first, second = general.gradients(y, x, one), stacked.gradients(y, x, other)
    for ours, theirs in zip(second.z, first.z, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert set(first.parameters) == set(second.parameters)
    for name, theirs in first.parameters.items():
        torch.testing.assert_close(second.parameters[name], theirs, rtol=0, atol=1e-12)


def test_conventional_is_back_propagation(case: Case) -> None:
    network = case.build()
    y, context = case.input(network), case.context()
    objective = Objective(network, liftings.Conventional())
    x = _target(objective.loss, network)
    loss = 0.5 * ((network(y, context) - x) ** 2).sum() / len(y)
    loss.backward()
    torch.testing.assert_close(objective.value(y, x, context=context), loss.detach(), rtol=1e-12, atol=0)
    found = objective.gradients(y, x, context=context).parameters
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-12, atol=1e-13)


def test_penalties_and_gaps_vanish_at_the_forward_pass(case: Case) -> None:
    network = case.build()
    y, context = case.input(network), case.context()
    objective = Objective(network, liftings.Bregman(MU))
    x = _target(objective.loss, network)
    report = objective.report(y, x, objective.initialise(y, context=context), context)
    loss = 0.5 * ((network(y, context).detach() - x) ** 2).sum() / len(y)
    assert report.loss == pytest.approx(float(loss), rel=1e-12)
    assert report.total == pytest.approx(report.loss, rel=1e-12)
    assert all(abs(penalty) < 1e-14 for penalty in report.penalties)
    assert all(gap < 1e-13 for gap in report.gaps)


def test_report_adds_up_to_the_value(case: Case) -> None:
    network = case.build()
    y, context = case.input(network), case.context()
    objective = Objective(network, liftings.Bregman(MU), coupling=0.3)
    x, z = _target(objective.loss, network), _states(objective, case, y)
    report = objective.report(y, x, z, context)
    assert report.total == pytest.approx(float(objective.value(y, x, z, context)), rel=1e-12)
    assert len(report.penalties) == len(report.gaps) == network.depth
    if network.depth:
        assert report.coupling > 0 and min(report.gaps) > 0
