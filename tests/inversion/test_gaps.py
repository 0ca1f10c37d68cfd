"""The quick distances of activations with Ψ = 0 are Bregman distances."""

from __future__ import annotations

import pytest
import torch

from torchlift.inversion.problem import BREGMAN, FLAT, _gap, per_image, square_sum
from torchlift.inversion.solver import choose
from torchlift.prox import Box, Identity, ProximalActivation, ReLU, SoftThreshold, Tanh


@pytest.mark.parametrize("activation", [Identity(), ReLU(), Box(-0.5, 2.0), Tanh(), SoftThreshold(0.2)], ids=repr)
@pytest.mark.parametrize("shape", [(6, 30), (6, 2, 3, 5)])
def test_they_agree(activation: ProximalActivation, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    v, w = (2 * torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(2))
    z, before = activation(w), v.clone()
    torch.testing.assert_close(_gap(activation, z, v), per_image(BREGMAN.value(activation, z, v, 1.0)))
    torch.testing.assert_close(v, before, rtol=0, atol=0)
    assert float(_gap(activation, activation(v), v).abs().max()) == 0


@pytest.mark.parametrize("kind", FLAT)
def test_flat_activations_have_no_psi_on_their_range(kind: type[ProximalActivation]) -> None:
    for activation in kind.examples():
        inside = activation(torch.linspace(-9, 9, 101, dtype=torch.float64))
        assert bool((activation.psi(inside) == 0).all())


def test_squares_add_up_per_image() -> None:
    x = torch.arange(12.0, dtype=torch.float64).view(2, 2, 3)
    assert square_sum(x).tolist() == [55.0, 451.0]


def test_chosen_images_come_from_one_record_the_rest_from_the_other() -> None:
    mask = torch.tensor([True, False, True])
    yes, no = (torch.arange(3.0), torch.ones(3, 2)), (-torch.ones(3), torch.zeros(3, 2))
    first, second = choose(mask, yes, no)
    assert first.tolist() == [0.0, -1.0, 2.0]
    assert second.tolist() == [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
    assert no[0].tolist() == [-1.0, -1.0, -1.0]
    assert choose(mask, yes[0], yes[0]) is yes[0]
