"""Validation of arguments: cheap, shared, and with one sentence form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import TypeVar

import torch
from torch import Tensor

from torchlift.core.errors import did_you_mean, invalid_type, invalid_value

T = TypeVar("T")
Shape = tuple[int, ...]
"""The shape of one sample, without the batch axis."""


def check_instance(where: str, value: object, kind: type[T], expected: str = "", hint: str = "") -> T:
    """An instance of a class, which messages call `expected` or by its name."""
    if not isinstance(value, kind):
        invalid_type(where, expected or f"a {kind.__name__}", value, hint)
    return value


def check_tensor(where: str, value: object) -> Tensor:
    """A floating-point tensor."""
    tensor = check_instance(where, value, Tensor, "a torch.Tensor", "Try torch.as_tensor(...).")
    if not tensor.is_floating_point():
        invalid_value(where, "a floating-point tensor", tensor.dtype, "Try `.float()` or `.double()`.")
    return tensor


def check_batch(where: str, value: object, shape: Shape) -> Tensor:
    """A non-empty batch (B, *shape)."""
    tensor = check_tensor(where, value)
    if tuple(tensor.shape[1:]) != shape or tensor.ndim != len(shape) + 1:
        expected = ("batch", *shape)
        hint = "Add a batch axis with `x[None]`." if tuple(tensor.shape) == shape else ""
        invalid_value(where, f"shape ({', '.join(map(str, expected))})", tuple(tensor.shape), hint)
    if tensor.shape[0] == 0:
        invalid_value(where, "at least one sample", "an empty batch")
    return tensor


def check_like(where: str, value: Tensor, reference: Tensor) -> Tensor:
    """The same dtype and device as `reference` (usually a parameter)."""
    if value.dtype != reference.dtype:
        invalid_value(
            where, f"dtype {reference.dtype}", value.dtype, f"Try `.to({reference.dtype})` on one of the two."
        )
    if value.device != reference.device:
        invalid_value(where, f"device {reference.device}", value.device, "Move one of the two with `.to(device)`.")
    return value


def check_finite(where: str, value: Tensor) -> Tensor:
    """No NaN and no infinity; the first bad position is named."""
    if not bool(torch.isfinite(value).all()):
        position = tuple((~torch.isfinite(value)).nonzero()[0].tolist())
        invalid_value(where, "finite values", f"{float(value[position])} at index {position}")
    return value


def check_positive(where: str, value: object) -> float:
    """A finite number > 0."""
    number = check_number(where, value)
    if number <= 0:
        invalid_value(where, "a number > 0", value)
    return number


def check_number(where: str, value: object, minimum: float = -math.inf) -> float:
    """A finite real number (not a bool) >= minimum."""
    if isinstance(value, bool) or not isinstance(value, Real):
        invalid_type(where, "a real number", value)
    number = float(value)
    if not math.isfinite(number):
        invalid_value(where, "a finite number", value)
    if number < minimum:
        invalid_value(where, f"a number >= {minimum:g}", value)
    return number


def check_interval(where: str, value: object, interval: str, hint: str = "") -> float:
    """A number in an interval such as "[0, 1)", where a round bracket leaves the end out."""
    number = check_number(where, value)
    low, high = map(float, interval[1:-1].split(","))
    left_out = (number == low and interval[0] == "(") or (number == high and interval[-1] == ")")
    if not low <= number <= high or left_out:
        invalid_value(where, f"a number in {interval}", value, hint)
    return number


def check_size(where: str, value: object, minimum: int = 1) -> int:
    """A whole number >= minimum."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        invalid_type(where, "a whole number", value)
    if int(value) < minimum:
        invalid_value(where, f"a whole number >= {minimum}", value)
    return int(value)


def check_device(where: str, value: str) -> torch.device:
    """A device that can compute here: the processor, or an accelerator that is present."""
    found = torch.accelerator.current_accelerator(check_available=True)
    count = 0 if found is None else torch.accelerator.device_count()
    here = ["cpu", *(str(torch.device(found.type, k)) for k in range(count) if found is not None)]
    expected = f"one of {', '.join(here)}"
    try:
        device = torch.device(value)
    except (RuntimeError, TypeError):
        invalid_value(where, expected, repr(value), did_you_mean(str(value), here))
    if device.type == "meta":
        invalid_value(where, expected, "meta, whose tensors have no values")
    if device.type != "cpu" and str(torch.device(device.type, device.index or 0)) not in here:
        invalid_value(where, expected, f"{value}, which torch does not find")
    return device


def check_choice(where: str, name: object, choices: Iterable[str]) -> str:
    """One of these names; a misspelt one is answered with the nearest."""
    names = list(choices)
    if not isinstance(name, str):
        invalid_type(where, "a string", name)
    if name not in names:
        expected = " or ".join(map(repr, names)) if len(names) == 2 else f"one of {', '.join(map(repr, names))}"
        invalid_value(where, expected, repr(name), did_you_mean(name, names))
    return name


def check_shape(where: str, value: object) -> Shape:
    """A tuple of sizes >= 1; one number counts as a shape of one axis."""
    if type(value) is tuple and all(type(size) is int and size > 0 for size in value):
        return value  # the usual case, on the path of every forward pass
    if isinstance(value, Integral):
        value = (value,)
    if isinstance(value, str) or not isinstance(value, Sequence):
        invalid_type(where, "a shape such as (1, 28, 28)", value)
    return tuple(check_size(f"{where}[{axis}]", size) for axis, size in enumerate(value))
