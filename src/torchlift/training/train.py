"""`train`: a network, data, and everything else chosen well."""

from __future__ import annotations

import gc
import inspect
import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader

from torchlift.core.checks import check_instance, check_size
from torchlift.core.errors import DataError, invalid_type, invalid_value, message
from torchlift.core.progress import Progress
from torchlift.core.solution import Result
from torchlift.data import Batches, Data, TensorBatches, as_batches, hold_out, scale_warning
from torchlift.functions.losses import Criterion, CrossEntropy, Loss, LossLike, SquaredError, as_loss
from torchlift.io import Checkpoint, Checkpoints
from torchlift.io.folders import writing
from torchlift.liftings import Lifting
from torchlift.networks import Network
from torchlift.objective.zero_loss import clamped
from torchlift.parallel import Mesh, as_mesh, begin_alike, on_first, open_checkpoints
from torchlift.training.configuration import check_same, configuration
from torchlift.training.history import History
from torchlift.training.memory import check_memory
from torchlift.training.methods import SolverLike
from torchlift.training.metrics import Metric, as_metrics
from torchlift.training.modules import CheckedBatches, check_fit, example_output, like
from torchlift.training.options import TrainOptions
from torchlift.training.phase import Phase, default_batch_size
from torchlift.training.plan import PlannedPhase
from torchlift.training.reach import reach_warning
from torchlift.training.result import N, Training, TrainingInterrupted
from torchlift.training.resumed import check_fields
from torchlift.training.run import Callback, Run, Settings, TrainState
from torchlift.training.tensorboard import TensorBoardWriter

HISTORY = "history.jsonl"

#: Outputs whose sums over the classes differ by no more than this from 1 are probabilities.
PROBABILITY = 1e-4


def train(
    network: N,
    data: Data,
    *,
    validation: Data | float | None = None,
    loss: LossLike | None = None,
    lifting: Lifting | None = None,
    solver: SolverLike | None = None,
    batch_size: int | Literal["full"] | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    time_limit: float | None = None,
    weights: str | None = None,
    seed: int = 0,
    metrics: Sequence[str | Metric | Callable] | str | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    callback: Callback | None = None,
    options: TrainOptions | None = None,
) -> Training[N]:
    """Train a network by lifting, or by back-propagation in the same loop.

    `train(network, (inputs, targets))` is enough: batches of 100, backward sweeps
    with steps that need no learning rate (`sweeping`, `RelativeStep`), at least
    ten epochs and a thousand steps, the loss chosen by the targets. The network
    is changed in place and at the end holds the best parameters seen on the
    validation data, those of the start among them, or the last ones without such
    data.

    Arguments:
        network: any `nn.Module`; solvers of lifted variables need one in the unified form, from `torchlift.networks`
            or `lift`.
        data: (inputs, targets) or (inputs, targets, context) as tensors or arrays, a data set, a DataLoader, or a
            function of a generator that draws them anew for every epoch.
        validation: the same kinds, evaluated every epoch; or a share of the data, such as 0.1, to be held out from it.
        loss: one of `torchlift.losses`, one of torch such as `nn.MSELoss()`, or a function of predictions and
            targets. By default cross-entropy for integer targets, squared error for others.
        lifting: `Bregman(μ)`, … for lifted variables of their own; `Conventional()` for back-propagation. By default
            lifted variables follow the forward pass and one backward sweep moves them.
        solver: an optimiser of torch (its class or a partial) for sweeps or back-propagation; a solver from
            `torchlift.solvers` for lifted variables, which on batches becomes the inner one of an implicit stochastic
            gradient; or a `TrainMethod` of one's own.
        batch_size: samples per step, or "full" for all of them, with lifted variables that persist where there are any.
        epochs, steps, time_limit: how long; the time limit in seconds ends training in any case, and steps anneal with
            whatever is used up first.
        weights: a method of `initialise_weights` ("identity", "layer-wise", …). By default three or more dense layers
            of a classifier, as torch draws them, are rescaled (LSUV); others are kept if no layer is dead, and else,
            or where the input itself is a better answer, compared with other starts on samples held out from the
            data, for about a tenth of the budget; `result.message` says which was chosen. "keep" leaves all as it is.
        seed: of the order of samples and of everything drawn.
        metrics: names such as "psnr", or functions; the first one chooses the best parameters.
        folder: keeps checkpoints and `history.jsonl` there.
        resume: go on from the last checkpoint in the folder, if there is one; the result is the same as without a
            break, bit for bit on one machine, unless a time limit steers the steps. With more epochs, steps or time
            than before the run is made longer.
        progress: show a bar where there is a terminal.
        callback: called with each row of the history; returns True to stop.
        options: all else, see `TrainOptions`: phases, patience, lifted variables, regularisers, checkpoints, meshes.

    Raises:
        TrainingInterrupted: a `KeyboardInterrupt` after Ctrl-C, once everything is saved; its `result` is what would
            have been returned. SIGTERM saves as well, and then ends the process.

    Example:
        >>> import torchlift as tl
        >>> y = torch.rand(200, 4)
        >>> result = tl.train(tl.networks.MLP([4, 8, 1]), (y, y.sum(1, keepdim=True)), epochs=50)
        >>> result.history[-1]["loss"] < 0.05
        True
    """
    options = _options(options)
    check_size("train seed", seed, minimum=0)
    for name, flag in (("resume", resume), ("progress", progress)):
        check_instance(f"train {name}", flag, bool, "True or False")
    _check_network(network)
    _check_callback(callback)
    mesh = as_mesh(options.mesh)
    default = Phase(
        lifting, solver, batch_size=batch_size, epochs=epochs, steps=steps, time_limit=time_limit, weights=weights,
        states=options.states,
    )  # fmt: skip
    default = replace(default, state_dtype=options.state_dtype, state_storage=options.state_storage)
    phases = _phases(options.phases, default)
    if isinstance(validation, (int, float)):
        data, validation = hold_out(data, validation, seed=seed, like=like(network))
    batches = [phase_batches(data, phase, seed, network) for phase in phases]
    held_out = None if validation is None else held_out_batches(validation, network, seed)
    loss = _loss(network, phases, loss, batches[0])
    batches = [_checked("data", network, loss, source) for source in batches]
    held_out = None if held_out is None else _checked("validation", network, loss, held_out)
    planned = [
        PlannedPhase(phase, network, source, loss, seed, options, mesh)
        for phase, source in zip(phases, batches, strict=True)
    ]
    for phase in planned:
        phase.check()
    example = next((held_out or batches[0]).ordered(8))
    output = example_output("train", network, example)
    measures = as_metrics(metrics, loss, output, example.x)
    reporter = callback if mesh.first else None
    settings = Settings(loss, measures, _monitor(metrics, measures), held_out, options, seed, reporter)
    if options.patience is not None and held_out is None:
        hint = "Give validation=(inputs, targets) or a share such as 0.1, or a tolerance."
        invalid_value("train patience", "validation data to watch", "none", hint)
    for name, asked in (("tensorboard", options.tensorboard), ("resume", resume)):
        if asked and folder is None:
            invalid_value(f"train {name}", "a folder", "none", "Give folder='runs/name'.")
    _warn_of_data(network, batches[0], loss, mesh)
    _warn_of_probabilities(output, loss, mesh)
    check_memory(planned, validation=held_out, limit=options.memory_limit)
    config = configuration(network, phases, batches, settings, options)
    alike = {**config, "folder": folder is not None, "resume": resume}
    begin_alike(mesh, network, alike, batches[0].example())
    run_folder = None if folder is None else Path(os.path.expanduser(folder))
    checkpoints = None if run_folder is None else _checkpoints(mesh, run_folder, options.keep, resume)
    checkpoint = None
    if run_folder is not None and checkpoints is not None and resume and mesh.any(mesh.first and _saved(run_folder)):
        checkpoint = checkpoints.load()
    history = on_first(mesh, lambda: History() if run_folder is None else _history(run_folder, checkpoint, config))
    history = History() if history is None else history
    rows = history.to_dicts() if checkpoint is not None else None
    events = options.tensorboard and mesh.first
    writer = TensorBoardWriter(run_folder / "tensorboard", rows) if events and run_folder is not None else None
    with Progress(quiet=not (progress and mesh.first)) as bar:
        for sentence in () if checkpoint is None else checkpoint.skipped:
            bar.message(sentence)
        for phase in planned:
            if layout := phase.layout():
                bar.message(layout)
        run = Run(planned, settings, history, checkpoints, config, bar, writer, time.monotonic, mesh)
        if checkpoint is not None:
            run.resume(checkpoint)
        try:
            result, detail = run.run()
        finally:
            if writer is not None:
                writer.close()
            if mesh.devices is not None:
                gc.collect()  # torch imports much in the first step, whose cycles keep frames: process groups must go
    text = _message(result, detail, run, run_folder, () if checkpoint is None else checkpoint.skipped)
    state = run.state
    training = Training(
        network, history, result, text, state.best, state.steps, state.seconds, run_folder, run.start_metrics
    )
    if result is Result.INTERRUPTED:
        run.pass_on_signal()
        raise TrainingInterrupted(training)
    return training


def _options(options: object) -> TrainOptions:
    if options is None:
        return TrainOptions()
    hint = "Try options=TrainOptions(patience=5)."
    return check_instance("train options", options, TrainOptions, "TrainOptions(...)", hint)


def _check_network(network: object) -> None:
    network = check_instance("train network", network, nn.Module, "an nn.Module")
    if isinstance(network, torch.jit.ScriptModule):
        hint = "Train the module that it was made of, and script that afterwards."
        invalid_type("train network", "a module whose layers can be looked at", network, hint)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        invalid_value("train network", "parameters to train", "none that require gradients")
    for name, parameter in network.named_parameters():
        _check_parameter(name, parameter)


def _check_parameter(name: str, parameter: nn.Parameter) -> None:
    """Refuse one that no step can start from."""
    if is_lazy(parameter):  # has no numbers before it has seen data
        return
    if parameter.is_meta:
        hint = "Make the module on a device with memory, or call its to_empty(device='cpu') and initialise it."
        invalid_value(f"train network {name!r}", "a parameter with numbers", "one on the device meta", hint)
    if parameter.requires_grad and not bool(parameter.detach().isfinite().all()):
        hint = "Did an earlier training diverge? Begin from fresh weights."
        invalid_value(f"train network {name!r}", "finite numbers", "some that are not", hint)


def _check_callback(callback: object) -> None:
    """A function of one row; a wrong one would only fail at the first evaluation."""
    if callback is None:
        return
    if not callable(callback):
        invalid_type("train callback", "a function of one row of the history", callback)
    try:
        signature = inspect.signature(callback)
    except (TypeError, ValueError):  # some that are written in C tell nothing
        return
    try:
        signature.bind({})
    except TypeError as error:
        hint = "It is called with one dictionary, such as {'step': 10, 'loss': 0.1, …}."
        invalid_value("train callback", "a function of one row of the history", str(error), hint)


def _warn_of_data(network: nn.Module, batches: Batches, loss: Loss, mesh: Mesh) -> None:
    """Warnings about data on a scale that cannot work, and about targets that the last activation does not return."""
    if not mesh.first:
        return
    batch = batches.all if isinstance(batches, TensorBatches) else batches.batch(0)
    sentences = [scale_warning(batch, "train data")]
    if not isinstance(loss, Criterion):  # criteria may mean something else by outputs and targets
        sentences.append(reach_warning(network, batch))
    for sentence in filter(None, sentences):
        warnings.warn(sentence, stacklevel=4)  # past `check_calls`, where the user's own line is


def _warn_of_probabilities(output: Tensor, loss: Loss, mesh: Mesh) -> None:
    """Cross-entropy takes the softmax itself: of probabilities it would be taken twice, which trains badly."""
    if not mesh.first or not isinstance(loss, CrossEntropy):
        return
    if bool((output >= 0).all()) and bool(((output.sum(1) - 1).abs() < PROBABILITY).all()):
        hint = "Leave the softmax at its end away, or put a LogSoftmax in its place."
        expected, got = "logits, whose softmax the loss takes itself", "probabilities, which sum to 1"
        warnings.warn(message("train network", expected, got, hint), stacklevel=4)


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
    given = {name for name, value in vars(phase).items() if value != getattr(blank, name)}
    given |= {"epochs", "steps"} if given & {"epochs", "steps"} else set()
    return replace(phase, **{name: value for name, value in vars(default).items() if name not in given})


def phase_batches(data: Data, phase: Phase, seed: int, network: nn.Module) -> Batches:
    """The training data as a phase takes them."""
    read = partial(as_batches, data, seed=seed, like=like(network), where="data")
    size = phase.batch_size
    if isinstance(data, DataLoader):  # it has a batch size of its own
        batches = read()
        if phase.full:
            return TensorBatches(*next(batches.ordered(batches.samples)), seed=seed, like=like(network))
        if size not in (None, batches.batch_size):
            hint = "Leave batch_size out, or give the data set instead of the loader."
            invalid_value("train batch_size", f"{batches.batch_size}, that of the DataLoader", size, hint)
        return batches
    if size is None or isinstance(size, str):  # "full" is the only word
        whole = read()
        if phase.full or not whole.sized:
            return whole
        size = default_batch_size(whole.samples, network)
    return read(batch_size=size)


def held_out_batches(validation: Data, network: nn.Module, seed: int) -> Batches:
    """The validation data, for evaluations."""
    return as_batches(validation, batch_size=1000, seed=seed, like=like(network), where="validation")


def _loss(network: nn.Module, phases: Sequence[Phase], loss: LossLike | None, batches: Batches) -> Loss:
    targets = batches.example().x
    if loss is None:
        loss = SquaredError() if targets.is_floating_point() else nn.CrossEntropyLoss()
    loss = as_loss("train loss", loss, targets)
    return clamped(network, phases[0].lifting, loss) if isinstance(network, Network) else loss


def _checked(where: str, network: nn.Module, loss: Loss, batches: Batches) -> Batches:
    """Data that fit the network and the loss: all of it now, or each batch when it is drawn."""
    if isinstance(batches, TensorBatches):
        check_fit(f"train {where}", network, loss, batches.all)
        return batches
    check_fit(f"train {where}", network, loss, batches.example())
    return CheckedBatches(batches, network, loss, f"train {where}")


def _monitor(given: Any, metrics: tuple[Metric, ...]) -> Metric:
    """The first one that was asked for; else the first that is not the loss, if any."""
    first = given if isinstance(given, str) else given[0] if given else None
    return metrics[0] if first == "loss" or len(metrics) == 1 else metrics[1]


def _checkpoints(mesh: Mesh, folder: Path, keep: int, resume: bool) -> Checkpoints:
    """Where checkpoints go; a new run needs a folder without another one's records."""
    checkpoints = open_checkpoints(folder / "checkpoints", mesh, keep=keep)
    on_first(mesh, lambda: _claim(checkpoints, folder, resume))
    return checkpoints


def _claim(checkpoints: Checkpoints, folder: Path, resume: bool) -> None:
    checkpoints.claim()
    path = folder / HISTORY
    if not resume and (_saved(folder) or (path.exists() and path.stat().st_size)):
        hint = "Go on with it by resume=True, or choose another folder."
        raise DataError(message(f"train folder {folder}", "none of another run", "one with records in it", hint))


def _saved(folder: Path) -> bool:
    return any((folder / "checkpoints").glob("step-*"))


def _history(folder: Path, checkpoint: Checkpoint | None, config: Mapping[str, Any]) -> History:
    """The rows up to the checkpoint, once it is known to be one of the same run."""
    if checkpoint is not None:
        check_fields(checkpoint.path, checkpoint.record, {"state": {}, "numbers": {}, "configuration": {}})
        check_fields(checkpoint.path, checkpoint.record["state"], vars(TrainState()))
        check_same(checkpoint.record["configuration"], config, folder)
    rows, path = 0 if checkpoint is None else int(checkpoint.record["state"]["rows"]), folder / HISTORY
    with writing(path):
        return History.resume(path, rows) if rows or path.exists() else History(path)


def _message(result: Result, detail: str, run: Run, folder: Path | None, skipped: Sequence[str]) -> str:
    state = run.state
    text = f"{result.value.removesuffix('.')}, {detail} ({state.seconds:.1f} s)."
    if result is Result.MAX_STEPS:
        text = f"Trained {state.steps} steps in {state.seconds:.1f} s."
    elif result is Result.CONVERGED:
        text = f"Nothing improved any more {detail} ({state.seconds:.1f} s)."
    if run.unmoved and state.steps > run.began and not result.failed:
        text = f"No parameter changed in {state.steps} steps ({state.seconds:.1f} s): the method refused every step, "
        text += "or its steps are zero. Try another solver, or leave it out."
    best = state.best
    if best and math.isfinite(best["value"]):
        unit = f" {best['unit']}" if best["unit"] else ""
        text += f" Best {best['metric']}: {best['value']:.4g}{unit} at step {best['step']}."
    elif (losses := [row["loss"] for row in run.history if row["loss"] is not None]) and math.isfinite(losses[-1]):
        text += f" Last loss: {losses[-1]:.4g}."
    text += "".join(f" {sentence}" for sentence in (state.start, run.fallback) if sentence)
    if result is Result.INTERRUPTED and folder is not None:
        text += f" To go on, call train with folder={str(folder)!r} and resume=True."
    return " ".join([text, *(f"A checkpoint was left out: {sentence}" for sentence in skipped)])
