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

from contracts.kept import assert_all_kept
from torchlift.prox import ACTIVATIONS, ProximalActivation
from torchlift.testing.activations import ON_ITSELF, ON_VALUES

INSTANCES = [
    pytest.param(activation, id=f"{name}-{index}")
    for name, cls in ACTIVATIONS.items()
    for index, activation in enumerate(cls.examples())
]
every = pytest.mark.parametrize("activation", INSTANCES)
quick = settings(max_examples=12, deadline=None, derandomize=True)

shapes = st.sampled_from([(1, 3), (4, 3), (2, 5, 3)])  # three channels, for the per-channel thresholds
values = shapes.flatmap(lambda shape: arrays(np.float64, shape, elements=st.floats(-6, 6)).map(torch.from_numpy))
seeds = st.integers(0, 2**31 - 1)


@every
@quick
@given(v=values, seed=seeds)
def test_promises_on_values(activation: ProximalActivation, v: Tensor, seed: int) -> None:
    assert_all_kept(ON_VALUES, activation, v, seed)


@every
def test_promises(activation: ProximalActivation) -> None:
    assert_all_kept(ON_ITSELF, activation, 3)


@every
def test_infinite_arguments_of_elementwise_activations(activation: ProximalActivation) -> None:
    if activation.dim is not None or "softsign" in repr(activation).lower():
        pytest.skip("∞/∞: torch's own softsign gives NaN, and groups have no direction at infinity")
    v = torch.tensor([math.inf, -math.inf, 0.0]).view(1, 3).double()
    large = torch.tensor([1e300, -1e300, 0.0]).view(1, 3).double()
    for method in (activation, lambda u: activation.prox(u, 0.5)):
        assert torch.equal(method(v).clamp(-1e299, 1e299), method(large).clamp(-1e299, 1e299))


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
