"""`train`: a network, data, and everything else chosen well."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from torchlift.checkpoint import Checkpoints
from torchlift.core.checks import check_number, check_size
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.core.solution import Result
from torchlift.data import Batches, Data, TensorBatches, as_batches
from torchlift.liftings import Lifting
from torchlift.losses import CrossEntropy, Loss, SquaredError
from torchlift.networks import Chain, Network, lift
from torchlift.solvers import Solver
from torchlift.training.history import History
from torchlift.training.methods import Budget, Method, TorchOptimiser
from torchlift.training.metrics import Metric, as_metrics
from torchlift.training.phase import Phase, default_batch_size
from torchlift.training.progress import Progress
from torchlift.training.result import Training
from torchlift.training.run import Callback, Run, Settings
from torchlift.training.tensorboard import TensorBoardWriter
from torchlift.training.weights import initialise_weights


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
    phases: Sequence[Phase] | None = None,
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
) -> Training:
    """Train a network by lifting, or by back-propagation in the same loop.

    `train(network, (y, x))` is enough: batches of 100, backward sweeps with
    steps that need no learning rate (`SweepDescent`, `RelativeStep`), at least
    ten epochs and a thousand steps, the loss chosen by the targets. The network
    is changed in place and at the end holds the best parameters seen on the
    validation data, or the last ones without such data.

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
        phases: several stretches one after another; the settings above are their defaults.
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

    Example:
        >>> import torchlift as tl
        >>> y = torch.rand(200, 4)
        >>> result = tl.train(tl.networks.MLP([4, 8, 1]), (y, y.sum(1, keepdim=True)), epochs=50)
        >>> result.history[-1]["loss"] < 0.05
        True
    """
    chosen = lift(network) if isinstance(network, nn.Sequential) and not isinstance(network, Network) else network
    if not isinstance(chosen, Network):
        invalid_type("train network", "a Network or an nn.Sequential", network)
    if not any(parameter.requires_grad for parameter in chosen.parameters()):
        invalid_value("train network", "parameters to train", "none that require gradients")
    check_size("train seed", seed, minimum=0)
    default = Phase(lifting, solver, batch_size, epochs, steps, time_limit, weights, states)
    stretches = _phases(phases, default)
    batches = [_batches(data, phase, seed, chosen, "data") for phase in stretches]
    held_out = None if validation is None else _held_out(validation, chosen, seed)
    loss = _loss(loss, batches[0])
    _check_targets(chosen, loss, [("data", batches[0]), *([] if held_out is None else [("validation", held_out)])])
    settings = Settings(
        loss, _metrics(chosen, metrics, loss, held_out or batches[0]), held_out,
        None if evaluate_every is None else check_size("train evaluate_every", evaluate_every),
        None if patience is None else check_size("train patience", patience),
        None if tolerance is None else check_number("train tolerance", tolerance),
        check_number("train checkpoint_every", checkpoint_every), seed, callback,
    )  # fmt: skip
    if patience is not None and held_out is None:
        invalid_value("train patience", "validation data to watch", "none", "Give validation=(y, x), or a tolerance.")
    configuration = _configuration(chosen, stretches, batches, loss, seed)
    place = None if folder is None else Path(folder)
    checkpoints = None if place is None else Checkpoints(place / "checkpoints", keep=keep)
    if checkpoints is not None:
        checkpoints.claim()
    if tensorboard and place is None:
        invalid_value("train tensorboard", "a folder for its events", "none", "Give folder='runs/name'.")
    found = checkpoints.load() if checkpoints is not None and resume and checkpoints.steps() else None
    if found is not None:
        _check_same(found.record["configuration"], configuration, place)
    history = _history(place, None if found is None else int(found.record["place"]["rows"]))
    begun = -1 if found is None else int(found.record["place"]["phase"])  # its weights are those of the checkpoint
    work = [
        (phase, each, partial(_method, chosen, phase, each, loss, seed, i == begun))
        for i, (phase, each) in enumerate(zip(stretches, batches, strict=True))
    ]
    rows = history.to_dicts() if found is not None else None
    writer = TensorBoardWriter(place / "tensorboard", rows) if tensorboard and place is not None else None
    with Progress(quiet=not progress) as bar:
        for sentence in () if found is None else found.skipped:
            bar.message(sentence)
        run = Run(chosen, work, settings, history, checkpoints, configuration, bar, writer)
        if found is not None:
            run.resume(found)
        try:
            result, detail = run.run()
        finally:
            if writer is not None:
                writer.close()
    message = _message(result, detail, run, place)
    return Training(chosen, history, result, message, run.place.best, run.place.steps, run.place.seconds, place)


def _phases(phases: Sequence[Phase] | None, default: Phase) -> list[Phase]:
    if phases is None:
        return [default]
    if not isinstance(phases, Sequence) or not all(isinstance(phase, Phase) for phase in phases):
        invalid_type("train phases", "a sequence of Phase", phases)
    if not phases:
        invalid_value("train phases", "at least one Phase", "none")
    blank = Phase()
    shared = {name: value for name, value in vars(default).items() if value != getattr(blank, name)}
    return [
        replace(
            phase, **{name: value for name, value in shared.items() if getattr(phase, name) == getattr(blank, name)}
        )
        for phase in phases
    ]


def _batches(data: Data, phase: Phase, seed: int, network: Network, where: str) -> Batches:
    size = None if phase.full else phase.batch_size
    assert not isinstance(size, str)  # "full" is the only word
    if phase.batch_size is None:
        whole = as_batches(data, batch_size=None, seed=seed, like=network.like, where=where)
        size = default_batch_size(whole.samples)
    return as_batches(data, batch_size=size, seed=seed, like=network.like, where=where)


def _held_out(validation: Data, network: Network, seed: int) -> Batches:
    return as_batches(validation, batch_size=1000, seed=seed, like=network.like, where="validation")


def _loss(loss: Loss | None, batches: Batches) -> Loss:
    if loss is None:
        return SquaredError() if batches.example().x.is_floating_point() else CrossEntropy()
    if not isinstance(loss, Loss):
        invalid_type("train loss", "a loss such as SquaredError()", loss)
    return loss


@torch.no_grad()
def _check_targets(network: Network, loss: Loss, sets: Sequence[tuple[str, Batches]]) -> None:
    """Inputs, targets and network fit, and every label is one, before anything is changed."""
    for name, batches in sets:
        y, _, context = batches.example()
        shape = network(y, context).shape[1:]
        for part in batches.ordered() if isinstance(batches, TensorBatches) else (batches.example(),):
            try:
                loss.check((len(part.y), *shape), part.x)
            except (ValueError, TypeError) as error:
                raise type(error)(f"train {name}: {error}") from None


@torch.no_grad()
def _metrics(network: Network, metrics: Any, loss: Loss, batches: Batches) -> tuple[Metric, ...]:
    y, x, context = next(batches.ordered(8))
    return as_metrics(metrics, loss, network(y, context), x)


def _method(
    network: Network, phase: Phase, batches: Batches, loss: Loss, seed: int, resumed: bool, budget: Budget
) -> Method:
    """The weights as the phase wants them, and its solver at work."""
    if not resumed:
        start_weights(network, phase, batches, loss, seed)
    return phase.method(phase.objective(network, loss), batches, budget, seed)


def start_weights(network: Network, phase: Phase, batches: Batches, loss: Loss, seed: int) -> None:
    """Weights as the phase wants them."""
    if phase.weights in (None, "keep"):
        return
    if not isinstance(network, Chain):
        hint = "LISTA and PrimalDual start at their own algorithms: leave `weights` out."
        invalid_value(f"train weights={phase.weights!r}", "a chain of layers", type(network).__name__, hint)
    y, x, _ = next(batches.ordered(batches.samples))
    initialise_weights(network, phase.weights, (y, x), generator=torch.Generator().manual_seed(seed))


def _history(folder: Path | None, rows: int | None) -> History:
    if folder is None:
        return History()
    path = folder / "history.jsonl"
    return History(path) if rows is None else History.resume(path, rows)


def _configuration(
    network: Network, phases: Sequence[Phase], batches: Sequence[Batches], loss: Loss, seed: int
) -> dict[str, Any]:
    """What must agree for a checkpoint to be continued."""
    return {
        "network": type(network).__name__,
        "parameters": {name: list(p.shape) for name, p in network.named_parameters()},
        "dtype": str(network.like.dtype) if network.like is not None else None,
        "loss": repr(loss),
        "phases": [{name: _text(value) for name, value in vars(phase).items()} for phase in phases],
        "samples": batches[0].samples,
        "batch sizes": [each.batch_size for each in batches],
        "seed": seed,
    }


def _text(value: object) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def _check_same(saved: Mapping[str, Any], now: Mapping[str, Any], folder: Path | None) -> None:
    for name, value in now.items():
        if saved.get(name) != value:
            hint = f"Resume with the settings of the first call, or choose another folder than {folder}."
            invalid_value(f"resumed run: {name}", str(saved.get(name)), str(value), hint)


def _message(result: Result, detail: str, run: Run, folder: Path | None) -> str:
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
    return said
