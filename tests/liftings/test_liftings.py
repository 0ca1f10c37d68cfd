"""What single liftings promise beyond the contract, and bad input."""

from __future__ import annotations

import math

import pytest
import torch

from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.liftings import MACQP, Bregman, Classical, Contrastive, Conventional, Fenchel
from torchlift.prox import Arctan, Box, Identity, ReLU, Sigmoid, Softmax, Softsign, SoftThreshold, Tanh

X = torch.zeros(2, 4, 3)


def test_relu_by_hand() -> None:
    z, v = torch.tensor([3.0, 0.5, 0.0]), torch.tensor([1.0, -2.0, -5.0])
    wanted = torch.tensor([2.0, 1.125, 0.0])  # ½·2², ½·½² + ½·2, 0
    assert torch.equal(Bregman().value(ReLU(), z, v, 1.0), wanted)
    assert torch.equal(Fenchel().value(ReLU(), z, v, 1.0), wanted)
    assert torch.equal(MACQP().value(ReLU(), z, v, 2.0), torch.tensor([4.0, 0.25, 0.0]))
    assert torch.equal(Classical().value(ReLU(), z, v, 2.0), torch.tensor([4.0, 6.25, 25.0]))


def test_soft_threshold_by_hand() -> None:
    z, v = torch.tensor([2.0, 1.0]), torch.tensor([3.0, 0.25])
    activation = SoftThreshold(0.5)  # σ(v) = 2.5, 0 and Ψ = ½|z|
    assert torch.equal(Bregman().value(activation, z, v, 1.0), torch.tensor([0.125, 0.75]))
    assert torch.equal(Fenchel().value(activation, z, v, 1.0), torch.tensor([0.125, 0.75]))
    assert torch.equal(Classical().value(activation, z, v, 4.0), torch.tensor([3.0, 1.625]))


def test_sigmoid_penalty_is_the_relative_entropy() -> None:
    z, v = torch.tensor([0.2, 0.9], dtype=torch.float64), torch.tensor([1.0, -2.0], dtype=torch.float64)
    p = torch.sigmoid(v)
    wanted = z * (z / p).log() + (1 - z) * ((1 - z) / (1 - p)).log()
    for lifting in (Bregman(), Fenchel()):
        torch.testing.assert_close(lifting.value(Sigmoid(), z, v, 1.0), wanted, rtol=1e-13, atol=1e-13)


def test_softmax_penalty_is_the_relative_entropy() -> None:
    z = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64)
    v = torch.tensor([[1.0, -2.0, 0.4]], dtype=torch.float64)
    wanted = (z * (z / torch.softmax(v, -1)).log()).sum(-1)
    torch.testing.assert_close(Bregman().value(Softmax(), z, v, 1.0), wanted, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("activation", "gap"),
    # ∫ from σ⁻¹(z) to v of (σ(t) − z) dt, for v = 1e30 and z = ½: the tail v/2 dominates.
    [(Softsign(), 0.5e30), (Arctan(), (math.pi / 2 - 0.5) * 1e30)],
)
def test_bregman_where_sigma_rounds_to_an_open_end(activation, gap: float) -> None:
    v = torch.tensor([1e30, -1e30, 0.3])
    p = activation(v)
    assert activation.psi(p).isinf().tolist() == [True, True, False]
    assert torch.equal(Bregman().value(activation, p, v, 1.0), torch.zeros(3))
    value = Bregman().value(activation, torch.tensor([0.5, -0.5, 0.5]), v, 1.0)
    torch.testing.assert_close(value[:2], torch.tensor([gap, gap]), rtol=1e-6, atol=0.0)
    assert 0 < float(value[2]) < 1
    close = Bregman().value(activation, torch.tensor([0.999, -0.999, 0.0]), v.clamp(-2e7, 2e7), 1.0)
    assert close.isfinite().all() and (close > 0).all()


def test_rounding_keeps_bregman_above_the_squared_distance_at_an_open_end() -> None:
    v = torch.logspace(7.5, 12, 400)
    z = torch.nextafter(torch.ones_like(v), torch.zeros_like(v))
    gap = z - Softsign()(v)
    assert (gap != 0).all()
    assert (Bregman().value(Softsign(), z, v, 1.0) >= 0.5 * gap.square()).all()


def test_bregman_keeps_its_digits_where_the_sum_of_conjugates_loses_them() -> None:
    v = torch.tensor([1e8], dtype=torch.float64)
    z = v + 1e-3
    gap = float(z - v)
    assert float(Bregman().value(ReLU(), z, v, 1.0)) == pytest.approx(0.5 * gap**2, rel=1e-12)


def test_autograd_meets_no_derivative_of_sigma() -> None:
    v = torch.tensor([50.0, -50.0], dtype=torch.float64, requires_grad=True)  # tanh is 1 to rounding, its Ψ' infinite
    z = torch.tensor([0.3, 0.2], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(Bregman().value(Tanh(), z, v, 2.0).sum(), v)
    assert torch.equal(gradient, 2 * (torch.tanh(v.detach()) - z))


def test_gradients_reach_a_learned_threshold() -> None:
    z, v = torch.tensor([2.0, 1.0]).double(), torch.tensor([3.0, 0.25]).double()
    threshold = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    for lifting in (Bregman(), Fenchel(), MACQP(), Classical()):
        assert torch.autograd.gradcheck(
            lambda t, lifting=lifting: lifting.value(SoftThreshold(t), z, v, 1.0), threshold
        )


@pytest.mark.parametrize("lifting", [Bregman(), Fenchel(), MACQP()])
def test_gradients_reach_the_learned_ends_of_a_box(lifting) -> None:
    # Ψ is an indicator, flat in λ; the derivative of D is that of Φ*, through the point that v is moved to.
    z, v = torch.tensor([0.2, -0.1, 0.3]).double(), torch.tensor([3.0, -2.5, 0.25]).double()
    end = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: lifting.value(Box(-t, t, validate=False), z, v, 1.0), end)


def test_gradients_allocate_one_tensor_and_reuse_v() -> None:
    for activation in (ReLU(), Identity(), Tanh()):
        for lifting in (Bregman(), Fenchel()):
            v, z = torch.randn(3, 4), torch.rand(3, 4)
            wanted = 2 * (z - v), 2 * (activation(v) - z)
            grad_z, grad_v = lifting.gradients(activation, z, v, 2.0)
            assert grad_z is v
            assert grad_v.data_ptr() != v.data_ptr()
            torch.testing.assert_close((grad_z, grad_v), wanted)


def test_gradients_do_not_alias_an_activation_that_returns_a_view() -> None:
    class View(Identity):
        def __call__(self, v: torch.Tensor) -> torch.Tensor:
            return v.view_as(v)

    v, z = torch.randn(3, 4), torch.rand(3, 4)
    grad_z, grad_v = Bregman().gradients(View(), z, v.clone(), 1.0)
    torch.testing.assert_close((grad_z, grad_v), (z - v, v - z))


def test_mac_qp_is_not_of_lipschitz_gradient_at_a_kink() -> None:
    z, v = torch.ones(1), torch.tensor([1e-6])
    jump = MACQP().grad_v(ReLU(), z, v, 1.0) - MACQP().grad_v(ReLU(), z, -v, 1.0)
    assert float(jump.abs()) > 0.99
    assert MACQP().curvature_v(ReLU()) == math.inf
    assert MACQP().curvature_v(Identity()) == 1.0


def test_mac_qp_couples_the_entries_of_a_group() -> None:
    z, v = torch.rand(2, 4, 3).double(), torch.randn(2, 4, 3).double()
    with torch.no_grad():
        gradient = MACQP().grad_v(Softmax(), z, v, 3.0)
    p = torch.softmax(v, -1)
    jacobian = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    torch.testing.assert_close(gradient, 3 * (jacobian @ (p - z).unsqueeze(-1)).squeeze(-1))


def test_contrastive_energy_is_classical() -> None:
    z, v = torch.rand(4, 3), torch.randn(4, 3)
    for activation in (ReLU(), Tanh(), Softmax()):
        for method in ("value", "grad_z", "grad_v"):
            ours, theirs = (getattr(lifting(), method)(activation, z, v, 2.0) for lifting in (Contrastive, Classical))
            assert torch.equal(ours, theirs)
        assert torch.equal(Contrastive().prox_z(activation, v, 0.5, 2.0), activation.prox(v, 0.5))


def test_weights_per_layer() -> None:
    assert Bregman(2).weights(3) == (2.0, 2.0, 2.0)
    assert Bregman([1, 2.5]).weights(2) == (1.0, 2.5)
    assert Bregman((1, 2.5)) == Bregman([1.0, 2.5])
    assert repr(Conventional()) == "Conventional()"


class Rectifier(ReLU):
    """A subclass may change σ, so its B_σ is not known."""


CASES = [
    (lambda: Bregman(0), InvalidValueError, ["Bregman mu", "> 0", "got 0"]),
    (lambda: MACQP(-1.5), InvalidValueError, ["MACQP mu", "> 0", "-1.5"]),
    (lambda: Classical(math.nan), InvalidValueError, ["Classical mu", "finite", "nan"]),
    (lambda: Fenchel(math.inf), InvalidValueError, ["Fenchel mu", "finite", "inf"]),
    (lambda: Bregman(True), InvalidTypeError, ["Bregman mu", "real number", "bool"]),
    (lambda: Bregman("1"), InvalidTypeError, ["Bregman mu:", "real number", "str"]),
    (lambda: Bregman(None), InvalidTypeError, ["Bregman mu", "real number", "NoneType"]),
    (lambda: Bregman(torch.ones(2)), InvalidTypeError, ["Bregman mu", "real number", "Tensor"]),
    (lambda: Contrastive([]), InvalidValueError, ["Contrastive mu", "one per layer", "empty"]),
    (lambda: Bregman([1.0, 0.0]), InvalidValueError, ["Bregman mu[1]", "> 0", "0.0"]),
    (lambda: Bregman([1.0, "2"]), InvalidTypeError, ["Bregman mu[1]", "str"]),
    (lambda: Bregman([1.0, math.nan]), InvalidValueError, ["Bregman mu[1]", "nan"]),
    (lambda: Bregman([1.0, 2.0]).weights(3), InvalidValueError, ["Bregman mu", "or 3: one per layer", "got 2"]),
    (lambda: Conventional(1.0), TypeError, ["argument"]),
    (lambda: Bregman().check(torch.relu), InvalidTypeError, ["proximal activation", "as_activation"]),
    (lambda: Fenchel().check(torch.nn.ReLU()), InvalidTypeError, ["proximal activation", "ReLU", "as_activation"]),
    (lambda: Fenchel().check(Rectifier()), InvalidValueError, ["Fenchel", "Rectifier", "Bregman(mu)"]),
    (lambda: Bregman().value(Softmax(), X, X, torch.ones(3)), InvalidValueError, ["weight", "size 1 along dim -1"]),
    (lambda: Bregman().prox_z(ReLU(), X, 0.0, 1.0), InvalidValueError, ["prox step", "> 0"]),
    (lambda: Classical().prox_z(Tanh(), X, -1.0, 1.0), InvalidValueError, ["prox step", "-1.0"]),
]


@pytest.mark.parametrize(("call", "error", "words"), CASES)
def test_bad_input_is_refused_with_help(call, error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    for word in words:
        assert word in str(caught.value)
