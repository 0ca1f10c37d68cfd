"""The settings of a run: one frozen dataclass per section of the file. None means: chosen by the part it belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from torchlift.cli.settings.data import SETS, TARGETS
from torchlift.cli.settings.network import BUILDERS, DICTIONARIES
from torchlift.cli.settings.solvers import SOLVERS, SolverSettings
from torchlift.data.tasks import TASKS
from torchlift.functions.losses import LOSSES
from torchlift.functions.regularisers import REGULARISERS
from torchlift.liftings import LIFTINGS
from torchlift.training import METRICS
from torchlift.training.options import PhaseOptions, RunOptions
from torchlift.training.phase import STATES
from torchlift.training.starts.initialise import METHODS


def _named(names: Iterable[str], text: str) -> object:
    """The help of a setting that takes one of these names."""
    return tyro.conf.arg(help=f"{', '.join(names)}{text}")


Switch = Annotated[bool, tyro.conf.FlagConversionOff]
"""True or False is written out on the command line too, so that a flag can undo what a file says."""


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """What is learnt from."""

    task: Annotated[
        str, _named(TASKS, f" (inputs are made from images), {', '.join(TARGETS)} (inputs and targets are given).")
    ] = "denoising"
    set: Annotated[str, _named(SETS, ": bundled digits, the full set, or your own.")] = "digits"
    path: Annotated[
        Path | None,
        tyro.conf.arg(
            help="mnist: the folder of its files, by default TORCHLIFT_DATA. files: a .npz or .safetensors file with "
            "arrays targets and perhaps inputs and context, or a folder of targets.npy, inputs.npy, context.npy. "
            "Without inputs the task makes them from the targets. photographs: a folder of PNG, JPEG or TIFF files."
        ),
    ] = None
    validation_path: Path | None = None
    """files, photographs: validation data of the same kind; by default the last samples of the path are held out."""
    images: int | None = None
    """Samples to train on; all by default."""
    validation: int | None = None
    """Samples held out for validation; 500 of the digits, 5,000 of mnist, a tenth of your own files. 0 for none."""
    noise: float | None = None
    """Standard deviation of the noise; 0.15 for denoising, 0.03 for deblurring, 0 for inpainting."""
    share: float | None = None
    """inpainting: share of the pixels that are removed; 0.3."""
    blur_size: int | None = None
    """deblurring: side of the Gaussian kernel in pixels; 5."""
    blur_sigma: float | None = None
    """deblurring: its standard deviation; 1."""
    patch_size: int | None = None
    """photographs: side of the patches in pixels; 40."""
    patches: int | None = None
    """photographs: patches drawn for every epoch; 2,000."""
    channels: int | None = None
    """photographs: 1 for grey, 3 for colour; colour if any image has it."""
    redraw: Switch = False
    """Draw noise and masks anew for every epoch."""


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """What is trained; sizes of input and output come from the data."""

    kind: Annotated[
        str,
        _named(
            BUILDERS,
            ", or your own function as module:function; it is called without arguments and returns a Network or an "
            "nn.Sequential.",
        ),
    ] = "MLP"
    widths: Annotated[
        tuple[int, ...],
        tyro.conf.arg(
            help="Widths of the hidden layers (MLP), of the inner layers (ResNet) or of the blocks (Shallow); as wide "
            "as the input by default."
        ),
    ] = ()
    depth: int | None = None
    """Number of hidden layers where widths names one width or none; 2."""
    activation: str | None = None
    """Any proximal activation, such as relu or soft-threshold; relu by default."""
    threshold: float | None = None
    """Threshold of soft-threshold; of unrolled networks where all thresholds start."""
    parameters: tuple[float, ...] = ()
    """Numbers of other activations, such as 0 1 for box or 0.1 for leaky-relu."""
    tableau: str | None = None
    """ResNet: euler, midpoint, heun, kutta3 or rk4."""
    iterations: int | None = None
    """Unrolled networks: number of iterations; 8."""
    dictionary: Annotated[
        str | None,
        _named(
            DICTIONARIES,
            " (of PrimalDual only); dct. Beyond 1,024 entries of an image: a matrix for its rows, one for its columns.",
        ),
    ] = None
    scale: float | None = None
    """LISTA and PrimalDual: factor of the dictionary; 1."""
    step: float | None = None
    """LISTA and PrimalDual: where all step sizes start."""
    form: str | None = None
    """LISTA: ista or coupled."""
    tied: Switch = False
    """Unrolled networks: all iterations share their weights."""
    features: int | None = None
    """DDFB, ScCP and FirmDenoiser: number of filters; 32."""
    filter_size: int | None = None
    """DDFB, ScCP and FirmDenoiser: side of the filters, odd; 5."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of parameters and data."""


@dataclass(frozen=True, kw_only=True)
class PhaseSettings(SolverSettings, PhaseOptions):
    """One stretch of training; what is None is taken from [training]."""

    lifting: Annotated[
        str | None,
        _named(
            LIFTINGS,
            ". By default lifted variables follow the forward pass and one backward sweep moves them; conventional is "
            "back-propagation.",
        ),
    ] = None
    mu: float | tuple[float, ...] | None = None
    """Weight of the lifting: one number, or one per layer."""
    solver: Annotated[str | None, _named(SOLVERS, ". Optimisers of torch go with conventional.")] = None
    weights: Annotated[str | None, _named(("keep", *METHODS), ": how weights start.")] = None
    states: Annotated[
        str | None, _named(STATES, ": where lifted variables start; forward. warm: where the epoch before left them.")
    ] = None
    state_dtype: Literal["bfloat16", "float16", "float32", "float64"] | None = None
    """Precision in which warm lifted variables are kept; that of the network."""
    state_storage: Path | None = None
    """A folder for a memory-mapped file of warm lifted variables; in memory by default."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(PhaseSettings, RunOptions):
    """How it is trained."""

    loss: Annotated[str | None, _named(LOSSES, "; by default as the targets need it.")] = None
    metrics: Annotated[tuple[str, ...] | None, _named(METRICS, "; the first one chooses the best parameters.")] = None
    seed: int = 0
    """Seed of noise, weights and the order of samples."""
    coupling: float | None = None
    """ρ of a quadratic coupling ρ/2 ‖M u − V z‖², with a lifting; u follows from z by default."""
    coordinates: Literal["states", "errors"] = "states"
    """What solvers of lifted variables move: z, or e = z − σ(W u + b), by which the loss reaches all layers at once."""
    state_regularisers: Annotated[
        tuple[str, ...],
        _named(REGULARISERS, ", with numbers: 'l1 0.01' on lifted variables, '2: l1 0.01' on those of layer 2."),
    ] = ()
    parameter_regularisers: Annotated[
        tuple[str, ...], _named(REGULARISERS, ", with numbers: '*weight: l1 1e-4' on parameters of such names.")
    ] = ()
    threads: int | None = None
    """Threads of torch; all that it takes by itself if not given."""
    device: str = "cpu"
    """Where it is trained: cpu, cuda, mps, xpu."""
    tensorboard: Switch = False
    """Write TensorBoard events too."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """All settings of a run.

    Arguments:
        data, network, training: sections of the file.
        phase: stretches of training one after another, `[[phase]]` in the file.
    """

    data: DataSettings = DataSettings()
    network: NetworkSettings = NetworkSettings()
    training: TrainingSettings = TrainingSettings()
    phase: tuple[PhaseSettings, ...] = ()
