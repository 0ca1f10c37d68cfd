"""Products, sums, multiples and adjoints behave like those of matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchlift.operators import Adjoint, Compose, Dense, Identity, Mask, Reshape, Scaled, Sum, Zero


@pytest.fixture
def matrices():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(3, 3, generator=generator, dtype=torch.float64) for _ in range(3)]


def test_algebra_of_matrices(matrices):
    a, b, c = matrices
    A, B, C = map(Dense, matrices)
    pairs = [
        (A @ B @ C, a @ b @ c),
        (A + B - C, a + b - c),
        (-A, -a),
        (2 * A, 2 * a),
        (A * 0.5, 0.5 * a),
        (torch.tensor(3.0) * A, 3 * a),
        (np.float64(3.0) * A, 3 * a),
        (A - 2 * Identity(3), a - 2 * torch.eye(3)),
        ((A @ B).T, (a @ b).T),
        ((A + B).T @ C, (a + b).T @ c),
        (A + Zero(3, 3), a),
    ]
    for operator, matrix in pairs:
        torch.testing.assert_close(operator.to_dense(), matrix.double())


def test_nesting_is_flattened(matrices):
    A, B, C = map(Dense, matrices)
    assert (A @ (B @ C)).operators == ((A @ B) @ C).operators == (A, B, C)
    assert (A + (B + C)).operators == (A, B, C)
    assert Compose(A).operators == (A,)
    assert len((A @ (B + C)).operators) == 2


def test_the_adjoint_of_the_adjoint_is_the_operator(matrices):
    A = Dense(matrices[0])
    assert isinstance(A.T, Adjoint) and A.T.T is A


def test_norm_passes_orthogonal_factors():
    weight = torch.randn(2, 12, dtype=torch.float64)
    operator = Dense(weight) @ Reshape((3, 4), 12) @ Reshape((2, 6), (3, 4)).T.T @ Identity((2, 6))
    assert operator.norm_bound() == Dense(weight).norm_bound()
    assert Compose(Reshape((3, 4), 12), Identity((3, 4))).norm_bound() == 1
    assert Compose(Reshape((3, 4), 12), Identity((3, 4))).is_orthogonal and not operator.is_orthogonal


def test_context_reaches_every_part():
    mask = Mask(shape=(3,))
    masks = torch.tensor([[1.0, 0, 2], [0, 0, 1]])
    operator = mask @ (Identity(3) + 2 * mask.T) @ mask
    x = torch.ones(2, 3)
    assert torch.equal(operator(x, {"mask": masks}), masks * (1 + 2 * masks) * masks)
    assert torch.equal(operator.adjoint(x, masks), masks * (1 + 2 * masks) * masks)


@pytest.mark.parametrize("other", [3, "A", None, torch.ones(3, 3)])
def test_only_operators_multiply_and_add(other):
    A = Dense(torch.ones(3, 3))
    for combine in (lambda: A @ other, lambda: A + other, lambda: A - other):
        with pytest.raises(TypeError):
            combine()


def test_symbols():
    identity, dense = Identity(3), Dense(torch.ones(2, 3))
    assert identity.symbol() == "I" and Zero(3, 3).symbol() == "0"
    assert (-identity).symbol() == "−I" and (0.5 * identity).symbol() == "0.5·I"
    assert Scaled(identity, torch.tensor(2.0)).symbol() == "2·I"
    assert dense.symbol() == "Dense" and dense.T.symbol() == "Denseᵀ"
    assert (dense @ (identity + identity)).symbol() == "Dense · (I + I)"
    assert (2 * Sum(identity, identity)).symbol() == "2·(I + I)"
    assert (identity - 0.25 * (dense.T @ dense)).symbol() == "I − 0.25·Denseᵀ · Dense"
    assert (dense @ identity).T.symbol() == "(Dense · I)ᵀ"


def test_gradient_reaches_a_factor_tensor():
    factor = torch.tensor(2.0, requires_grad=True)
    (factor * Identity(3))(torch.ones(2, 3)).sum().backward()
    assert factor.grad == 6


def test_a_factor_with_gradient_has_a_norm():
    assert (torch.tensor(-2.0, requires_grad=True) * Identity(3)).norm_bound() == 2


def test_operators_are_frozen():
    with pytest.raises(AttributeError):
        Dense(torch.ones(2, 2)).weight = torch.ones(1, 1)
