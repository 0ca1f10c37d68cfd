"""The paper's autoencoder at its full size, lifted and back."""

from __future__ import annotations

import torch

from contracts.network_cases import autoencoder
from torchlift import lift
from torchlift.data import load_digits
from torchlift.objective import Objective


def test_lifts_and_comes_back() -> None:
    torch.manual_seed(0)
    model = autoencoder()
    network = lift(model, (1, 28, 28))
    images = load_digits("test").images[:8]
    assert network.in_shape == network.out_shape == (1, 28, 28)
    assert [tuple(shape) for shape in network.operators().W.row_shapes] == [
        (8, 14, 14),
        (16, 7, 7),
        (784,),
        (8, 14, 14),
    ]
    assert sum(p.numel() for p in network.parameters()) == sum(p.numel() for p in model.parameters())
    torch.testing.assert_close(network(images), model(images), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(network.to_sequential()(images), model(images), rtol=1e-5, atol=1e-6)


def test_encoder_ends_in_a_code() -> None:
    torch.manual_seed(0)
    encoder = lift(autoencoder()[:6], (1, 28, 28))
    assert encoder.out_shape == (392,)
    assert encoder.depth == 2


def test_has_lifted_gradients() -> None:
    torch.manual_seed(0)
    network = lift(autoencoder(), (1, 28, 28))
    objective = Objective(network)
    images = load_digits("test").images[:4]
    z = objective.initialise(images, "input")
    found = objective.gradients(images, images, z)
    assert set(found.parameters) == {name for name, _ in network.named_parameters()}
    assert all(float(grad.abs().max()) > 0 for grad in found.parameters.values())
