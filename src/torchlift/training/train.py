"""`train`: a network, data, and everything else chosen well."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.data import DataLoader

from torchlift.checkpoint import Checkpoint, Checkpoints
from torchlift.checkpoint.folders import writing
from torchlift.core.checks import check_number, check_size
from torchlift.core.errors import DataError, invalid_type, invalid_value, message
from torchlift.core.solution import Result
from torchlift.data import Batches, Data, TensorBatches, as_batches
from torchlift.distributed import Mesh, as_mesh
from torchlift.liftings import Lifting
from torchlift.losses import CrossEntropy, Loss, SquaredError
from torchlift.networks import Chain, Network, lift
from torchlift.objective.partition import describe, partition
from torchlift.solvers import Solver
from torchlift.training.balance import SAMPLES, asleep
from torchlift.training.checked import CheckedBatches, check_fit
from torchlift.training.configuration import check_same, configuration
from torchlift.training.history import History
from torchlift.training.memory import check_memory
from torchlift.training.methods import Budget, Method, TorchOptimiser
from torchlift.training.metrics import Metric, as_metrics
from torchlift.training.phase import Phase, default_batch_size
from torchlift.training.progress import Progress
from torchlift.training.result import Training
from torchlift.training.resumed import check_fields
from torchlift.training.run import Callback, Place, Run, Settings
from torchlift.training.shared import SharedCheckpoints
from torchlift.training.tensorboard import TensorBoardWriter
from torchlift.training.together import Company, begin_alike
from torchlift.training.weights import initialise_weights

HISTORY = "history.jsonl"


def train(
    network: Network | nn.Sequential,
    data: Data,
    *,
    validation: Data | None = None,
    loss: Loss | None = None,
    lifting: Lifting | None = None,
    solver: Solver[Any, Any] | TorchOptimiser | Callable[..., torch.optim.Optimizer] | None = None,
    batch_size: int | Literal["full"] | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    time_limit: float | None = None,
    weights: str | None = None,
    states: str = "forward",
    state_dtype: torch.dtype | None = None,
    state_storage: str | Path = "memory",
    phases: Sequence[Phase] | None = None,
    memory_limit: float | None = None,
    seed: int = 0,
    metrics: Sequence[str | Metric | Callable] | str | None = None,
    evaluate_every: int | None = None,
    patience: int | None = None,
    tolerance: float | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: float = 60.0,
    keep: int = 2,
    tensorboard: bool = False,
    progress: bool = True,
    callback: Callback | None = None,
    mesh: str | Mesh | None = None,
) -> Training:
    """Train a network by lifting, or by back-propagation in the same loop.

    `train(network, (y, x))` is enough: batches of 100, backward sweeps with
    steps that need no learning rate (`SweepDescent`, `RelativeStep`), at least
    ten epochs and a thousand steps, the loss chosen by the targets. The network
    is changed in place and at the end holds the best parameters seen on the
    validation data, those of the start among them, or the last ones without such
    data.

    Arguments:
        network: any network; an `nn.Sequential` is lifted first, and `result.network.to_sequential()` gives it back.
        data: (y, x) or (y, x, context) tensors, a Dataset, a DataLoader, or a function of a generator that draws
            (y, x) anew for every epoch.
        validation: the same kinds; evaluated every `evaluate_every` steps.
        loss: cross-entropy for integer targets, squared error for others.
        lifting: `Bregman(μ)`, … for lifted variables of their own; `Conventional()` for back-propagation. By default
            lifted variables follow the forward pass and one backward sweep moves them.
        solver: a solver from `torchlift.solvers` or `torchlift.objective`; on batches one that needs the whole problem
            becomes the inner solver of an implicit stochastic gradient. For `Conventional()` also an optimiser of
            torch: its class, a partial, or a `TorchOptimiser`.
        batch_size: samples per step, or "full" for all of them and lifted variables that persist.
        epochs, steps, time_limit: how long; the time limit in seconds ends training in any case, and steps anneal with
            whatever is used up first.
        weights: a way of `initialise_weights` ("pass-through", "layer-wise", …); by default weights are kept, and
            layers that hardly vary with the input are woken by "balanced".
        states: where lifted variables start: "forward", "input", "random", or "warm" from the epoch before.
        state_dtype: dtype in which "warm" ones are kept, such as torch.bfloat16; computations keep that of the network.
        state_storage: where they are kept: "memory", or a folder for a memory-mapped file that may be larger than it.
        phases: several stretches one after another; the settings above are their defaults.
        memory_limit: bytes that everything may take; by default what the machine has left. See `plan_memory`.
        seed: of the order of samples and of everything drawn.
        metrics: names such as "psnr", or functions; the first one chooses the best parameters.
        evaluate_every: steps between evaluations; an epoch by default.
        patience: stop after so many evaluations without improvement.
        tolerance: stop when the loss changes by less than this share between evaluations.
        folder: keeps checkpoints and `history.jsonl` there.
        resume: go on from the last checkpoint in the folder, if there is one; the result is the same as without
            a break, bit for bit on one machine, unless a time limit steers the steps.
        checkpoint_every: seconds between checkpoints; 0 for one after every step.
        keep: number of checkpoints to keep.
        tensorboard: write events into the folder as well.
        progress: show a bar where there is a terminal.
        callback: called with each row of the history; returns True to stop.
        mesh: "data=2,layers=2" shares the work among the processes of an initialised process group: samples along
            "data", layers along "layers" (chains, and solvers of lifted variables). The result is that of one process,
            up to rounding, and is on every rank; rank 0 keeps the history, shows progress and calls `callback`. Every
            process writes its part of a checkpoint: all must see the folder. A run goes on with any mesh, or alone.

    Example:
        >>> import torchlift as tl
        >>> y = torch.rand(200, 4)
        >>> result = tl.train(tl.networks.MLP([4, 8, 1]), (y, y.sum(1, keepdim=True)), epochs=50)
        >>> result.history[-1]["loss"] < 0.05
        True
    """
    check_size("train seed", seed, minimum=0)
    company = Company(None if mesh is None else as_mesh(mesh), time.monotonic)
    chosen = _network(network, data, seed)
    default = Phase(lifting, solver, batch_size, epochs, steps, time_limit, weights, states)
    default = replace(default, state_dtype=state_dtype, state_storage=state_storage)
    stretches = _phases(phases, default)
    batches = [_batches(data, phase, seed, chosen) for phase in stretches]
    held_out = None if validation is None else _held_out(validation, chosen, seed)
    loss = _loss(loss, batches[0])
    batches = [_checked("data", chosen, loss, each) for each in batches]
    held_out = None if held_out is None else _checked("validation", chosen, loss, held_out)
    for phase in stretches:
        phase.check(chosen, loss, company.mesh)
    measures = _metrics(chosen, metrics, loss, held_out or batches[0])
    settings = Settings(
        loss, measures, _monitor(metrics, measures), held_out,
        None if evaluate_every is None else check_size("train evaluate_every", evaluate_every),
        None if patience is None else check_size("train patience", patience),
        None if tolerance is None else _not_negative("train tolerance", tolerance),
        _not_negative("train checkpoint_every", checkpoint_every), seed, callback if company.writes else None,
    )  # fmt: skip
    if patience is not None and held_out is None:
        invalid_value("train patience", "validation data to watch", "none", "Give validation=(y, x), or a tolerance.")
    for name, wanted in (("tensorboard", tensorboard), ("resume", resume)):
        if wanted and folder is None:
            invalid_value(f"train {name}", "a folder", "none", "Give folder='runs/name'.")
    check_memory(chosen, list(zip(stretches, batches, strict=True)), loss, validation=held_out, limit=memory_limit)
    settled = configuration(chosen, stretches, batches, settings)
    if company.mesh is not None:
        alike = {**settled, "folder": folder is not None, "resume": resume}
        begin_alike(company.mesh, chosen, alike, batches[0].example())
    place = None if folder is None else Path(folder)
    checkpoints = None if place is None else _checkpoints(company, place, keep, resume)
    found = None
    if place is not None and checkpoints is not None and resume and company.any(company.writes and _saved(place)):
        found = checkpoints.load()
    kept = company.write(lambda: None if place is None else _history(place, found, settled))
    history = History() if kept is None else kept
    begun = -1 if found is None else int(found.record["place"]["phase"])  # its weights are those of the checkpoint
    work = [
        (phase, each, partial(_method, chosen, phase, each, loss, seed, i == begun, company.mesh))
        for i, (phase, each) in enumerate(zip(stretches, batches, strict=True))
    ]
    rows = history.to_dicts() if found is not None else None
    events = tensorboard and company.writes
    writer = TensorBoardWriter(place / "tensorboard", rows) if events and place is not None else None
    with Progress(quiet=not (progress and company.writes)) as bar:
        for sentence in () if found is None else found.skipped:
            bar.message(sentence)
        if company.mesh is not None and company.mesh.layers > 1:
            bar.message(describe(partition(chosen, company.mesh.layers)))
        run = Run(chosen, work, settings, history, checkpoints, settled, bar, writer, company=company)
        if found is not None:
            run.resume(found)
        try:
            result, detail = run.run()
        finally:
            if writer is not None:
                writer.close()
    said = _message(result, detail, run, place, () if found is None else found.skipped)
    return Training(chosen, history, result, said, run.place.best, run.place.steps, run.place.seconds, place)


def _phases(phases: Sequence[Phase] | None, default: Phase) -> list[Phase]:
    if phases is None:
        return [default]
    if not isinstance(phases, Sequence) or not all(isinstance(phase, Phase) for phase in phases):
        invalid_type("train phases", "a sequence of Phase", phases)
    if not phases:
        invalid_value("train phases", "at least one Phase", "none")
    return [_filled(phase, default) for phase in phases]


def _filled(phase: Phase, default: Phase) -> Phase:
    """The phase, with defaults for what it leaves open; steps and epochs are two ways to say one thing."""
    blank = Phase()
    own = {name for name, value in vars(phase).items() if value != getattr(blank, name)}
    own |= {"epochs", "steps"} if own & {"epochs", "steps"} else set()
    return replace(phase, **{name: value for name, value in vars(default).items() if name not in own})


def _network(network: Any, data: Data, seed: int) -> Network:
    """The network, or the lifted form of an nn.Sequential."""
    chosen = network
    if isinstance(network, nn.Sequential) and not isinstance(network, Network):
        chosen = lift(network, tuple(as_batches(data, seed=seed).example().y.shape[1:]))
    if not isinstance(chosen, Network):
        invalid_type("train network", "a Network or an nn.Sequential", network)
    if not any(parameter.requires_grad for parameter in chosen.parameters()):
        invalid_value("train network", "parameters to train", "none that require gradients")
    return chosen


def _batches(data: Data, phase: Phase, seed: int, network: Network) -> Batches:
    read = partial(as_batches, data, seed=seed, like=network.like, where="data")
    size = phase.batch_size
    if isinstance(data, DataLoader):  # it has a batch size of its own
        batches = read()
        if phase.full:
            return TensorBatches(*next(batches.ordered(batches.samples)), seed=seed, like=network.like)
        if size not in (None, batches.batch_size):
            hint = "Leave batch_size out, or give the data set instead of the loader."
            invalid_value("train batch_size", f"{batches.batch_size}, that of the DataLoader", size, hint)
        return batches
    assert not isinstance(size, str) or phase.full  # "full" is the only word
    return read(batch_size=None if isinstance(size, str) else size or default_batch_size(read().samples))


def _held_out(validation: Data, network: Network, seed: int) -> Batches:
    return as_batches(validation, batch_size=1000, seed=seed, like=network.like, where="validation")


def _loss(loss: Loss | None, batches: Batches) -> Loss:
    if loss is None:
        return SquaredError() if batches.example().x.is_floating_point() else CrossEntropy()
    if not isinstance(loss, Loss):
        invalid_type("train loss", "a loss such as SquaredError()", loss)
    return loss


def _checked(where: str, network: Network, loss: Loss, batches: Batches) -> Batches:
    """Data that fit the network and the loss: all of it now, or each batch when it is drawn."""
    if isinstance(batches, TensorBatches):
        check_fit(f"train {where}", network, loss, batches.all)
        return batches
    check_fit(f"train {where}", network, loss, batches.example())
    return CheckedBatches(batches, network, loss, f"train {where}")


@torch.no_grad()
def _metrics(network: Network, metrics: Any, loss: Loss, batches: Batches) -> tuple[Metric, ...]:
    y, x, context = next(batches.ordered(8))
    return as_metrics(metrics, loss, network(y, context), x)


def _monitor(given: Any, metrics: tuple[Metric, ...]) -> Metric:
    """The first one that was asked for; else the first that is not the loss, if any."""
    first = given if isinstance(given, str) else given[0] if given else None
    return metrics[0] if first == "loss" or len(metrics) == 1 else metrics[1]


def _not_negative(where: str, value: object) -> float:
    number = check_number(where, value)
    return number if number >= 0 else invalid_value(where, "a number >= 0", value)


def _method(
    network: Network,
    phase: Phase,
    batches: Batches,
    loss: Loss,
    seed: int,
    resumed: bool,
    mesh: Mesh | None,
    budget: Budget,
) -> Method:
    """The weights as the phase wants them, and its solver at work."""
    if not resumed:
        start_weights(network, phase, batches, loss, seed)
    return phase.method(phase.objective(network, loss), batches, budget, seed, mesh)


def start_weights(network: Network, phase: Phase, batches: Batches, loss: Loss, seed: int) -> None:
    """Weights as the phase wants them; by default as they are, with sleeping layers woken."""
    if phase.weights == "keep":
        return
    if phase.weights is None:
        _wake(network, phase, batches)
        return
    assert isinstance(network, Chain)  # since `Phase.check`
    y, x, _ = next(batches.ordered(batches.samples))
    initialise_weights(network, phase.weights, (y, x), generator=torch.Generator().manual_seed(seed))


def _wake(network: Network, phase: Phase, batches: Batches) -> None:
    """Balance a chain with layers that hardly vary with the input; back-propagation starts where it is told to."""
    hard = phase.lifting is not None and phase.lifting.hard
    frozen = not all(parameter.requires_grad for parameter in network.parameters())
    if hard or frozen or not isinstance(network, Chain) or batches.samples < 2:
        return
    y, _, context = next(batches.ordered(SAMPLES))
    if asleep(network, y, context):
        initialise_weights(network, "balanced", y)


def _checkpoints(company: Company, folder: Path, keep: int, resume: bool) -> Checkpoints | SharedCheckpoints:
    """Where checkpoints go; a new run needs a folder without another one's records."""
    place = folder / "checkpoints"
    own = Checkpoints(place, keep=keep) if company.mesh is None else SharedCheckpoints(place, company.mesh, keep=keep)
    company.write(lambda: _claim(own, folder, resume))
    return own


def _claim(checkpoints: Checkpoints | SharedCheckpoints, folder: Path, resume: bool) -> None:
    checkpoints.claim()
    path = folder / HISTORY
    if not resume and (_saved(folder) or (path.exists() and path.stat().st_size)):
        hint = "Go on with it by resume=True, or choose another folder."
        raise DataError(message(f"train folder {folder}", "none of another run", "one with records in it", hint))


def _saved(folder: Path) -> bool:
    return any((folder / "checkpoints").glob("step-*"))


def _history(folder: Path, found: Checkpoint | None, settled: Mapping[str, Any]) -> History:
    """The rows up to the checkpoint, once it is known to be one of the same run."""
    if found is not None:
        check_fields(found.path, found.record, {"place": {}, "numbers": {}, "configuration": {}})
        check_fields(found.path, found.record["place"], vars(Place()))
        check_same(found.record["configuration"], settled, folder)
    rows, path = 0 if found is None else int(found.record["place"]["rows"]), folder / HISTORY
    with writing(path):
        return History.resume(path, rows) if rows or path.exists() else History(path)


def _message(result: Result, detail: str, run: Run, folder: Path | None, skipped: Sequence[str]) -> str:
    place = run.place
    said = f"{result.value.removesuffix('.')}, {detail} ({place.seconds:.1f} s)."
    if result is Result.MAX_STEPS:
        said = f"Trained {place.steps} steps in {place.seconds:.1f} s."
    elif result is Result.CONVERGED:
        said = f"Nothing improved any more {detail} ({place.seconds:.1f} s)."
    best = place.best
    if best and math.isfinite(best["value"]):
        unit = f" {best['unit']}" if best["unit"] else ""
        said += f" Best {best['metric']}: {best['value']:.4g}{unit} at step {best['step']}."
    if result is Result.INTERRUPTED and folder is not None:
        said += f" To go on, call train with folder={str(folder)!r} and resume=True."
    return " ".join([said, *(f"A checkpoint was left out: {sentence}" for sentence in skipped)])
