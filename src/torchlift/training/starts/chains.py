"""Networks as chains of layers: plain modules that are one, and inputs that a chain can hand on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from torchlift.core.errors import NotRepresentableError, TorchliftError
from torchlift.core.tensors import copy_into
from torchlift.data import Batch
from torchlift.networks import Chain, Network
from torchlift.training.starts.identity import Range, identity_start


def twin(network: nn.Module, shape: tuple[int, ...] | None) -> Chain | None:
    """A chain with the weights of a plain `nn.Sequential`; None for modules that are none."""
    if isinstance(network, Network) or type(network) is not nn.Sequential:
        return None
    try:
        chain = Chain(network, shape)
        chain.load(network)  # refuses what has no place of its own in the twin, such as batch norms
    except (NotRepresentableError, TorchliftError):
        return None
    return chain


@contextmanager
def unchanged_if_refused(network: nn.Module) -> Iterator[None]:
    """A layer far from the input may be one that cannot be set as asked: then the others get their weights back."""
    before = [parameter.detach().clone() for parameter in network.parameters()]
    try:
        yield
    except TorchliftError:
        copy_into(before, network.parameters())
        raise


def hands_on(chain: Chain) -> bool:
    """Whether no state has fewer entries than the input, so that all of it can be handed on."""
    entries = math.prod(chain.in_shape)
    shapes = [*chain.operators().W.column_shapes, chain.out_shape]
    return all(math.prod(shape) >= entries for shape in shapes)


def hand_on(network: nn.Module, example: Batch) -> bool:
    """Set the weights to those of the identity; False, and nothing changed, where the network cannot represent it."""
    chain = network if isinstance(network, Chain) else twin(network, tuple(example.y.shape[1:]))
    if chain is None or not hands_on(chain):
        return False
    try:
        with unchanged_if_refused(chain), torch.no_grad():
            identity_start(chain, range_of(example.y), 0.0, torch.Generator().manual_seed(0))
    except TorchliftError:
        return False
    if chain is not network:
        chain.load_back(network)
    return True


def range_of(y: Tensor) -> Range:
    """The least and the largest entry; of equal ones an interval of length 1 that begins there."""
    low, high = float(y.min()), float(y.max())
    return (low, high) if high > low else (low, low + 1.0)
