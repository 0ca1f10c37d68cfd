"""The weights that a run starts from."""

from __future__ import annotations

import torch
from torch import nn

from torchlift.core.errors import NotRepresentableError, TorchliftError
from torchlift.data import Batches
from torchlift.functions.losses import Loss
from torchlift.networks import Chain
from torchlift.training.balance import asleep
from torchlift.training.phase import Phase
from torchlift.training.weights import initialise_weights

#: Samples on which layers are checked for being dead.
SAMPLES = 100


def start_weights(network: nn.Module, phase: Phase, batches: Batches, loss: Loss, seed: int) -> None:
    """Weights as the phase wants them; by default as they are, with dead layers revived."""
    if phase.weights == "keep":
        return
    if phase.weights is None:
        _revive(network, phase, batches)
        return
    assert isinstance(network, Chain)  # since `Phase.check`
    y, x, _ = next(batches.ordered(batches.samples))
    initialise_weights(network, phase.weights, (y, x), generator=torch.Generator().manual_seed(seed))


def _revive(network: nn.Module, phase: Phase, batches: Batches) -> None:
    """Rescale a chain with dead layers (LSUV). Skipped for Conventional(), which keeps the given weights."""
    hard = phase.lifting is not None and phase.lifting.hard
    frozen = not all(parameter.requires_grad for parameter in network.parameters())
    if hard or frozen:
        return
    y, _, context = next(batches.ordered(SAMPLES))
    if len(y) < 2:
        return
    chain = network if isinstance(network, Chain) else _twin(network, tuple(y.shape[1:]))
    if chain is not None and asleep(chain, y, context):
        initialise_weights(chain, "balanced", y)
        if chain is not network:
            _write_back(chain, network)


def _twin(network: nn.Module, shape: tuple[int, ...]) -> Chain | None:
    """A chain with the weights of a plain `nn.Sequential`; None for modules that are none."""
    if type(network) is not nn.Sequential:
        return None
    try:
        twin = Chain(network, shape)
        twin.load(network)  # refuses what has no place of its own in the twin, such as batch norms
    except (NotRepresentableError, TorchliftError):
        return None
    return twin


@torch.no_grad()
def _write_back(chain: Chain, network: nn.Module) -> None:
    own = chain.scatter({name: parameter.detach() for name, parameter in chain.named_parameters()})
    for target, source in zip(network.parameters(), own.values(), strict=True):
        target.copy_(source.reshape(target.shape))
