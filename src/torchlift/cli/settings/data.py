"""Training and validation data from settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchlift.cli.settings.arrays import first, read_arrays
from torchlift.core.checks import Shape, check_choice, check_size
from torchlift.core.errors import DataError, invalid_value, message
from torchlift.data import Batch, Patches, load_digits, load_images, load_mnist, tiles
from torchlift.data.tasks import TASKS, Task

if TYPE_CHECKING:
    from torchlift.cli.settings.settings import DataSettings

SETS = ("digits", "mnist", "files", "photographs")
TARGETS = ("classification", "regression")
"""Tasks whose inputs are given."""

OF_TASKS = ("noise", "share", "blur_size", "blur_sigma")
"""Settings that are arguments of an imaging task, without their prefix."""

OF_PHOTOGRAPHS = ("patch_size", "patches", "channels")
"""Settings of set = "photographs"."""

LARGEST_BLUR = 255
PATCH_SIZE, PATCHES = 40, 2000

Drawing = Callable[[torch.Generator], tuple[Any, ...]]


@dataclass(frozen=True, eq=False)
class Samples:
    """What a run learns from.

    Arguments:
        train, validation: inputs, targets and context; `validation` is None where nothing is held out.
        task: says how inputs come from images; None where there are no images.
        redraw: makes new inputs from the training images for every epoch.
        patches: draws patches of photographs for every epoch; `train` is a first draw.
    """

    train: Batch
    validation: Batch | None
    task: Task | None
    redraw: bool
    patches: Patches | None = None

    @property
    def in_shape(self) -> Shape:
        return tuple(self.train.y.shape[1:])

    @property
    def out_shape(self) -> Shape:
        """Shape of one target; for labels the number of classes."""
        if self.train.x.is_floating_point():
            return tuple(self.train.x.shape[1:])
        return (max(int(part.x.max()) for part in (self.train, self.validation) if part is not None) + 1,)

    def shaped(self, in_shape: Shape, out_shape: Shape, context: bool) -> tuple[Batch | Drawing, Batch | None]:
        """Training and validation data as a network takes them: images become vectors where it wants vectors.

        Arguments:
            in_shape, out_shape: of the network.
            context: whether it reads the context.
        """

        def fit(batch: Batch) -> Batch:
            y, x = _reshaped(batch.y, in_shape), batch.x
            return Batch(y, _reshaped(x, out_shape) if x.is_floating_point() else x, batch.context if context else None)

        held_out = None if self.validation is None else fit(self.validation)
        if (patches := self.patches) is not None:
            return (lambda generator: tuple(fit(Batch(*patches(generator))))), held_out
        if not self.redraw:
            return fit(self.train), held_out
        task, images = self.task, self.train.x
        assert task is not None  # `load_samples` refuses it otherwise

        def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
            y, context = task.degrade(images, generator)
            fresh = fit(Batch(y, images, context))
            return fresh.y, fresh.x, fresh.context  # type: ignore[return-value]

        return draw, held_out


def load_samples(settings: DataSettings, dtype: torch.dtype = torch.float32, seed: int = 0) -> Samples:
    """Data as the settings say.

    Arguments:
        settings: [data].
        dtype: of images.
        seed: of noise and masks; training and validation draw from streams of their own.
    """
    check_choice("[data] task", settings.task, (*TASKS, *TARGETS))
    check_choice("[data] set", settings.set, SETS)
    task = _task(settings)
    if settings.set == "photographs":
        return _photographs(settings, task, dtype, seed)
    for name in OF_PHOTOGRAPHS:
        if getattr(settings, name) is not None:
            invalid_value(f"[data] {name}", "set = 'photographs'", repr(settings.set), "Leave it out.")
    train, held_out = _arrays(settings, dtype)
    drawn = "inputs" not in train
    if settings.redraw and (task is None or not drawn):
        got = f"task {settings.task!r}" if task is None else "inputs in the file"
        invalid_value("[data] redraw", "a task that makes the inputs", got, "Leave it out.")
    if task is None and drawn:
        hint = "Name a task that makes inputs: denoising, deblurring or inpainting."
        expected = f"arrays inputs and targets for {settings.task}"
        raise DataError(message(f"data {settings.path}", expected, "targets alone", hint))
    validation = None if held_out is None else _batch(held_out, task, dtype, seed, 1)
    return Samples(_batch(train, task, dtype, seed, 0), validation, task, settings.redraw)


def _task(settings: DataSettings) -> Task | None:
    task = TASKS.get(settings.task)
    names = set() if task is None else {field.name for field in fields(task)}  # type: ignore[arg-type]
    given: dict[str, float] = {}
    for name in OF_TASKS:
        value, argument = getattr(settings, name), name.removeprefix("blur_")
        if value is not None and argument not in names:
            invalid_value(f"[data] {name}", f"nothing for {settings.task}", value, "Leave it out.")
        if value is not None:
            given[argument] = value
    if settings.blur_size is not None and settings.blur_size > LARGEST_BLUR:
        invalid_value("[data] blur_size", f"at most {LARGEST_BLUR} pixels", settings.blur_size)
    return None if task is None else replace(task, **given)  # type: ignore[type-var]


def _photographs(settings: DataSettings, task: Task | None, dtype: torch.dtype, seed: int) -> Samples:
    """Patches of the images in a folder, and tiles that cover those held out."""
    if task is None:
        invalid_value("[data] task", f"one of {', '.join(TASKS)} for photographs", repr(settings.task))
    if settings.path is None:
        invalid_value("[data] path", "a folder of image files for set = 'photographs'", "nothing")
    images = load_images(settings.path, channels=settings.channels)
    if settings.validation_path is None:
        count = max(1, len(images) // 10) if settings.validation is None else settings.validation
        if check_size("[data] validation", count, minimum=0) >= len(images):
            hint = "Say validation = 0 to train on all of them."
            invalid_value("[data] validation", f"fewer than the {len(images)} images there are", count, hint)
        images, held_out = images[: len(images) - count], images[len(images) - count :]
    else:
        held_out = load_images(settings.validation_path, channels=len(images[0]))[: settings.validation]
    if settings.images is not None:
        if check_size("[data] images", settings.images) > len(images):
            invalid_value("[data] images", f"at most {len(images)} images", settings.images)
        images = images[: settings.images]
    size = PATCH_SIZE if settings.patch_size is None else check_size("[data] patch_size", settings.patch_size)
    count = PATCHES if settings.patches is None else check_size("[data] patches", settings.patches)
    patches = Patches(images, task, size, count, dtype=dtype)
    validation = None
    if held_out:
        x = tiles(held_out, size, dtype)
        y, context = task.degrade(x, torch.Generator().manual_seed(2 * seed + 1))
        validation = Batch(y, x, context)
    first_draw = Batch(*patches(torch.Generator().manual_seed(2 * seed)))
    return Samples(first_draw, validation, task, True, patches)


def _arrays(settings: DataSettings, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
    """Training and validation arrays; of images without inputs only targets."""
    if settings.set != "files" and settings.validation_path is not None:
        invalid_value("[data] validation_path", "set = 'files' or 'photographs'", repr(settings.set))
    if settings.set == "digits":
        if settings.path is not None:
            hint = "Name your own files by set = 'files', the full MNIST by set = 'mnist'."
            invalid_value("[data] path", "none for the bundled digits", settings.path, hint)
        train, held_out = (_named(settings, *load_digits(split, dtype=dtype)) for split in ("train", "validation"))
        return _cut(settings, train, held_out, 500)
    if settings.set == "mnist":
        if settings.task == "regression":
            invalid_value("[data] task", "an imaging task or classification for mnist", "'regression'")
        return _cut(settings, _named(settings, *load_mnist("train", path=settings.path, dtype=dtype)), None, 5000)
    if settings.path is None:
        invalid_value("[data] path", "a file or folder for set = 'files'", "nothing")
    train = _read_targets(settings, settings.path)
    held_out = None if settings.validation_path is None else _read_targets(settings, settings.validation_path)
    return _cut(settings, train, held_out, max(1, len(train["targets"]) // 10))


def _read_targets(settings: DataSettings, path: Path) -> dict[str, Tensor]:
    """The arrays of a file, with targets as the task has them: labels are whole numbers, all others are not."""
    arrays = read_arrays(path)
    targets = arrays["targets"]
    if settings.task == "regression" and not targets.is_floating_point():
        arrays["targets"] = targets.double()
    elif settings.task == "classification":
        where, hint = f"data {path} targets", "For numbers to be met say task = 'regression'."
        if targets.is_floating_point():
            raise DataError(message(where, "whole numbers, the labels", targets.dtype, hint))
        if targets.dtype != torch.bool and int(targets.min()) < 0:
            raise DataError(message(where, "labels 0, 1, …", int(targets.min()), "Count the classes from 0."))
    return arrays


def _named(settings: DataSettings, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    if settings.task == "regression":
        invalid_value("[data] task", "an imaging task or classification for digits", "'regression'")
    return {"inputs": images, "targets": labels} if settings.task == "classification" else {"targets": images}


def _cut(
    settings: DataSettings, train: dict[str, Tensor], held_out: dict[str, Tensor] | None, default: int
) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
    """The first samples for training; without data of its own, validation has the last ones."""
    total = len(train["targets"])
    count = default if settings.validation is None else check_size("[data] validation", settings.validation, minimum=0)
    if held_out is None:
        if count >= total:
            hint = "Say validation = 0 to train on all of them."
            invalid_value("[data] validation", f"fewer than the {total} samples there are", count, hint)
        held_out, total = first(train, total - count, total), total - count
    elif settings.validation is None:
        count = len(held_out["targets"])
    if count > len(held_out["targets"]):
        invalid_value("[data] validation", f"at most {len(held_out['targets'])} samples", count)
    images = total if settings.images is None else check_size("[data] images", settings.images)
    if images > total:
        invalid_value("[data] images", f"at most {total} samples", images)
    return first(train, 0, images), first(held_out, 0, count) if count else None


def _batch(arrays: Mapping[str, Tensor], task: Task | None, dtype: torch.dtype, seed: int, stream: int) -> Batch:
    x = arrays["targets"]
    if task is not None or x.is_floating_point():
        x = x.to(dtype)
    if "inputs" in arrays:
        context = arrays.get("context")
        if context is not None and context.is_floating_point():
            context = context.to(dtype)
        return Batch(arrays["inputs"].to(dtype), x, context)
    assert task is not None  # `load_samples` refuses it otherwise
    if "context" in arrays:
        hint = "Without inputs the task draws masks itself: leave context out."
        raise DataError(message("data", "inputs beside a context", "targets and context", hint))
    y, drawn = task.degrade(_images(x), torch.Generator().manual_seed(2 * seed + stream))
    return Batch(y, _images(x), drawn)


def _images(x: Tensor) -> Tensor:
    """(B, C, H, W); a missing axis of channels is added."""
    return x[:, None] if x.ndim == 3 else x


def _reshaped(tensor: Tensor, shape: Shape) -> Tensor:
    """Samples in another shape of as many entries; otherwise as they are, for `train` to refuse."""
    if tuple(tensor.shape[1:]) != shape and math.prod(tensor.shape[1:]) == math.prod(shape):
        return tensor.reshape(len(tensor), *shape)
    return tensor


def absolute(settings: DataSettings) -> dict[str, Path]:
    """Paths that mean the same from any folder, so that a run can be repeated."""
    named = {name: getattr(settings, name) for name in ("path", "validation_path")}
    return {name: path.expanduser().resolve() for name, path in named.items() if path is not None}
