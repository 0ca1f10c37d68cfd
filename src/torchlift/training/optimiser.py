"""Optimisers of torch: made from a module, named in messages, and their memory saved with a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchlift.core.errors import invalid_type, invalid_value
from torchlift.solvers.state import Number
from torchlift.sweeps import RelativeStep
from torchlift.training.step import StateDict, Work, unlimited

#: Samples for each input of the widest dense layer from which on steps may be as long as they are found to be: fewer
#: leave directions that nothing in the data speaks of, and long steps go far along the others.
SAMPLES_PER_INPUT = 8
#: Passes over the data up to which they may be so too: nothing is fitted before its time.
PASSES = 20
#: The least share of the limit.
LEAST_SHARE = 0.12


def factory_name(factory: Any) -> str:
    made = getattr(factory, "func", factory)  # of a functools.partial
    return made.__name__ if isinstance(made, type) else getattr(made, "__name__", type(made).__name__)


def make_optimiser(factory: Callable[..., torch.optim.Optimizer], module: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of a module: from the module itself where it looks at it, else from the trained parameters."""
    made = getattr(factory, "func", factory)
    whole = isinstance(made, type) and issubclass(made, RelativeStep)
    for name, parameter in module.named_parameters() if whole else ():
        if parameter.requires_grad and parameter.is_complex():
            hint = "Try solver=torch.optim.Adam, or keep torch.view_as_real of it and put it together in forward."
            invalid_value(f"train network {name!r}", "real numbers, which steps are measured by", parameter.dtype, hint)
    optimiser = factory(module if whole else [p for p in module.parameters() if p.requires_grad])
    if not isinstance(optimiser, torch.optim.Optimizer):
        invalid_type("train solver", "a function that makes a torch optimiser", optimiser)
    return optimiser


def share_of_limit(optimiser: RelativeStep, work: Work) -> float:
    """How much of the limit of its steps serves: less where few samples are seen often.

    Batches of few samples agree with each other, and the estimate of the distance
    grows; with n samples, dense layers of up to d inputs and E passes it is held to
    max(√(n/8d), 20/E). On 50 digits a classifier reads 61 of 100 others, not 48.
    """
    batches = work.batches
    if not batches.sized or batches.fresh or work.budget is unlimited:
        return 1.0
    widths = [group["params"][0].shape[-1] for group in optimiser.param_groups if group["kind"] == "dense"]
    wanted = SAMPLES_PER_INPUT * max(widths, default=0)
    if batches.samples >= wanted:
        return 1.0
    per_pass = 1 if work.full else max(batches.samples // batches.batch_size, 1)
    used = 1 - work.budget(PASSES * per_pass)  # of the budget, by so many passes
    return min(1.0, max(LEAST_SHARE, math.sqrt(batches.samples / wanted), used))


def memory_of(optimiser: torch.optim.Optimizer) -> StateDict:
    """What an optimiser remembers of its steps, as tensors and numbers with paths `index.key`."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Number] = {}

    def keep(path: str, value: object) -> None:
        if isinstance(value, list):  # L-BFGS has some
            numbers[f"{path}.length"] = len(value)
            for position, entry in enumerate(value):
                keep(f"{path}.{position}", entry)
        elif isinstance(value, Tensor):
            tensors[path] = value
        elif value is None or isinstance(value, bool | int | float):
            numbers[path] = value
        else:
            name, hint = type(optimiser).__name__, "Train without a folder, or choose another optimiser."
            got = f"a {type(value).__name__} in 'optimiser.{path}'"
            invalid_value(f"checkpoint of {name}", "a state of tensors and numbers", got, hint)

    for index, memory in optimiser.state_dict()["state"].items():
        for key, value in memory.items():
            keep(f"{index}.{key}", value)
    return tensors, numbers


def load_memory(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor], numbers: Mapping[str, Number]) -> None:
    """Give an optimiser the memory that `memory_of` took; the settings of its steps stay."""
    memory: dict[int | str, dict[str, Any]] = {}
    for path, value in (*tensors.items(), *numbers.items()):
        index, key, *position = path.split(".")
        entries = memory.setdefault(int(index) if index.isdigit() else index, {})
        if position:
            entries.setdefault(key, {})[position[0]] = value
        else:
            entries[key] = value
    state = {index: {key: _listed(value) for key, value in entries.items()} for index, entries in memory.items()}
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def _listed(value: Any) -> Any:
    """A list from its length and its entries by position; anything else as it is."""
    return [value[str(i)] for i in range(value["length"])] if isinstance(value, Mapping) else value
