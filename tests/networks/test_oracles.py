"""Unrolled networks with the true operators, run deep, solve the problems they are made from."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import torch
from sklearn.linear_model import Lasso

from torchlift import networks, operators, prox


def _randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("form", ["ista", "coupled"])
def test_deep_lista_reaches_the_lasso_solution(form: str) -> None:
    H, L = _randn(12, 8) / 4, _randn(8, 10, seed=1) / 3
    y = _randn(2, 12, seed=2)
    weight = 0.15
    network = networks.LISTA(operators.Dense(H), L, 2000, threshold=weight, form=form, tied=True)
    with torch.no_grad():
        states = network.states(y)
    A = (H @ L).numpy()
    for sample, code, image in zip(y, states.u[-1], states.output, strict=True):
        # scikit-learn minimises ‖A u − y‖²/(2n) + alpha ‖u‖₁
        oracle = Lasso(alpha=weight / len(sample), fit_intercept=False, tol=1e-14, max_iter=100_000)
        oracle.fit(A, sample.numpy())
        np.testing.assert_allclose(code.numpy(), oracle.coef_, atol=1e-8)
        np.testing.assert_allclose(image.numpy(), L.numpy() @ oracle.coef_, atol=1e-8)
    assert 0 < int((states.u[-1] != 0).sum()) < states.u[-1].numel()


def test_deep_primal_dual_reaches_the_total_variation_solution() -> None:
    shape = (1, 4, 4)
    H = operators.Blur(operators.gaussian_kernel(3, 0.7, dtype=torch.float64), shape)
    L = operators.FiniteDifference(shape)
    y = _randn(1, *shape, seed=3).abs()
    weight = 0.03
    network = networks.PrimalDual(H, L, 2000, threshold=weight, tied=True).double()
    with torch.no_grad():
        x = network(y)[0].flatten().numpy()
    expected = _analysis_oracle(H.to_dense().numpy(), L.to_dense().numpy(), y.flatten().numpy(), weight)
    np.testing.assert_allclose(x, expected, atol=1e-6)
    assert np.ptp(x) > 0.1, "a constant solution would prove little"


def _analysis_oracle(H: np.ndarray, L: np.ndarray, y: np.ndarray, weight: float) -> np.ndarray:
    """min_{0 ≤ x ≤ 1} ½‖H x − y‖² + weight ‖L x‖₁ through its smooth dual-free form x, s ≥ |L x|, by SLSQP."""
    n, m = H.shape[1], L.shape[0]

    def value(point: np.ndarray) -> float:
        return 0.5 * np.sum((H @ point[:n] - y) ** 2) + weight * point[n:].sum()

    def gradient(point: np.ndarray) -> np.ndarray:
        return np.concatenate([H.T @ (H @ point[:n] - y), np.full(m, weight)])

    inequality = np.block([[-L, np.eye(m)], [L, np.eye(m)]])
    start = np.clip(H.T @ y, 0, 1)
    result = scipy.optimize.minimize(
        value,
        np.concatenate([start, np.abs(L @ start)]),
        jac=gradient,
        bounds=[(0, 1)] * n + [(0, None)] * m,
        constraints={"type": "ineq", "fun": lambda p: inequality @ p, "jac": lambda _: inequality},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    assert result.success
    return result.x[:n]


def test_non_negative_primal_dual_solves_non_negative_least_squares() -> None:
    H = _randn(9, 5, seed=4)
    y = _randn(1, 9, seed=5)
    network = networks.PrimalDual(
        operators.Dense(H), torch.eye(5).double(), 1000, constraint=prox.ReLU(), threshold=1e-14, tied=True
    )
    expected, _ = scipy.optimize.nnls(H.numpy(), y[0].numpy())
    with torch.no_grad():
        np.testing.assert_allclose(network(y)[0].numpy(), expected, atol=1e-9)


def test_given_steps_need_no_norm_and_no_context() -> None:
    """An H that depends on the sample has no norm before a sample is seen."""
    H = operators.Mask(shape=(4,))
    lista = networks.LISTA(H, torch.eye(4), 2, step=0.5)
    primal_dual = networks.PrimalDual(H, torch.eye(4), 2, step=0.5)
    y, mask = torch.ones(3, 4), torch.tensor([[1.0, 0.0, 1.0, 0.0]]).expand(3, 4)
    for network in (lista, primal_dual):
        assert torch.allclose(network.step.log.exp(), torch.tensor(0.5))
        assert network(y, mask).shape == (3, 4)


def test_steps_start_inside_the_convergence_condition_and_are_reported() -> None:
    lista = networks.LISTA(operators.Dense(_randn(6, 5)), _randn(5, 7, seed=1), 3)
    primal_dual = networks.PrimalDual(operators.Dense(_randn(6, 5)), _randn(7, 5, seed=1), 3)
    for network in (lista, primal_dual):
        reports = network.convergence()
        assert len(reports) == 3
        assert all(report.satisfied for report in reports)
        with torch.no_grad():
            network.step.log[1] += 1.0
        assert [report.satisfied for report in network.convergence()] == [True, False, True]


def test_runge_kutta_converges_at_the_order_of_its_tableau() -> None:
    """The error of u' = V tanh(W u + b) over unit time falls like steps^-order."""
    orders = {"euler": 1, "midpoint": 2, "heun": 2, "kutta3": 3, "rk4": 4}
    W, b, V = _randn(4, 3), _randn(4, seed=1), _randn(3, 4, seed=2) / 2
    y = _randn(5, 3, seed=3)

    def flow(method: str, steps: int) -> torch.Tensor:
        network = networks.ResNet(3, [4] * steps, 3, prox.Tanh(), tableau=method, dtype=torch.float64)
        with torch.no_grad():
            network.hidden[0].linear.weight.copy_(W.expand(steps, -1, -1))
            network.hidden[0].bias.copy_(b.expand(steps, -1))
            network.coupling[0].linear.weight.copy_(V.expand(steps, -1, -1))
            return network.states(y).u[-1]

    exact = flow("rk4", 400)
    for method, order in orders.items():
        coarse, fine = (float((flow(method, n) - exact).norm()) for n in (20, 40))
        assert np.log2(coarse / fine) == pytest.approx(order, abs=0.15), method
