"""Learned thresholds and bounds, per-channel thresholds, and tracing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchlift.prox import Box, SoftThreshold


def test_gradients_reach_a_scalar_threshold() -> None:
    v = 3 * torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    threshold = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    for method in ("__call__", "conjugate", "psi"):
        assert torch.autograd.gradcheck(lambda t, m=method: getattr(SoftThreshold(t), m)(v), threshold)
    assert torch.autograd.gradcheck(lambda t: SoftThreshold(t).prox(v, 0.3), threshold)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_learned_threshold_gives_the_bits_of_softshrink_with_and_without_gradients(dtype: torch.dtype) -> None:
    v = (2 * torch.randn(500, generator=torch.Generator().manual_seed(0))).to(dtype)
    v[:4] = torch.tensor([0.5, -0.5, 0.0, float("inf")])
    expected = F.softshrink(v, 0.5)
    activation = SoftThreshold(torch.tensor(0.5, dtype=dtype))
    assert torch.equal(activation(v), expected)
    with torch.no_grad():
        assert torch.equal(activation(v), expected)
        assert bool(activation(torch.full((1,), float("nan"), dtype=dtype)).isnan())


def test_gradients_reach_the_ends_of_a_box() -> None:
    v = 3 * torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    end = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: Box(-t, t, validate=False)(v), end)
    assert torch.autograd.gradcheck(lambda t: Box(-t, t, validate=False).conjugate(v), end)
    assert torch.autograd.gradcheck(lambda t: Box(-1.0, t)(v), end)


@pytest.mark.parametrize(
    ("shape", "dim"), [((2, 3), 1), ((2, 3, 5), 1), ((2, 3, 4, 4), 1), ((4, 5, 3), -1), ((3, 2), 0)]
)
def test_per_channel_thresholds_act_along_their_axis(shape: tuple[int, ...], dim: int) -> None:
    v = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    thresholds = torch.tensor([0.1, 0.9, 2.0])
    activation = SoftThreshold(thresholds, channel_dim=dim)
    assert activation.dim is None
    for channel, threshold in enumerate(thresholds.tolist()):
        alone = SoftThreshold(threshold)
        for method in ("__call__", "psi", "conjugate", "prox"):
            whole = getattr(activation, method)(v).select(dim, channel)
            torch.testing.assert_close(whole, getattr(alone, method)(v.select(dim, channel)))


def test_a_threshold_follows_the_dtype_of_the_input() -> None:
    v = torch.linspace(-2, 2, 6, dtype=torch.bfloat16).view(2, 3)
    assert SoftThreshold(torch.tensor([0.1, 0.2, 0.3]))(v).dtype == torch.bfloat16


class Unrolled(nn.Module):
    """Builds its activations in every pass, as unrolled networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.tensor(0.3))
        self.raw_channels = nn.Parameter(torch.linspace(-1, 1, 4))

    def forward(self, v: Tensor) -> Tensor:
        end = F.softplus(self.raw)
        shrunk = SoftThreshold(F.softplus(self.raw_channels), validate=False)(v)
        return Box(-end, end, validate=False)(shrunk) + SoftThreshold(end, validate=False)(v)


def test_activations_built_on_the_fly_can_be_exported_and_compiled() -> None:
    network, v = Unrolled(), 2 * torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    wanted = network(v)
    exported = torch.export.export(network, (v,))
    assert torch.equal(exported.module()(v), wanted)
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    result = compiled(v)
    assert torch.equal(result, wanted)
    result.sum().backward()
    assert network.raw.grad is not None
    assert network.raw_channels.grad is not None


@pytest.mark.parametrize(
    "make",
    [
        lambda t: SoftThreshold(t),
        lambda t: Box(-t, t, validate=False),
        lambda t: Box(-1.0, t),
        lambda t: SoftThreshold(t.repeat(4), channel_dim=-1),
    ],
    ids=["soft", "symmetric box", "one end", "per channel"],
)
def test_slopes_of_the_conjugate_are_its_derivatives(make) -> None:
    v = torch.linspace(-2, 2, 40, dtype=torch.float64).reshape(10, 4)
    t = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    activation = make(t)
    total = activation.conjugate(v).sum()
    slopes = activation.conjugate_slopes(v)
    learned = {name: value for name, value in vars(activation).items() if isinstance(value, torch.Tensor)}
    assert slopes.keys() == learned.keys()
    pulled = sum((slopes[name] * value).sum() for name, value in learned.items())  # to t, through −t and copies
    (expected,), (found,) = (torch.autograd.grad(each, t) for each in (total, pulled))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
