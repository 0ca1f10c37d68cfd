"""Recomputed segments: the same gradients, by autograd and by sweeps, in a fraction of the memory."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import torchlift as tl
from torchlift.core.errors import InvalidValueError
from torchlift.networks import DDFB, LISTA, FirmDenoiser, PrimalDual, ScCP
from torchlift.networks.unrolled import Iterative


def build(kind: type[Iterative], iterations: int, side: int = 8) -> Iterative:
    generator = torch.Generator().manual_seed(0)
    shape = (1, side, side)
    blur = tl.data.Deblurring(3, 1.0).operator(shape, torch.empty(0, dtype=torch.float64))
    if kind is PrimalDual:
        return PrimalDual(
            blur, tl.operators.convolutional_dictionary(shape, 3, dtype=torch.float64).T, iterations, threshold=0.02
        )
    if kind is LISTA:
        return LISTA(
            blur, tl.operators.convolutional_dictionary(shape, 3, dtype=torch.float64), iterations, threshold=0.02
        )
    return kind(shape, iterations, features=9, size=3, threshold=0.05, generator=generator, dtype=torch.float64)


def gradients(net: Iterative, y: torch.Tensor, sweeps: bool) -> list[torch.Tensor]:
    if sweeps:
        with tl.sweeping():
            loss = (net(y) - 0.5).square().sum()
    else:
        loss = (net(y) - 0.5).square().sum()
    return list(torch.autograd.grad(loss, list(net.parameters()), allow_unused=False))


@pytest.mark.parametrize("sweeps", [False, True])
@pytest.mark.parametrize("kind", [PrimalDual, LISTA, DDFB, ScCP, FirmDenoiser])
def test_gradients_are_the_same(kind: type[Iterative], sweeps: bool) -> None:
    net = build(kind, 5)
    y = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    expected = gradients(net, y, sweeps)
    for layers in (None, 1, 3, 100):
        for repeated, whole in zip(gradients(net.recompute(layers), y, sweeps), expected, strict=True):
            torch.testing.assert_close(repeated, whole, rtol=1e-12, atol=1e-12 * float(whole.abs().max()))
    torch.testing.assert_close(net(y), net.recompute(0)(y), rtol=0, atol=0)


class Peak(TorchDispatchMode):
    """The most bytes of tensors that were alive at once, and the number of products of convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.most = self.operations = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func)
        if "convolution_backward" in name:  # as many products as there are gradients, not counting that of a bias
            self.operations += sum(args[-1][:2])
        else:
            self.operations += "convolution" in name
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self.known:
                storage = tensor.untyped_storage()
                size, key = storage.nbytes(), storage._cdata
                self.known.add(key)
                self.alive += size
                self.most = max(self.most, self.alive)
                weakref.finalize(storage, self._freed, key, size)
        return result

    def _freed(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.alive -= size


@pytest.mark.parametrize("kind", [PrimalDual, DDFB])
@pytest.mark.parametrize("sweeps", [False, True])
def test_twenty_iterations_take_a_third_of_the_memory(kind: type[Iterative], sweeps: bool) -> None:
    net = build(kind, 20, 24)
    y = torch.rand(8, 1, 24, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with Peak() as whole:
        gradients(net, y, sweeps)
    net.recompute()
    with Peak() as repeated:
        gradients(net, y, sweeps)
    assert repeated.most < whole.most / 3
    assert whole.operations < repeated.operations <= 1.4 * whole.operations


def test_it_is_trained_like_the_whole() -> None:
    """`train` takes the same steps, also on images of another size than the network was built for."""
    y = torch.rand(12, 1, 10, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    nets = [build(DDFB, 4), build(DDFB, 4).recompute(3)]
    for net in nets:
        tl.train(net.for_images((1, 10, 10)), (y, 0.5 * y), steps=3, batch_size=4, progress=False)
    for one, other in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_a_length_is_asked_for() -> None:
    with pytest.raises(InvalidValueError, match=r"DDFB\.recompute layers"):
        build(DDFB, 2).recompute(-1)
