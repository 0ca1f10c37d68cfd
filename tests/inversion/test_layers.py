"""How variables reach pre-activations, in every architecture: against autograd and dense matrices."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from contracts.network_cases import CASES, Case
from torchlift.core.tensors import Point
from torchlift.functions.priors import L1
from torchlift.inversion.layers import Layers
from torchlift.inversion.lifted import Sweep
from torchlift.inversion.problem import InversionProblem
from torchlift.inversion.validation import HIDDEN_WEIGHT, check_mu
from torchlift.networks import Perceptron, lift
from torchlift.prox import Tanh

every = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@torch.no_grad()
def problem_of(case: Case, weight: float = 0.01) -> InversionProblem:
    network = case.build()
    x, context = case.input(network), case.context()
    layers = Layers.of(network)
    y = network(0.5 * x, context)
    mu = tuple(1.0 + 0.5 * r for r in range(layers.count))
    split = L1().split(network.in_shape)
    curvatures = tuple(each.curvature(mu, context) for each in layers.jacobians)
    weights = y.new_full((len(y),), weight)
    return InversionProblem(
        layers, layers.target(y), y, split, weights, mu, 0.0, torch.zeros_like(x), context, curvatures, 0.0
    )


def free_variables(problem: InversionProblem) -> tuple[Tensor, list[Tensor]]:
    """x and z inside the domains, away from the forward pass."""
    generator = torch.Generator().manual_seed(3)

    def normal(like: Tensor) -> Tensor:
        return torch.randn(like.shape, dtype=like.dtype, generator=generator)

    x = normal(problem.guess)
    z, _, _ = problem.layers.states(x, problem.context)
    moved = [a(t + 0.3 * normal(t)) for a, t in zip(problem.layers.activations[:-1], z, strict=True)]
    return x, moved


@every
def test_the_forward_pass_has_no_gaps(case: Case) -> None:
    problem = problem_of(case)
    x = 0.5 * case.input(case.build())
    with torch.no_grad():
        z, u, v = problem.layers.states(x, problem.context)
        again = problem.layers.lifted(x, z, problem.context)
    for a, b in zip((*u, *v), (*again[0], *again[1]), strict=True):
        torch.testing.assert_close(a, b)
    assert max(float(gap.abs().max()) for gap in problem.gaps(z, v)) < 1e-20
    torch.testing.assert_close(problem.forward(x), problem.output)
    torch.testing.assert_close(problem.residual(x), torch.zeros(len(x), dtype=torch.float64), atol=1e-13, rtol=0)


@every
def test_pull_is_the_gradient(case: Case) -> None:
    """The gradient of Σ_r μ_r B_r in each variable, without its own layer's part μ_j(Φ_j(z_j) − ⟨z_j, v_j⟩)."""
    problem = problem_of(case)
    x, z = free_variables(problem)
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (x, *z)]
        _, v = problem.layers.lifted(leaves[0], leaves[1:], problem.context)
        total = torch.zeros((), dtype=torch.float64)
        for r, (activation, mu) in enumerate(zip(problem.layers.activations, problem.mu, strict=True)):
            held = (*z, problem.target)[r].detach()
            total = total + mu * (activation.conjugate(v[r]).sum() - (held * v[r]).sum())
        gradients = torch.autograd.grad(total, leaves)
    for j, expected in enumerate(gradients):
        rows = [v[r].detach() for r in problem.layers.jacobians[j].rows]
        torch.testing.assert_close(problem.vjp(j, z, rows), expected, rtol=1e-10, atol=1e-10)


@every
@torch.no_grad()
def test_jacobian_moves_what_it_says(case: Case) -> None:
    """v changes by ∂v/∂z_j times the change, in the named rows only; `update` follows it exactly."""
    problem = problem_of(case)
    layers, context = problem.layers, problem.context
    x, z = free_variables(problem)
    u, v = layers.lifted(x, z, context)
    for j, jacobian in enumerate(layers.jacobians):
        variables = [x, *z]
        change = torch.randn(variables[j].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(j))
        variables[j] = variables[j] + change
        after_u, after = layers.lifted(variables[0], variables[1:], context)
        moved = dict(zip(jacobian.rows, jacobian.forward(change, context), strict=True))
        for r in range(layers.count):
            torch.testing.assert_close(after[r] - v[r], moved.get(r, torch.zeros_like(v[r])), rtol=1e-9, atol=1e-9)
        now_u, now_v = list(u), list(v)
        now_u[0] = variables[0]
        layers.update(j, now_u, now_v, variables[1:], context)
        for a, b in zip((*now_u, *now_v), (*after_u, *after), strict=True):
            torch.testing.assert_close(a, b)


@every
@torch.no_grad()
def test_curvature_bounds_the_dense_norm(case: Case) -> None:
    problem = problem_of(case)
    context = None if problem.context is None else problem.context[:1]
    for j, jacobian in enumerate(problem.layers.jacobians):
        shape = problem.guess.shape[1:] if j == 0 else problem.layers.form.V.column_shapes[j - 1]
        size = int(torch.tensor(shape).prod())
        basis = torch.eye(size, dtype=torch.float64).reshape(size, *shape)
        wide = None if context is None else context.expand(size, *context.shape[1:])
        columns = jacobian.forward(basis, wide)
        scaled = [problem.mu[r] ** 0.5 * c.flatten(1) for r, c in zip(jacobian.rows, columns, strict=True)]
        exact = float(torch.linalg.matrix_norm(torch.cat(scaled, 1), 2)) ** 2
        bound = jacobian.curvature(problem.mu, context)
        assert exact * (1 - 1e-9) <= bound <= 1.03 * exact + 1e-12


@every
@torch.no_grad()
def test_sweeps_decrease_the_objective(case: Case) -> None:
    """With and without momentum, for every architecture; ℓ1 has a prox, so nothing may increase."""
    problem = problem_of(case, weight=1e-5)
    for momentum in (False, True):
        solver = Sweep(momentum=momentum, tolerance=0.0)
        state = solver.init(problem, Point({"x": torch.zeros_like(problem.guess)}))
        first = previous = state.watch.value
        for _ in range(30):
            state = solver.step(problem, state)
            assert bool((state.watch.value <= previous + 1e-14).all())
            previous = state.watch.value
        assert float(previous.sum()) < 0.95 * float(first.sum())
        assert bool(state.watch.monotone.all())
        u, v = problem.layers.lifted(state.x, state.z, problem.context)
        for a, b in zip((*state.u, *state.v), (*u, *v), strict=True):
            torch.testing.assert_close(a, b)


def test_the_last_activation_is_clamped_only_where_it_is_the_output() -> None:
    ends = {
        "activation": (torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh()), 1),
        "affine": (torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh(), torch.nn.Linear(2, 2)), 2),
        "one affine map": (torch.nn.Sequential(torch.nn.Linear(3, 2)), 1),
    }
    for module, count in ends.values():
        assert Layers.of(lift(module)).count == count
    reshaped = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten())
    layers = Layers.of(lift(reshaped, (1, 4, 4)))
    assert layers.count == 1
    y = torch.arange(8.0)[None]
    assert layers.target(y).shape == (1, 2, 2, 2)
    torch.testing.assert_close(layers.form.output([torch.zeros(1, 1, 4, 4), layers.target(y)]), y)
    assert Layers.of(Perceptron(4, 3, Tanh())).count == len(Layers.of(Perceptron(4, 3, Tanh())).jacobians)


def test_selecting_images_changes_nothing_for_them() -> None:
    problem = problem_of(next(case for case in CASES if case.masked))
    some = problem.select(torch.tensor([2, 0]))
    x = torch.zeros_like(problem.guess)
    torch.testing.assert_close(some.residual(x[:2]), problem.residual(x)[[2, 0]])
    assert replace(some, anchor=1.0).input_curvature() == pytest.approx(problem.curvatures[0] + 1)
    assert check_mu(None, 3) == (HIDDEN_WEIGHT, HIDDEN_WEIGHT, 1.0)


@pytest.mark.parametrize(
    ("parts", "convex"),
    [
        ([nn.Linear(6, 4)], True),
        ([nn.Linear(6, 4), nn.ReLU()], True),
        ([nn.LayerNorm(6), nn.Linear(6, 4)], False),
        ([nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)], False),
    ],
)
def test_one_affine_layer_has_one_solution(parts: list[nn.Module], convex: bool) -> None:
    layers = Layers.of(lift(nn.Sequential(*parts), input_shape=(6,)))
    with torch.no_grad():
        assert layers.is_convex(torch.zeros(2, 6)) is convex
