"""How much memory training takes, known before it starts."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from torchlift.core.checks import check_positive
from torchlift.core.errors import DataError, invalid_value, message
from torchlift.core.memory import available_memory, format_bytes
from torchlift.data import Batches, TensorBatches
from torchlift.data.tensors import DrawnBatches
from torchlift.objective import Objective
from torchlift.objective.batches import lasting_indices
from torchlift.objective.engine import Layout
from torchlift.objective.latent_cache import state_bytes
from torchlift.operators.context import context_tensors
from torchlift.training.modules import CheckedBatches, like
from torchlift.training.phase import Phase, default_batch_size
from torchlift.training.plan import PlannedPhase
from torchlift.training.small_run import FEW, SmallRun, state_shapes

#: Samples per part of an evaluation.
EVALUATED = 1000


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes that training has in use at its peak.

    Arguments:
        parameters: of the network.
        data: training and validation data.
        solver: what the solver remembers from step to step: copies of parameters, moments, momentum.
        lifted: lifted variables in memory: of one batch, or of all samples where they persist.
        workspace: gradients and intermediate results of a step.
        best: the copy of the best parameters.
        mapped: lifted variables in a file, for which memory is only borrowed.
    """

    parameters: int
    data: int
    solver: int
    lifted: int
    workspace: int
    best: int = 0
    mapped: int = 0

    @property
    def total(self) -> int:
        """Everything in memory."""
        return self.parameters + self.data + self.needed

    @property
    def needed(self) -> int:
        """What is not there before training starts."""
        return self.solver + self.lifted + self.workspace + self.best

    @property
    def rows(self) -> list[tuple[str, int]]:
        """What and how many bytes, for a table; parts that are zero are left out."""
        named = [
            ("parameters", self.parameters), ("data", self.data), ("solver", self.solver),
            ("lifted variables", self.lifted), ("workspace", self.workspace), ("best parameters", self.best),
            ("total", self.total), ("lifted variables on disk", self.mapped),
        ]  # fmt: skip
        return [(name, size) for name, size in named if size]

    def __str__(self) -> str:
        return "\n".join(f"{name:<25}{format_bytes(size):>8}" for name, size in self.rows)


def plan_memory(planned: PlannedPhase, validation: Batches | None = None) -> MemoryPlan:
    """The memory of a phase, from a few steps of its own solver on a copy of the network and some 30 samples.

    Every tensor of that small run counts as fixed, or as growing with the
    batch or its square, so the peak for the true batch is known whatever the
    solver does. Neither the network nor any random state is changed. What
    libraries use inside one operation is not seen.

    Arguments:
        planned: what is to be trained, how, and on which data.
        validation: data for evaluations.
    """
    return _plans(planned, validation)(planned.batches.batch_size)


def check_memory(
    phases: Sequence[PlannedPhase], *, validation: Batches | None = None, limit: float | None = None
) -> tuple[MemoryPlan, ...]:
    """The plans of all phases that come near the limit; refuses those over it, with what would fit instead.

    Arguments:
        phases: what is to be trained, how, and on which data.
        validation: data for evaluations.
        limit: bytes that everything together may take; None for what the machine has left.
    """
    if limit is not None:
        check_positive("train memory_limit", limit)
    near_limit = []
    for planned in phases:
        phase = planned.phase
        if limit is None and phase.folder is None and _surely_fits(planned):
            continue
        plans = _plans(planned, validation)
        plan = plans(planned.batches.batch_size)
        present = plan.total - plan.needed
        allowed = available_memory(_device(planned.network)) + present if limit is None else int(limit)
        if plan.total > allowed:
            others = _alternatives(planned, validation, plans)
            fitting = {words: size for words, size in others if size <= allowed}
            _refuse(phase, plan, allowed, "available in all" if limit is None else "allowed", fitting)
        if phase.folder is not None:
            _check_disk(phase.folder, plan.mapped)
        near_limit.append(plan)
    return tuple(near_limit)


def _surely_fits(planned: PlannedPhase) -> bool:
    """Whether many copies of all that is held at once would fit: no need to measure.

    Twenty in half of the memory for gradients, whose needs are those of back-propagation, and a hundred in a tenth of
    it for solvers of lifted variables, which may keep and try anything.
    """
    network, phase, batches = planned.network, planned.phase, planned.batches
    some = like(network)
    size = 4 if some is None else some.element_size()
    samples = batches.samples if phase.full or phase.states == "warm" else batches.batch_size
    widths = sum(map(math.prod, state_shapes(network, batches.example())))
    held = size * (sum(p.numel() for p in network.parameters()) + samples * widths)
    copies, part = (100, 0.1) if phase.method.needs.latents else (20, 0.5)
    return copies * held < part * available_memory(_device(network))


def _plans(planned: PlannedPhase, validation: Batches | None) -> Callable[[int], MemoryPlan]:
    """Batch size ↦ plan."""
    network, phase, batches = planned.network, planned.phase, planned.batches
    layout = _layout(planned) if phase.method.needs.latents else None
    dtype = batches.example().y.dtype
    store = 0
    if phase.states == "warm" and not phase.full and layout is not None:
        lasting_indices(batches, 0)
        store = state_bytes(layout, batches.samples, phase.state_dtype or dtype)
    _check_one(network, batches)
    run = SmallRun(planned)
    parameters = _size(network.parameters())
    data = _data(batches) + (0 if validation is None else _data(validation))

    def plan(size: int) -> MemoryPlan:
        held, peak = run.kept_bytes(size), run.peak_bytes(size)
        if validation is not None:
            part = min(EVALUATED, validation.samples) if validation.sized else EVALUATED
            peak = max(peak, held + run.forward_bytes(part))
        lifted = 0 if layout is None else min(state_bytes(layout, size, dtype), peak)
        memory = max(held - lifted, 0) if run.persists else held
        return MemoryPlan(
            parameters=parameters,
            data=data,
            solver=memory,
            lifted=lifted + (store if phase.folder is None else 0),
            workspace=max(peak - memory - lifted, 0),
            best=0 if validation is None else parameters,
            mapped=0 if phase.folder is None else store,
        )

    return plan


def _check_one(network: nn.Module, batches: Batches) -> None:
    """Refuse samples so large that even a few of them cannot be tried."""
    example = batches.example()
    states = sum(map(math.prod, state_shapes(network, example))) * example.y.element_size()
    needed, there = 3 * FEW[-1] * states, available_memory(_device(network))
    if needed > there:
        hint = "Train on smaller images: torchlift.data.Patches cuts squares from large ones."
        got = f"{format_bytes(needed)} for {FEW[-1]} samples of shape {tuple(example.y.shape[1:])}"
        invalid_value("train memory", f"at most the {format_bytes(there)} available", got, hint)


def _layout(planned: PlannedPhase) -> Layout:
    """Of the lifted variables."""
    return Objective(planned.network, planned.phase.lifting, planned.loss).layout  # type: ignore[arg-type]


def _alternatives(
    planned: PlannedPhase, validation: Batches | None, plans: Callable[[int], MemoryPlan]
) -> Iterator[tuple[str, int]]:
    """Other settings, in words, and what they take in all; smaller batches from the largest on."""
    phase, batches = planned.phase, planned.batches
    size = batches.batch_size
    if phase.full:
        size = default_batch_size(batches.samples, planned.network)
        fewer = replace(planned, phase=replace(phase, batch_size=size))
        yield f"batch_size={size}", _plans(fewer, validation)(size).total
        return
    whole = plans(size)
    if phase.states == "warm" and phase.folder is None:
        dtype = batches.example().y.dtype
        store = state_bytes(_layout(planned), batches.samples, phase.state_dtype or dtype)
        if phase.state_dtype is None:
            saved = store - store // dtype.itemsize * torch.bfloat16.itemsize
            yield "state_dtype=torch.bfloat16", whole.total - saved
        yield "state_storage='a folder on a disk'", whole.total - store
        yield "states='forward'", whole.total - store
    while size > 1:
        size //= 2
        yield f"batch_size={size}", plans(size).total


def _refuse(phase: Phase, plan: MemoryPlan, allowed: int, which: str, fitting: dict[str, int]) -> None:
    smaller = [words for words in fitting if words.startswith("batch_size")]
    settings = [f"{words} ({format_bytes(fitting[words])})" for words in fitting if words not in smaller[1:]]
    hint = f"These would fit: {', '.join(settings)}." if settings else "Use a smaller network or less data."
    needs = f"{format_bytes(plan.total)} for phase {phase.title!r}"
    invalid_value("train memory", f"at most the {format_bytes(allowed)} {which}", needs, f"{hint}\n{plan}")


def _check_disk(folder: Path, size: int) -> None:
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if (free := shutil.disk_usage(place).free) < size:
        hint = "Choose another folder, or keep states as torch.bfloat16."
        raise DataError(message(str(folder), f"{format_bytes(size)} on the disk", f"{format_bytes(free)} free", hint))


def _data(batches: Batches) -> int:
    """Tensors that the data keeps; of a loader only its batches are known."""
    y, x, context = batches.example()
    sample = _size((y, x, *context_tensors(context)))
    source = batches.batches if isinstance(batches, CheckedBatches) else batches
    if isinstance(source, DrawnBatches):
        return 3 * batches.samples * sample  # the first epoch, this one, and the next as it is drawn
    return sample * (batches.samples if isinstance(source, TensorBatches) else batches.batch_size)


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _device(network: nn.Module) -> torch.device | str:
    return "cpu" if (some := like(network)) is None else some.device
