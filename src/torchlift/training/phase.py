"""One stretch of training: which lifting, which solver, how long."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from torchlift.core.checks import check_choice, check_positive, check_size
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.data import Batches
from torchlift.functions.losses import Loss
from torchlift.liftings import Lifting
from torchlift.networks import Network
from torchlift.objective.latent_cache import check_state_dtype
from torchlift.parallel import Mesh
from torchlift.training.methods import SolverLike, as_method
from torchlift.training.modules import like
from torchlift.training.options import PhaseOptions, TrainOptions
from torchlift.training.starts.initialise import ALIASES, METHODS, check_initialises
from torchlift.training.step import Budget, LatentSettings, TrainMethod, TrainStep, Work, unlimited

#: Steps that a run takes at least when nothing is said about its length.
LEAST_STEPS = 1000
#: Epochs that a run takes at least when nothing is said about its length.
LEAST_EPOCHS = 10
#: Default batch size, and the least with batch norms, to whose statistics two or three samples are noise.
BATCH, NORMALISED = 100, 16

STATES = ("forward", "input", "random", "warm")


@dataclass(frozen=True)
class Phase(PhaseOptions):
    """A stretch of training. What is None is chosen: see `train`.

    Arguments:
        lifting: what it costs when z ≠ σ(W u + b).
        solver: a solver, an optimiser of torch (a class or a partial), or a `TrainMethod`.
        batch_size: samples per step, or "full".
        epochs, steps: how long; at most one of them.
        time_limit: seconds after which the phase ends in any case.
        weights: how the weights start: None chooses, in the first phase, see `train`; "keep" leaves them alone;
            otherwise a method of `initialise_weights`.
        states: where lifted variables start: "forward", "input" or "random"; "warm" keeps those of
            the epoch before and begins with a forward pass.
        name: in records and progress bars.
        state_dtype: dtype in which "warm" lifted variables are kept, such as torch.bfloat16.
        state_storage: where they are kept: "memory", or a folder for a memory-mapped file.
    """

    lifting: Lifting | None = None
    solver: SolverLike | None = None
    states: str = field(default="forward", kw_only=True)
    state_dtype: torch.dtype | None = field(default=None, kw_only=True)
    state_storage: str | Path = field(default="memory", kw_only=True)

    def __post_init__(self) -> None:
        if self.lifting is not None and not isinstance(self.lifting, Lifting):
            invalid_type("train lifting", "a lifting such as Bregman()", self.lifting)
        as_method(self.lifting, self.solver)
        if isinstance(self.batch_size, str):
            if self.batch_size != "full":
                invalid_value("train batch_size", "a whole number or 'full'", repr(self.batch_size))
        elif self.batch_size is not None:
            check_size("train batch_size", self.batch_size)
        if self.epochs is not None and self.steps is not None:
            invalid_value("train", "epochs or steps", "both", "Leave one of them out.")
        for name in ("epochs", "steps"):
            if getattr(self, name) is not None:
                check_size(f"train {name}", getattr(self, name))
        if self.time_limit is not None:
            check_positive("train time_limit", self.time_limit)
        check_choice("train states", self.states, STATES)
        if self.weights is not None:
            check_choice("train weights", self.weights, ("keep", *METHODS, *ALIASES))
        if self.state_dtype is not None:
            check_state_dtype("train state_dtype", self.state_dtype)
        if not isinstance(self.state_storage, str | Path):
            invalid_type("train state_storage", "'memory' or a folder", self.state_storage)

    @property
    def title(self) -> str:
        """The name, or the method and its lifting."""
        if self.name is not None:
            return self.name
        method = self.method
        return method.title if self.lifting is None else f"{type(self.lifting).__name__}, {method.title}"

    @property
    def full(self) -> bool:
        return self.batch_size == "full"

    @property
    def method(self) -> TrainMethod:
        """The method that is meant."""
        return self._resolved()[0]

    def total_steps(self, per_epoch: int | None) -> int | None:
        """None where only time ends the phase; an endless stream has no epochs."""
        if self.steps is not None:
            return self.steps
        if self.epochs is not None:
            if per_epoch is None:
                hint = "Give steps or time_limit, or a data set with a length."
                invalid_value("train epochs", "data of which an epoch has an end", "a stream without a length", hint)
            return self.epochs * per_epoch
        if self.time_limit is not None:
            return None
        if per_epoch is None:
            return LEAST_STEPS
        return max(LEAST_EPOCHS * per_epoch, math.ceil(LEAST_STEPS / per_epoch) * per_epoch)

    def work(
        self,
        network: nn.Module,
        loss: Loss,
        batches: Batches,
        budget: Budget = unlimited,
        seed: int = 0,
        options: TrainOptions | None = None,
        mesh: Mesh | None = None,
    ) -> Work:
        """What the method of this phase is put to work on."""
        options = TrainOptions() if options is None else options
        latents = LatentSettings(
            self.states, self.state_dtype, self.folder, options.coupling, options.state_regularisers,
            options.parameter_regularisers, options.coordinates,
        )  # fmt: skip
        lifting = self._resolved()[1]
        return Work(network, loss, batches, budget, seed, self.full, lifting, latents, Mesh() if mesh is None else mesh)

    def begin(
        self, network: nn.Module, loss: Loss, batches: Batches, budget: Budget = unlimited, seed: int = 0
    ) -> TrainStep:
        """The method at work, for loops of one's own: one process and the usual options."""
        return self.method.init(self.work(network, loss, batches, budget, seed))

    def check(self, work: Work) -> None:
        """Refuse what cannot be done with this network and loss, before anything is."""
        method, network = self.method, work.network
        if method.needs.latents and not isinstance(network, Network):
            hint = "Lift it: train(tl.lift(module), …), or leave lifting and solver out."
            invalid_value(f"train {method.title}", "a network in the unified form", type(network).__name__, hint)
        if self.weights not in (None, "keep"):
            check_initialises(f"train weights={self.weights!r}", network, self.weights, work.batches.example().y)
        if not (method.needs.latents and method.needs.settings):
            self._check_no_latents(work)
        self._check_precision(work)
        if work.mesh.data > 1 and "data" not in method.needs.axes:
            invalid_value("mesh axis data", "a method that can be divided along it", method.title)
        if work.mesh.layers > 1 and "layers" not in method.needs.axes:
            invalid_value("mesh axis layers", "a method that can be divided along it", method.title)
        method.check(work)

    def _check_no_latents(self, work: Work) -> None:
        latents, title = work.latents, self.method.title
        expected, hint = "a method with lifted variables", "Give a lifting such as Bregman(), and a solver if you like."
        if latents.start != "forward":
            hint = "Try solver=LinearisedBCD(), or states='forward'."
            invalid_value(f"train states={latents.start!r}", expected, title, hint)
        for name, value in (
            ("state_dtype", latents.dtype),
            ("state_storage", latents.folder),
            ("coupling", latents.coupling),
            ("state_regularisers", latents.regularisers),
            ("parameter_regularisers", latents.parameter_regularisers),
            ("coordinates", None if latents.coordinates == "states" else latents.coordinates),
        ):
            if value is not None:
                if name == "parameter_regularisers":
                    hint += " Ridge is weight_decay of an optimiser of torch."
                invalid_value(f"train {name}", expected, title, hint)

    def _check_precision(self, work: Work) -> None:
        """Lifted steps are computed in the parameters' own dtype, which must have room for squares of gradients."""
        some = like(work.network)
        if some is None or (self.lifting is not None and self.lifting.hard):
            return
        hint = "Try network.bfloat16(), or lifting=Conventional()."
        if some.dtype == torch.float16:
            invalid_value("train parameters", "bfloat16, float32 or float64", some.dtype, hint)
        if self.method.needs.latents and torch.is_autocast_enabled(some.device.type):
            invalid_value("train", "no autocast around lifted variables", f"autocast on {some.device.type}", hint)

    @property
    def folder(self) -> Path | None:
        """Where a memory-mapped file for the lifted variables goes."""
        return None if self.state_storage == "memory" else Path(self.state_storage).expanduser()

    def _resolved(self) -> tuple[TrainMethod, Lifting | None]:
        return as_method(self.lifting, self.solver, fitted=self.weights == "layer-wise")


def default_batch_size(samples: int, network: nn.Module | None = None) -> int:
    """100, or a tenth of the samples where there are few, so that an epoch has some steps; more for batch norms."""
    least = 1 if network is None or not any(isinstance(part, _BatchNorm) for part in network.modules()) else NORMALISED
    return min(samples, max(least, min(BATCH, samples // 10))) if samples > 10 else samples
