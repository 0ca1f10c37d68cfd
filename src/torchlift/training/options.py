"""Settings of a run that few calls need, in one place for `train` and the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from torchlift.core.checks import check_choice, check_instance, check_number, check_positive, check_size
from torchlift.core.errors import invalid_type
from torchlift.functions.regularisers import Regulariser
from torchlift.objective.objective import CoordinateKind
from torchlift.parallel import Mesh

if TYPE_CHECKING:
    from torchlift.training.phase import Phase


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is watched and kept: what the command takes too."""

    evaluate_every: int | None = None
    """Steps between evaluations; an epoch."""
    patience: int | None = None
    """Stop after so many evaluations without improvement."""
    tolerance: float | None = None
    """Stop when the loss changes by less than this share between evaluations."""
    memory_limit: float | None = None
    """Bytes that everything may take; what the machine has left."""
    checkpoint_every: float = 60.0
    """Seconds between checkpoints."""
    keep: int = 2
    """Number of checkpoints to keep."""
    tensorboard: bool = False
    """Write TensorBoard events too."""

    def __post_init__(self) -> None:
        for name in ("evaluate_every", "patience"):
            if getattr(self, name) is not None:
                check_size(f"train {name}", getattr(self, name))
        for name in ("tolerance", "checkpoint_every"):
            if getattr(self, name) is not None:
                check_number(f"train {name}", getattr(self, name), minimum=0)
        if self.memory_limit is not None:
            check_positive("train memory_limit", self.memory_limit)
        check_size("train keep", self.keep)
        check_instance("train tensorboard", self.tensorboard, bool, "True or False")


@dataclass(frozen=True, kw_only=True)
class PhaseOptions:
    """How long a stretch of training is and how it starts: what the command takes too. None means: it is chosen."""

    batch_size: int | Literal["full"] | None = None
    """Samples per step, or full; 100 or a tenth of the samples."""
    epochs: int | None = None
    """How long; at least ten epochs and a thousand steps where nothing is said."""
    steps: int | None = None
    """How long, instead of epochs."""
    time_limit: float | None = None
    """Seconds after which it ends in any case."""
    weights: str | None = None
    """How weights start: keep, or a method of `initialise_weights`."""
    name: str | None = None
    """In records and progress bars."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions(RunOptions):
    """What `train` takes beside its arguments: `train(network, data, options=TrainOptions(patience=5))`.

    Arguments:
        evaluate_every: steps between evaluations; an epoch by default.
        patience: stop after so many evaluations without improvement.
        tolerance: stop when the loss changes by less than this share between evaluations.
        memory_limit: bytes that everything may take; by default what the machine has left. See `plan_memory`.
        checkpoint_every: seconds between checkpoints; 0 for one after every step.
        keep: number of checkpoints to keep.
        tensorboard: write events into the folder as well.
        phases: several stretches one after another; the arguments of `train` are their defaults.
        states: where lifted variables start: "forward", "input", "random", or "warm" from the epoch before.
        state_dtype: dtype in which "warm" ones are kept, such as torch.bfloat16; computations keep that of the network.
        state_storage: where they are kept: "memory", or a folder for a memory-mapped file that may be larger than it.
        coupling: ρ for C = ρ/2 ‖M u − V z‖² with u free; None for the hard constraint M u = V z.
        state_regularisers: on lifted variables: one for all layers, or {layer: regulariser} counted from 1.
        parameter_regularisers: {pattern: regulariser} for parameter names, such as {"*weight": Ridge(1e-4)}.
        coordinates: what solvers of lifted variables move: "states" z, or "errors" e = z − σ(W u + b), by which the
            loss reaches all layers in one evaluation; see `torchlift.objective.ErrorProblem`.
        mesh: "data=2,layers=2" shares the work among the processes of an initialised process group: samples along
            "data", layers along "layers" (of chains). The result is that of one process, up to rounding, and for sweeps
            and back-propagation along "layers" that of as many stages in one process; it is on every rank. Rank 0
            keeps the history, shows progress and calls `callback`. Every process writes its part of a checkpoint: all
            must see the folder. A run goes on with any mesh, or alone, but stages must stay as many.
    """

    phases: Sequence[Phase] | None = None
    states: str = "forward"
    state_dtype: object = None
    state_storage: object = "memory"
    coupling: float | None = None
    state_regularisers: Regulariser | Mapping[int, Regulariser] | None = None
    parameter_regularisers: Mapping[str, Regulariser] | None = None
    coordinates: CoordinateKind = "states"
    mesh: str | Mesh | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.coupling is not None:
            check_positive("train coupling", self.coupling)
        check_choice("train coordinates", self.coordinates, get_args(CoordinateKind))
        if self.parameter_regularisers is not None and not isinstance(self.parameter_regularisers, Mapping):
            hint = "Try {'*weight': Ridge(1e-4)}."
            given = self.parameter_regularisers
            invalid_type("train parameter_regularisers", "patterns of names with regularisers", given, hint)
