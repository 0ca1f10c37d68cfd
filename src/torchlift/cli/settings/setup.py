"""A run as settings say: data, network, phases, losses, and what is added to the objective."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from torchlift.cli.settings.data import Drawing, Samples, absolute, load_samples
from torchlift.cli.settings.network import build_network, reads_context
from torchlift.cli.settings.settings import Configuration, PhaseSettings, TrainingSettings
from torchlift.cli.settings.solvers import OPTIMISERS, OPTIONS, RENAMED, SOLVERS, make_solver, options_of
from torchlift.core.checks import check_choice, check_device, check_number, check_positive, check_size
from torchlift.core.errors import TorchliftError, invalid_value
from torchlift.data import Batch, Batches
from torchlift.functions.losses import LOSSES, CrossEntropy, Loss, SquaredError
from torchlift.functions.regularisers import REGULARISERS, Regulariser
from torchlift.liftings import LIFTINGS, Conventional, Lifting
from torchlift.networks import Network
from torchlift.objective.zero_loss import clamped
from torchlift.operators.context import map_context
from torchlift.parallel import Mesh
from torchlift.training import Metric, Phase, Training, TrainOptions, evaluate, train
from torchlift.training.metrics import as_metrics
from torchlift.training.options import PhaseOptions, RunOptions
from torchlift.training.plan import PlannedPhase
from torchlift.training.starts.short_runs import start_weights
from torchlift.training.train import held_out_batches, phase_batches


def build_phases(configuration: Configuration) -> list[Phase]:
    """The phases of a run; each `[[phase]]` overrides what [training] says.

    A phase that names its lifting takes neither μ nor solver from [training],
    one that names its solver none of the solver's options, one that says how
    long it lasts neither epochs nor steps.
    """
    training = configuration.training
    if not configuration.phase:
        return [_phase(PhaseSettings(**_shared(training)), "[training]")]
    return [
        _phase(merged(training, phase), f"[[phase]] {number}")
        for number, phase in enumerate(configuration.phase, start=1)
    ]


def build_loss(settings: TrainingSettings) -> Loss | None:
    """None where `train` chooses."""
    if settings.loss is None:
        return None
    return LOSSES[check_choice("[training] loss", settings.loss, LOSSES)]()


def merged(training: TrainingSettings, phase: PhaseSettings) -> PhaseSettings:
    """A phase with what it takes from [training]."""
    dropped: set[str] = {"name"}
    if phase.lifting is not None:
        dropped |= {"mu", "solver", *OPTIONS}
    if phase.solver is not None:
        dropped |= set(OPTIONS)
    if phase.epochs is not None or phase.steps is not None:
        dropped |= {"epochs", "steps"}
    shared = _shared(training)
    missing = [name for name in shared if getattr(phase, name) is None and name not in dropped]
    return replace(phase, **{name: shared[name] for name in missing})


def _shared(training: TrainingSettings) -> dict[str, Any]:
    """What [training] says about phases."""
    return {field.name: getattr(training, field.name) for field in fields(PhaseSettings)}


def _phase(settings: PhaseSettings, section: str) -> Phase:
    solver, lifting = _solver(settings, section), _lifting(settings, section)
    if lifting is None and settings.solver in OPTIMISERS:
        lifting = Conventional()  # an optimiser of torch has no other use
    return Phase(
        lifting=lifting,
        solver=solver,
        **{field.name: getattr(settings, field.name) for field in fields(PhaseOptions)},
        states=settings.states or "forward",
        state_dtype=None if settings.state_dtype is None else getattr(torch, settings.state_dtype),
        state_storage=settings.state_storage or "memory",
    )


def _lifting(settings: PhaseSettings, section: str) -> Lifting | None:
    if settings.lifting is None:
        if settings.mu is not None:
            hint = "Name one, such as lifting = 'bregman': the default, a backward sweep, has no weight."
            invalid_value(f"{section} mu", "a lifting", "none", hint)
        return None
    kind = LIFTINGS[check_choice(f"{section} lifting", settings.lifting, LIFTINGS)]
    if settings.mu is None:
        return kind()
    if kind is Conventional:
        invalid_value(f"{section} mu", "nothing for conventional", settings.mu, "Leave it out.")
    return kind(settings.mu)


def _solver(settings: PhaseSettings, section: str) -> Any:
    name = settings.solver
    if name in RENAMED:
        invalid_value(f"{section} solver", "a name of this version", repr(name), f"It is {RENAMED[name]!r} now.")
    if name is not None:
        check_choice(f"{section} solver", name, SOLVERS)
    options = {option: value for option in OPTIONS if (value := getattr(settings, option)) is not None}
    for option, value in options.items():
        if name is None or option not in options_of(name):
            expected = "a solver to go with it" if name is None else f"nothing for {name}"
            able = ", ".join(solver for solver in SOLVERS if option in options_of(solver))
            invalid_value(f"{section} {option}", expected, value, f"It is an option of {able}.")
        if option in ("lr", "tau"):
            check_positive(f"{section} {option}", value)
        elif option in ("momentum", "weight_decay"):
            check_number(f"{section} {option}", value, minimum=0)
    return None if name is None else make_solver(name, options)


def objective_terms(settings: TrainingSettings) -> dict[str, Any]:
    """The options of `train` that change the objective."""
    states = _named("state_regularisers", settings.state_regularisers)
    layers: Any = states[""] if list(states) == [""] else {_layer(place): r for place, r in states.items()}
    parameters = _named("parameter_regularisers", settings.parameter_regularisers)
    if "" in parameters:
        hint = "Write '*: …' for all parameters."
        invalid_value("[training] parameter_regularisers", "'NAMES: REGULARISER NUMBERS'", "no names", hint)
    return {
        "coupling": settings.coupling,
        "coordinates": settings.coordinates,
        "state_regularisers": layers or None,
        "parameter_regularisers": parameters or None,
    }


def _named(key: str, texts: Sequence[str]) -> dict[str, Regulariser]:
    """{what stands before the colon: regulariser}."""
    regularisers = {}
    for text in texts:
        place, _, written = text.rpartition(":")
        name, *numbers = written.split() or [""]
        where = f"[training] {key}"
        kind = REGULARISERS[check_choice(where, name, REGULARISERS)]
        try:
            regularisers[place.strip()] = kind(*map(_number, numbers))
        except (TypeError, ValueError) as error:
            if isinstance(error, TorchliftError):
                raise
            invalid_value(where, f"{name} with its numbers", repr(text), "Such as 'l1 0.01'.")
    return regularisers


def _layer(text: str) -> int:
    if not text.isdecimal():
        hint = "Write 'l1 0.01' for all layers, or '2: l1 0.01'."
        invalid_value("[training] state_regularisers", "a layer, counted from 1", repr(text), hint)
    return int(text)


def _number(text: str) -> float:
    return int(text) if text.lstrip("-").isdecimal() else float(text)


MOST_THREADS = 1024


@dataclass(frozen=True, eq=False)
class Setup:
    """Everything that a run needs, made but not started.

    Arguments:
        configuration: what it was made from.
        samples: the data in their own shapes.
        network, phases, loss, metrics: what is trained, how, and how it is judged.
        data, validation: the data as the network takes them.
    """

    configuration: Configuration
    samples: Samples
    network: Network
    phases: list[Phase]
    loss: Loss
    metrics: tuple[Metric, ...]
    data: Batch | Drawing
    validation: Batch | None

    def train(
        self, folder: Path | None = None, *, resume: bool = False, progress: bool = True, mesh: Mesh | None = None
    ) -> Training:
        """`tl.train` with these settings, by all processes of the mesh where there is one."""
        training = self.configuration.training
        return train(
            self.network,
            self.data,
            validation=self.validation,
            loss=self.loss,
            seed=training.seed,
            metrics=training.metrics,
            folder=folder,
            resume=resume,
            progress=progress,
            options=TrainOptions(
                **{field.name: getattr(training, field.name) for field in fields(RunOptions)},
                phases=self.phases,
                mesh=mesh,
                **objective_terms(training),
            ),
        )

    def batches(self, phase: Phase) -> Batches:
        """The training data as this phase takes them."""
        return phase_batches(self.data, phase, self.configuration.training.seed, self.network)

    def planned(self, phase: Phase) -> PlannedPhase:
        """A phase with its data, as `train` makes it."""
        training = self.configuration.training
        options = TrainOptions(**objective_terms(training))
        return PlannedPhase(phase, self.network, self.batches(phase), self.loss, training.seed, options)

    def held_out(self) -> Batches | None:
        if self.validation is None:
            return None
        return held_out_batches(self.validation, self.network, self.configuration.training.seed)

    def references(self, start: Mapping[str, float]) -> dict[str, dict[str, float]]:
        """Metrics on validation data: of the input itself, where it is of the same kind, and of the first weights."""
        if self.validation is None:
            return {}
        references = {} if (values := self._of_input()) is None else {"input": values}
        return references | {"start": dict(start)}

    def start(self) -> dict[str, float]:
        """Metrics of the first weights on validation data, for a run that is resumed: it has other weights by now."""
        held_out = self.held_out()
        if held_out is None:
            return {}
        first, network = self.phases[0], copy.deepcopy(self.network)
        with torch.random.fork_rng(devices=[]):
            start_weights(replace(self.planned(first), network=network))
        return evaluate(network, held_out.ordered(1000), self.loss, self.metrics)

    @torch.no_grad()
    def _of_input(self) -> dict[str, float] | None:
        assert self.validation is not None
        y, x, _ = self.validation
        if y.shape != x.shape or not x.is_floating_point():
            return None
        means = {metric: metric.terms(y, x).double().mean(0) for metric in self.metrics}
        return {metric.name: float(metric.of_means(mean)) for metric, mean in means.items()}


def prepare(configuration: Configuration) -> Setup:
    """Data, network and phases of a configuration; nothing is trained yet."""
    training = configuration.training
    seed = check_size("[training] seed", training.seed, minimum=0)
    if seed >= 2**62:
        invalid_value("[training] seed", "a whole number below 2**62", seed)
    device = check_device("[training] device", training.device)
    phases = build_phases(configuration)
    samples = load_samples(configuration.data, getattr(torch, configuration.network.dtype), seed)
    network = build_network(configuration.network, samples, seed).to(device)
    data, validation = samples.shaped(network.in_shape, network.out_shape, reads_context(network))
    loss = build_loss(training) or (SquaredError() if samples.train.x.is_floating_point() else CrossEntropy())
    loss = clamped(network, phases[0].lifting, loss)
    y, x, context = validation or (
        data if isinstance(data, Batch) else Batch(*data(torch.Generator().manual_seed(seed)))
    )
    with torch.no_grad():
        output = network(y[:8].to(device), map_context(context, lambda tensor: tensor[:8].to(device)))
    metrics = as_metrics(training.metrics, loss, output, x[:8].to(device))
    setup = Setup(configuration, samples, network, phases, loss, metrics, data, validation)
    for phase in phases:
        setup.planned(phase).check()
    return setup


def settle(configuration: Configuration) -> Configuration:
    """The same with what depends on the machine and the current folder written out: paths and threads."""
    threads = configuration.training.threads
    if threads is not None and check_size("[training] threads", threads) > MOST_THREADS:
        invalid_value("[training] threads", f"at most {MOST_THREADS}", threads)
    return replace(
        configuration,
        data=replace(configuration.data, **absolute(configuration.data)),
        training=replace(configuration.training, threads=threads or torch.get_num_threads()),
    )
