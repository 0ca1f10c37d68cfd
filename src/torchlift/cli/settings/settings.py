"""The settings of a run: one frozen dataclass per section of the file. None means: chosen by the part it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from torchlift.training.options import RunOptions

Switch = Annotated[bool, tyro.conf.FlagConversionOff]
"""True or False is written out on the command line too, so that a flag can undo what a file says."""


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """What is learnt from."""

    task: str = "denoising"
    """denoising, deblurring or inpainting (inputs are made from images); classification; regression (own files)."""
    set: str = "digits"
    """digits (bundled), mnist (the full set), or files (your own)."""
    path: Path | None = None
    """mnist: the folder of its files, by default TORCHLIFT_DATA. files: a .npz or .safetensors file with arrays
    targets and perhaps inputs and context, or a folder of targets.npy, inputs.npy, context.npy. Without inputs the
    task makes them from the targets."""
    validation_path: Path | None = None
    """files: validation data of the same kind; by default the last samples of the path are held out."""
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
    redraw: Switch = False
    """Draw noise and masks anew for every epoch."""


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """What is trained; sizes of input and output come from the data."""

    kind: str = "MLP"
    """MLP, ResNet, Perceptron, Shallow, LISTA, PrimalDual, or your own function as module:function; it is called
    without arguments and returns a Network or an nn.Sequential."""
    widths: tuple[int, ...] = ()
    """Widths of the hidden layers (MLP), of the inner layers (ResNet) or of the blocks (Shallow); as wide as the
    input by default."""
    depth: int | None = None
    """Number of hidden layers where widths names one width or none; 2."""
    activation: str | None = None
    """Any proximal activation, such as relu or soft-threshold; relu by default."""
    threshold: float | None = None
    """Of soft-threshold; for LISTA and PrimalDual where all thresholds start."""
    parameters: tuple[float, ...] = ()
    """Numbers of other activations, such as 0 1 for box or 0.1 for leaky-relu."""
    tableau: str | None = None
    """ResNet: euler, midpoint, heun, kutta3 or rk4."""
    iterations: int | None = None
    """LISTA and PrimalDual: number of unrolled iterations; 8."""
    dictionary: str | None = None
    """LISTA and PrimalDual: dct, identity, random (orthonormal), or differences (PrimalDual)."""
    scale: float | None = None
    """LISTA and PrimalDual: factor of the dictionary; 1."""
    step: float | None = None
    """LISTA and PrimalDual: where all step sizes start."""
    form: str | None = None
    """LISTA: ista or coupled."""
    tied: Switch = False
    """LISTA and PrimalDual: all iterations share their weights."""
    dtype: Literal["float32", "float64"] = "float32"
    """Of parameters and data."""


@dataclass(frozen=True, kw_only=True)
class PhaseSettings:
    """One stretch of training; what is None is taken from [training]."""

    lifting: str | None = None
    """bregman, fenchel, classical, contrastive, mac-qp, conventional (back-propagation). By default lifted
    variables follow the forward pass and one backward sweep moves them."""
    mu: float | tuple[float, ...] | None = None
    """Weight of the lifting: one number, or one per layer."""
    solver: str | None = None
    """sweep, bcd, linearised-bcd, isgm, prox-gradient, fista, prox-adam; for conventional also adam,
    adamw, sgd, rmsprop, nadam, radam."""
    lr: float | None = None
    """Learning rate, where the solver has one."""
    momentum: float | None = None
    """sgd and rmsprop: momentum."""
    weight_decay: float | None = None
    """Optimisers of torch: weight decay."""
    anneal: Literal["cosine", "linear"] | None = None
    """Optimisers of torch: how the learning rate falls to 0 over the budget; it stays without."""
    tau: float | None = None
    """isgm: length of the implicit steps; 1."""
    inner_steps: int | None = None
    """isgm and bcd: steps of the inner solver."""
    batch_size: int | Literal["full"] | None = None
    """Samples per step, or full; 100 or a tenth of the samples."""
    epochs: int | None = None
    """How long; at least ten epochs and a thousand steps where nothing is said."""
    steps: int | None = None
    """How long, instead of epochs."""
    time_limit: float | None = None
    """Seconds after which it ends in any case."""
    weights: str | None = None
    """How weights start: keep, default, he, orthogonal, pass-through, layer-wise, balanced."""
    states: Literal["forward", "input", "random", "warm"] | None = None
    """Where lifted variables start; forward. warm: where the epoch before left them."""
    state_dtype: Literal["bfloat16", "float16", "float32", "float64"] | None = None
    """In which warm lifted variables are kept; that of the network."""
    state_storage: Path | None = None
    """A folder for a memory-mapped file of warm lifted variables; in memory by default."""
    name: str | None = None
    """In records and progress bars."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(PhaseSettings, RunOptions):
    """How it is trained."""

    loss: str | None = None
    """squared-error, cross-entropy, huber, absolute; by default as the targets need it."""
    metrics: tuple[str, ...] | None = None
    """psnr, ssim, accuracy, mse, nmse; the first one chooses the best parameters."""
    seed: int = 0
    """Of noise, weights and the order of samples."""
    threads: int | None = None
    """Threads of torch; all that it takes by itself if not given."""
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
