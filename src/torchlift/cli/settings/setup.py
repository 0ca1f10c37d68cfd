"""A configuration turned into what `train` takes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch

from torchlift.cli.settings.data import Drawing, Samples, absolute, load_samples
from torchlift.cli.settings.network import build_network, reads_context
from torchlift.cli.settings.settings import Configuration
from torchlift.cli.settings.training import build_loss, build_phases, objective_terms
from torchlift.core.checks import check_device, check_size
from torchlift.core.errors import invalid_value
from torchlift.data import Batch, Batches, as_batches
from torchlift.functions.losses import CrossEntropy, Loss, SquaredError
from torchlift.networks import Network
from torchlift.objective.clamp import clamped
from torchlift.operators.context import map_context
from torchlift.parallel import Mesh
from torchlift.training import Metric, Phase, Training, TrainOptions, evaluate, train
from torchlift.training.metrics import as_metrics
from torchlift.training.options import RunOptions
from torchlift.training.phase import default_batch_size
from torchlift.training.plan import PlannedPhase
from torchlift.training.starts.short_runs import start_weights

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

        def read(size: int | None) -> Batches:
            return as_batches(self.data, batch_size=size, seed=self.configuration.training.seed, like=self.network.like)

        if isinstance(phase.batch_size, str):
            return read(None)
        return read(phase.batch_size or default_batch_size(read(None).samples, self.network))

    def planned(self, phase: Phase) -> PlannedPhase:
        """A phase with its data, as `train` makes it."""
        training = self.configuration.training
        options = TrainOptions(**objective_terms(training))
        return PlannedPhase(phase, self.network, self.batches(phase), self.loss, training.seed, options)

    def held_out(self) -> Batches | None:
        if self.validation is None:
            return None
        return as_batches(self.validation, batch_size=1000, like=self.network.like, where="validation")

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
