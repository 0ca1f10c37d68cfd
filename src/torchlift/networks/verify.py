"""Compares a lifted network with the module it was read from."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from torchlift.core.errors import NotRepresentableError
from torchlift.networks.base import Network
from torchlift.networks.calls import uses_batch_statistics
from torchlift.networks.graph import GraphNetwork
from torchlift.networks.trace import twin

#: Samples of the example that are compared.
SAMPLES = 1
#: Relative difference that rounding may leave, in units of eps.
ROUNDING = 4096


@torch.no_grad()
def verify(network: Network, module: nn.Module, example: Tensor) -> None:
    """Refuse a lifted network whose output differs from the module's at the example or at a perturbed one.

    Samples are evaluated by the module one set after the other and by the
    network together, so that a module which mixes samples is refused too
    (except where batch norms use the statistics of the batch). Nothing of the
    module changes: a copy is evaluated, and the random state is put back.
    """
    if any(tensor.device.type == "meta" for tensor in module.state_dict().values()):
        return
    copy, state = twin(module), torch.get_rng_state()
    try:
        first = example[:SAMPLES]
        noise = torch.randn(first.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        second = first + (0.1 + first.abs().mean()) * noise.to(first)
        together = torch.cat([first, second])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the module warns of, it will say to its user again
            mixes = isinstance(network, GraphNetwork) and any(map(uses_batch_statistics, network.plan.contextual))
            expected = copy(together) if mixes else torch.cat([copy(first), copy(second)])
        # not its forward pass: that of a recorded module is the module's
        difference = _difference(network.states(together).output, expected)
        if difference is not None:
            path = _first_difference(network, copy, together) if isinstance(network, GraphNetwork) else "the output"
            raise NotRepresentableError(
                f"lift: the recorded calls differ from the module by {difference:.3g}, first at {path}. "
                "Does it read something besides its input, or mix the samples of a batch?"
            )
    finally:
        torch.set_rng_state(state)


def _difference(output: Tensor, expected: Tensor) -> float | None:
    """The largest difference, None where it is rounding."""
    if output.shape != expected.shape:
        return float("inf")
    room = ROUNDING * torch.finfo(expected.dtype).eps * (1e-6 + float(expected.abs().max()))
    gap = float((output - expected).abs().max()) if output.numel() else 0.0
    return None if gap <= room or (gap != gap and torch.equal(output.isnan(), expected.isnan())) else gap


def _first_difference(network: GraphNetwork, copy: nn.Module, y: Tensor) -> str:
    """The path of the first module whose output matches no recorded call."""
    seen: list[tuple[str, Tensor]] = []
    hooks = [
        part.register_forward_hook(
            lambda _, __, output, name=name: seen.append((name, output)) if isinstance(output, Tensor) else None
        )
        for name, part in copy.named_modules() if name and not list(part.children())
    ]  # fmt: skip
    try:
        copy(y)
    finally:
        for hook in hooks:
            hook.remove()
    states = network.states(y)
    values: dict[str, list[Tensor]] = {}
    for row, v, z in zip(network.plan.rows, states.v, states.z, strict=True):
        for node, value in ((row.source, v), (row.node, z)):
            values.setdefault(node.meta["path"], []).append(value)
    for name, output in seen:
        recorded = values.get(name, [])
        comparable = (value for value in recorded if value.shape == output.shape)
        if recorded and all(_difference(value, output) is not None for value in comparable):
            return name
    return "the output"
