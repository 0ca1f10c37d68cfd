"""The shape of inputs is found from that of outputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import torchlift as tl
from torchlift.networks.input_shape import fitting_shapes


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(12, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.embed(x))


class States(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.states = nn.GRU(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.states(x)[0]


FITTING = {
    "dense": (nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), [(6,)]),
    "tokens": (Tokens(), [(7, 12)]),
    "normalised table": (nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)), [(6,)]),
    "normalised tokens": (nn.Sequential(nn.RMSNorm(6), nn.Linear(6, 3)), [(5, 6)]),
    "recurrent": (States(), [(5, 3)]),
    "pictures": (nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()), [(3, 8, 12)]),
    "flattened grey": (nn.Sequential(nn.Flatten(), nn.Linear(64, 5)), [(1, 8, 8)]),
    "flattened colours": (nn.Sequential(nn.Flatten(), nn.Linear(192, 5)), [(3, 8, 8)]),
    "flattened table": (nn.Sequential(nn.Flatten(), nn.Linear(10, 5)), [(10,)]),
    "signals": (nn.Conv1d(2, 4, 3), [(2, 30)]),
    "batch norm first": (nn.Sequential(nn.BatchNorm1d(7), nn.Linear(7, 5)), [(7,)]),
    "norm of channels first": (nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3)), [(3, 9, 9)]),
    "transposed": (nn.ConvTranspose2d(4, 2, 4, 2, 1), [(4, 5, 5)]),
    "strides": (
        nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(2)),
        [(1, s, s) for s in (28, 30, 27, 29)],
    ),
    "joined": (nn.Sequential(nn.Conv2d(1, 2, 5), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5)), [(1, 12, 12)]),
}


@pytest.mark.parametrize("case", FITTING)
def test_the_shape_is_among_those_that_fit(case: str) -> None:
    module, shapes = FITTING[case]
    output = module(torch.zeros(2, *shapes[0]))
    assert fitting_shapes(module, tuple(output.shape[1:])) == shapes


def test_a_size_that_was_forgotten_is_not_made_up() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert fitting_shapes(module, (8,)) == []
    with pytest.raises(
        tl.core.errors.InvalidValueError, match=r"Conv2d does not tell, got none. Pass input_shape=\(3, "
    ):
        tl.invert(module, torch.zeros(2, 8))


def test_invert_needs_no_shape() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU())
    images = torch.rand(2, 1, 6, 6)
    found = tl.invert(module, module(images).detach(), progress=False)
    assert torch.allclose(found.x, images, atol=1e-3)


def test_a_choice_between_shapes_is_said() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU())
    outputs = module(torch.rand(2, 1, 8, 8)).detach()
    with pytest.warns(
        UserWarning, match=r"taken to have the shape \(1, 8, 8\); \(1, 7, 7\) would lead to such outputs too"
    ):
        assert tl.invert(module, outputs, max_steps=2, progress=False).x.shape == (2, 1, 8, 8)


def test_attention_is_inverted() -> None:
    """Its fused kernels cannot be differentiated twice, which steps and error bars need."""
    torch.manual_seed(0)
    module = Tokens().eval()
    inputs = torch.rand(2, 7, 12)
    found = tl.invert(module, module(inputs).detach(), progress=False)
    assert torch.linalg.vector_norm(module(found.x) - module(inputs)) < 0.05
    assert torch.isfinite(found.interval(0.9).lower).all()
