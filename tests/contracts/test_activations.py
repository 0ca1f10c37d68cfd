"""What every proximal activation promises. A newcomer in `ACTIVATIONS` inherits all of it."""

from __future__ import annotations

import math

import numpy as np
import pyproximal
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor
from torch.nn import functional as F

from torchlift.prox import ACTIVATIONS, ProximalActivation, as_activation

INSTANCES = [
    pytest.param(activation, id=f"{name}-{index}")
    for name, cls in ACTIVATIONS.items()
    for index, activation in enumerate(cls.examples())
]
STEPS = (1e-3, 0.3, 1.0, 3.0, 100.0)
every = pytest.mark.parametrize("activation", INSTANCES)
quick = settings(max_examples=12, deadline=None, derandomize=True)

shapes = st.sampled_from([(1, 3), (4, 3), (2, 5, 3)])  # three channels, for the per-channel thresholds
values = shapes.flatmap(lambda shape: arrays(np.float64, shape, elements=st.floats(-6, 6)).map(torch.from_numpy))
seeds = st.integers(0, 2**31 - 1)
steps = st.one_of(st.sampled_from(STEPS), st.floats(1e-3, 100))


def squared(activation: ProximalActivation, x: Tensor) -> Tensor:
    return activation.reduce(x * x)


def rivals(activation: ProximalActivation, p: Tensor, seed: int) -> list[Tensor]:
    """Points to compare p with: in its neighbourhood, further on in the domain, and for entries on a fine grid."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(p.shape, generator=generator, dtype=p.dtype)
    inside = activation(4 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    points = [p + scale * noise for scale in (1e-4, 1e-2, 1.0)]
    points += [p + weight * (inside - p) for weight in (1e-3, 0.1, 0.5, 1.0)]
    if activation.dim is None:
        points.append(torch.linspace(-7, 7, 701, dtype=p.dtype).view(-1, *(1,) * p.ndim) + torch.zeros_like(p))
    return points


def assert_minimises(activation: ProximalActivation, p: Tensor, u: Tensor, step: float, seed: int) -> None:
    """½‖p − u‖² + step·Ψ(p) is least at p, with the margin ½‖c − p‖² that strong convexity demands."""
    assert p.shape == u.shape

    def objective(c: Tensor) -> Tensor:
        return 0.5 * squared(activation, c - u) + step * activation.psi(c)

    least = objective(p)
    assert torch.isfinite(least).all()
    for c in rivals(activation, p, seed):
        margin = objective(c) - least - 0.5 * squared(activation, c - p)
        assert (margin >= -1e-12 * (100 + least.abs() + step * 10)).all()


@every
@quick
@given(v=values, seed=seeds)
def test_sigma_minimises_its_objective(activation: ProximalActivation, v: Tensor, seed: int) -> None:
    assert_minimises(activation, activation(v), v, 1.0, seed)


@every
@quick
@given(u=values, step=steps, seed=seeds)
def test_prox_minimises_its_objective(activation: ProximalActivation, u: Tensor, step: float, seed: int) -> None:
    assert_minimises(activation, activation.prox(u, step), u, step, seed)


@every
@pytest.mark.parametrize("step", STEPS)
def test_prox_with_tensor_steps_equals_prox_with_numbers(activation: ProximalActivation, step: float) -> None:
    u = torch.randn(5, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3
    torch.testing.assert_close(activation.prox(u, torch.tensor(step)), activation.prox(u, float(np.float32(step))))
    others = torch.tensor([0.2, 0.7, 1.0, 5.0], dtype=torch.float64).view(4, 1)
    several = activation.prox(u, others)
    for row, other in enumerate(others.flatten().tolist()):
        torch.testing.assert_close(several[:, row], activation.prox(u[:, row], other))


@every
@quick
@given(v=values)
def test_in_place_gives_the_same_bits(activation: ProximalActivation, v: Tensor) -> None:
    expected = activation(v).clone()
    found = v.clone()
    assert activation.apply_(found) is found
    assert torch.equal(found, expected)


@every
def test_prox_with_step_one_is_sigma(activation: ProximalActivation) -> None:
    v = torch.linspace(-9, 9, 60, dtype=torch.float64).view(20, 3)
    assert torch.equal(activation.prox(v), activation(v))
    torch.testing.assert_close(activation.prox(v, torch.ones((), dtype=v.dtype)), activation(v), rtol=1e-14, atol=1e-14)


@every
@quick
@given(v=values, seed=seeds)
def test_fenchel_young(activation: ProximalActivation, v: Tensor, seed: int) -> None:
    def gap(u: Tensor) -> Tensor:
        return activation.phi(u) + activation.conjugate(v) - activation.reduce(u * v)

    p = activation(v)
    assert (gap(p).abs() <= 1e-12 * (1 + squared(activation, v))).all()
    for u in rivals(activation, p, seed):
        tolerance = 1e-12 * (100 + squared(activation, v))
        assert (gap(u) - 0.5 * squared(activation, u - p) >= -tolerance).all()


@every
@quick
@given(v=values)
def test_the_gradient_of_the_conjugate_is_sigma(activation: ProximalActivation, v: Tensor) -> None:
    # Kinks of σ and its conjugate are no obstacle: Φ* is differentiable everywhere.
    v = v.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(activation.conjugate(v).sum(), v)
    torch.testing.assert_close(gradient, activation(v).detach(), rtol=1e-10, atol=1e-10)


@every
@quick
@given(v=values, seed=seeds)
def test_finite_differences_of_the_conjugate_are_sigma(activation: ProximalActivation, v: Tensor, seed: int) -> None:
    direction = torch.randn(v.shape, dtype=v.dtype, generator=torch.Generator().manual_seed(seed))
    h = 1e-5
    slope = (activation.conjugate(v + h * direction) - activation.conjugate(v - h * direction)) / (2 * h)
    # The second-order error is at most h‖direction‖², attained where σ has a kink.
    bound = 1e-8 + h * squared(activation, direction)
    assert ((slope - activation.reduce(activation(v) * direction)).abs() <= bound).all()


@every
@quick
@given(v=values, seed=seeds)
def test_firmly_nonexpansive(activation: ProximalActivation, v: Tensor, seed: int) -> None:
    noise = torch.randn(v.shape, dtype=v.dtype, generator=torch.Generator().manual_seed(seed))
    for w in (v + noise, v + 1e-3 * noise, -v):
        change = activation(v) - activation(w)
        assert (squared(activation, change) <= activation.reduce(change * (v - w)) + 1e-13).all()


@every
@quick
@given(v=values)
def test_conjugate_override_equals_the_derived_identity(activation: ProximalActivation, v: Tensor) -> None:
    torch.testing.assert_close(
        activation.conjugate(v), ProximalActivation.conjugate(activation, v), rtol=1e-12, atol=1e-12
    )


@every
@quick
@given(v=values)
def test_shapes(activation: ProximalActivation, v: Tensor) -> None:
    assert activation(v).shape == activation.prox(v, 0.5).shape == v.shape
    reduced = activation.reduce(v).shape
    assert activation.psi(v).shape == activation.conjugate(v).shape == activation.phi(v).shape == reduced


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_is_preserved_and_results_are_close(activation: ProximalActivation, dtype: torch.dtype) -> None:
    v = torch.linspace(-4, 4, 24, dtype=torch.float64).view(8, 3).to(dtype)
    tolerance = 8 * torch.finfo(dtype).eps
    for method in (activation, lambda x: activation.prox(x, 0.5), activation.conjugate):
        result = method(v)
        assert result.dtype == dtype
        torch.testing.assert_close(result.double(), method(v.double()), rtol=tolerance, atol=tolerance)
    value = activation.psi(activation(v))
    assert value.dtype == dtype
    assert torch.isfinite(value).all()


@every
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_device_is_preserved(activation: ProximalActivation) -> None:
    v = torch.randn(8, 3, device="cuda")
    for result in (activation(v), activation.psi(v), activation.prox(v, 0.5), activation.conjugate(v)):
        assert result.device == v.device


@every
def test_derivatives(activation: ProximalActivation) -> None:
    v = 2.5 * torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    v.requires_grad_()
    assert torch.autograd.gradcheck(activation, v)
    for step in (0.3, 3.0):
        assert torch.autograd.gradcheck(lambda u, step=step: activation.prox(u, step), v)
    step = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(activation.prox, (v, step))


@every
@pytest.mark.parametrize("size", [0.0, 1e-30, 1.0, 30.0, 88.0, 1e4, 1e30])
def test_extreme_arguments_in_single_precision(activation: ProximalActivation, size: float) -> None:
    v = size * torch.tensor([[1.0, -1.0, 0.5], [-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]])
    v.requires_grad_()
    for method in (activation, activation.conjugate, lambda u: activation.prox(u, 0.1)):
        result = method(v)
        (gradient,) = torch.autograd.grad(result.sum(), v)
        assert not result.isnan().any()
        # Beyond 1e4 the chain rule of a group's norm may overflow.
        assert torch.isfinite(gradient).all() or (size > 1e4 and activation.dim is not None)
    p = activation(v).detach()
    assert not activation.psi(p).isnan().any()
    if size <= 1e4:
        gap = activation.phi(p) + activation.conjugate(v) - activation.reduce(p * v)
        assert (gap.abs() <= 2e-6 * (1 + activation.reduce((p * v).abs() + p * p))).all()


@every
def test_the_conjugate_is_nonnegative_where_psi_vanishes_at_zero(activation: ProximalActivation) -> None:
    if activation.dim is not None or activation.psi(torch.zeros(3)).abs().max() > 0:
        pytest.skip("Ψ(0) is not 0")
    sizes = torch.logspace(-30, 4, 300).unsqueeze(1).expand(-1, 3)
    assert (activation.conjugate(torch.cat([sizes, -sizes])) >= 0).all()


@every
def test_infinite_arguments_of_elementwise_activations(activation: ProximalActivation) -> None:
    if activation.dim is not None or "softsign" in repr(activation).lower():
        pytest.skip("∞/∞: torch's own softsign gives NaN, and groups have no direction at infinity")
    v = torch.tensor([math.inf, -math.inf, 0.0]).view(1, 3).double()
    large = torch.tensor([1e300, -1e300, 0.0]).view(1, 3).double()
    for method in (activation, lambda u: activation.prox(u, 0.5)):
        assert torch.equal(method(v).clamp(-1e299, 1e299), method(large).clamp(-1e299, 1e299))


@every
def test_to_module_has_the_same_forward_pass(activation: ProximalActivation) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        v = torch.linspace(-30, 30, 300, dtype=torch.float64).view(100, 3).to(dtype)
        assert torch.equal(activation.to_module()(v), activation(v))


@every
def test_modules_convert_back(activation: ProximalActivation) -> None:
    v = torch.linspace(-30, 30, 300, dtype=torch.float64).view(100, 3)
    again = as_activation(activation.to_module())
    assert type(again) is type(activation)
    assert torch.equal(again(v), activation(v))


TORCH = {
    "arctan": torch.arctan,
    "celu": lambda v, a: F.celu(v, a.alpha),
    "elu": lambda v, a: F.elu(v, a.alpha),
    "leaky-relu": lambda v, a: F.leaky_relu(v, a.slope),
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "soft-threshold": lambda v, a: F.softshrink(v, float(a.threshold)),
    "softmax": lambda v, a: F.softmax(v, a.dim),
    "softplus": lambda v, a: F.softplus(v, a.beta, a.threshold),
    "softsign": F.softsign,
    "tanh": torch.tanh,
    "box": lambda v, a: F.hardtanh(v, float(a.lo), float(a.hi)),
}


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sigma_has_the_bits_of_torch(name: str, dtype: torch.dtype) -> None:
    v = torch.cat([torch.linspace(-40, 40, 997), torch.logspace(-20, 4, 201)]).to(dtype).unsqueeze(1)
    function = TORCH[name]
    for activation in ACTIVATIONS[name].examples()[:2]:  # the third soft threshold is per channel
        wanted = function(v, activation) if function.__name__ == "<lambda>" else function(v)
        assert torch.equal(activation(v), wanted)


PYPROXIMAL = [
    ("soft-threshold", lambda a: pyproximal.L1(sigma=float(a.threshold))),
    ("box", lambda a: pyproximal.Box(float(a.lo), float(a.hi))),
    ("relu", lambda a: pyproximal.Box(lower=0)),
    ("l2-ball", lambda a: pyproximal.EuclideanBall(np.zeros(12), a.radius)),
    ("simplex", lambda a: pyproximal.Simplex(n=12, radius=1, engine="numpy", maxiter=200, xtol=1e-14)),
    ("group-soft-threshold", lambda a: pyproximal.L21(ndim=12, sigma=a.threshold)),
]


@pytest.mark.parametrize(("name", "oracle"), PYPROXIMAL, ids=[name for name, _ in PYPROXIMAL])
@pytest.mark.parametrize("step", [0.3, 1.0, 3.0])
def test_prox_agrees_with_pyproximal(name: str, oracle, step: float) -> None:
    activation = ACTIVATIONS[name].example()
    for seed in range(5):
        u = np.random.default_rng(seed).normal(size=12) * 2
        wanted = np.asarray(oracle(activation).prox(u.copy(), step))
        torch.testing.assert_close(
            activation.prox(torch.from_numpy(u), step), torch.from_numpy(wanted), rtol=1e-7, atol=1e-7
        )


def point(*entries: float) -> Tensor:
    return torch.tensor(entries, dtype=torch.float64)


OFF_DOMAIN = {
    "arctan": [point(math.pi / 2), point(-math.pi / 2), point(2.0)],
    "box": [point(-1e-9), point(1 + 1e-9)],
    "celu": [point(-0.5 - 1e-9)],
    "elu": [point(-1 - 1e-9)],
    "isru": [point(1 + 1e-9), point(-2.0)],
    "l2-ball": [point(0.8, 0.61), point(0.0, -1.001)],
    "relu": [point(-1e-30), point(-5.0)],
    "sigmoid": [point(-1e-12), point(1 + 1e-12)],
    "simplex": [point(0.5, 0.51), point(1.2, -0.2), point(0.3, 0.3)],
    "softmax": [point(0.5, 0.51), point(1.2, -0.2), point(0.3, 0.3)],
    "softplus": [point(-1e-12)],
    "softsign": [point(1.0), point(-1.0), point(3.0)],
    "squareplus": [point(0.0), point(-1.0)],
    "tanh": [point(1 + 1e-12), point(-1 - 1e-12)],
}


@pytest.mark.parametrize("name", OFF_DOMAIN)
def test_psi_is_infinite_off_its_domain(name: str) -> None:
    activation = ACTIVATIONS[name].examples()[0]
    for u in OFF_DOMAIN[name]:
        for dtype in (torch.float64, torch.float32) if (u.abs() > 1.1).any() else (torch.float64,):
            assert (activation.psi(u.to(dtype)) == math.inf).all()
    assert (activation.psi(point(math.nan, math.nan)) == math.inf).all()


ENDS = [
    ("tanh", point(1.0), math.log(2) - 0.5),
    ("tanh", point(-1.0), math.log(2) - 0.5),
    ("sigmoid", point(0.0), 0.0),
    ("sigmoid", point(1.0), -0.5),
    ("elu", point(-1.0), 0.5),
    ("isru", point(1.0), 0.5),
    ("isru", point(-1.0), 0.5),
    ("softplus", point(0.0), 0.0),
    ("softplus", point(1e3), -(math.pi**2) / 6),
    ("softmax", point(1.0, 0.0), -0.5),
    ("relu", point(0.0), 0.0),
]


@pytest.mark.parametrize(("name", "end", "value"), ENDS)
def test_psi_is_finite_at_closed_ends(name: str, end: Tensor, value: float) -> None:
    for dtype in (torch.float64, torch.float32):
        wanted = torch.tensor([value] if end.numel() == 1 else value, dtype=dtype)
        torch.testing.assert_close(ACTIVATIONS[name]().psi(end.to(dtype)), wanted)
