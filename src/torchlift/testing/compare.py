"""Comparisons that say what differs, by how much and where."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from torchlift.core.errors import TorchliftError
from torchlift.testing.report import Broken

#: Tensors of up to so many entries are written out in examples.
FEW = 12


def require(condition: object, observed: str, **inputs: Any) -> None:
    """Raise `Broken` unless a statement is true."""
    if not bool(condition):
        raise Broken(observed, show(inputs))


def refuses(call: Callable[..., Any], *arguments: Any, error: type[Exception] = TorchliftError) -> bool:
    """Whether a call raises an error of this kind."""
    try:
        call(*arguments)
    except error:
        return True
    return False


def at_most(what: str, actual: Tensor, bound: Tensor | float, **inputs: Any) -> None:
    """Require actual ≤ bound in every entry; NaN fails."""
    actual, limit = torch.broadcast_tensors(actual, torch.as_tensor(bound, dtype=actual.dtype, device=actual.device))
    excess = actual - limit
    wrong = ~(actual <= limit)
    if bool(wrong.any()):
        place = _worst(excess, wrong)
        observed = f"{what} is {float(actual[place]):.6g}, and at most {float(limit[place]):.6g} is allowed"
        raise Broken(observed, show(inputs, place))


def close(what: str, actual: Any, expected: Tensor, rtol: float, atol: float = 0.0, **inputs: Any) -> None:
    """Require the same shape and dtype, and values within atol + rtol·|expected|; with zeros the same bits."""
    require(isinstance(actual, Tensor), f"{what} is a {type(actual).__name__}, not a tensor", **inputs)
    shapes = tuple(actual.shape), tuple(expected.shape)
    require(shapes[0] == shapes[1], f"{what} has shape {shapes[0]}, not {shapes[1]}", **inputs)
    require(actual.dtype == expected.dtype, f"{what} has dtype {actual.dtype}, not {expected.dtype}", **inputs)
    error = (actual.detach() - expected.detach()).abs()
    wrong = ~((error <= atol + rtol * expected.abs()) | (actual == expected) | (actual.isnan() & expected.isnan()))
    if bool(wrong.any()):
        place = _worst(error, wrong)
        pair = f"{float(actual[place]):.8g} instead of {float(expected[place]):.8g}"
        raise Broken(f"{what} is {pair} (difference {float(error[place]):.2g})", show(inputs, place))


def finite(what: str, actual: Tensor, **inputs: Any) -> None:
    """Require finite entries."""
    wrong = ~actual.isfinite()
    if bool(wrong.any()):
        place = _first(wrong)
        raise Broken(f"{what} is {float(actual[place])}", show(inputs, place))


def is_prox(
    name: str,
    value: Callable[[Tensor], Tensor],
    squared: Callable[[Tensor], Tensor],
    p: Tensor,
    u: Tensor,
    step: float,
    rivals: Iterable[Tensor],
    scale: float = 1.0,
    **inputs: Any,
) -> None:
    """Require that p minimises ½‖p − u‖² + step·value(p), by the margin ½‖c − p‖² of a strongly convex function.

    Arguments:
        name: of the function.
        value, squared: the function, and ‖·‖².
        p, u, step: of the proximal map.
        rivals: points c to compare p with.
        scale: of the function, for the size of rounding errors.
    """

    def objective(c: Tensor) -> Tensor:
        return 0.5 * squared(c - u) + step * value(c)

    least, what = objective(p), f"½‖p − u‖² + step·{name}(p)"
    inputs |= {"u": u, "p": p, "step": step}
    finite(what, least, **inputs)
    for c in rivals:
        margin = objective(c) - least - 0.5 * squared(c - p)
        bound = 1e-12 * (100 + least.abs() + 10 * step * scale)
        at_most(f"{what} + ½‖c − p‖², less its value at a rival c,", -margin, bound, c=c, **inputs)


def show(inputs: dict[str, Any], place: tuple[int, ...] = ()) -> str:
    """Inputs as text: tensors at the place where something went wrong, written out where they are small."""
    return ", ".join(_show(name, value, place) for name, value in inputs.items())


def _show(name: str, value: Any, place: tuple[int, ...]) -> str:
    if not isinstance(value, Tensor):
        return f"{name} = {value:.6g}" if isinstance(value, float) else f"{name} = {value}"
    if value.ndim == 0:
        return f"{name} = {float(value):.6g}"
    indices = place[len(place) - value.ndim :] if 0 < value.ndim <= len(place) else ()
    if indices and all(index < size for index, size in zip(indices, value.shape, strict=True)):
        return f"{name}[{', '.join(map(str, indices))}] = {float(value[indices]):.6g}"
    if value.numel() <= FEW:
        return f"{name} = {[round(entry, 6) for entry in value.flatten().tolist()]}"
    return f"{name} of shape {tuple(value.shape)}"


def _worst(amount: Tensor, wrong: Tensor) -> tuple[int, ...]:
    """Where the amount is largest among the wrong entries; the first NaN where there is one."""
    strange = wrong & amount.isnan()
    if bool(strange.any()):
        return _first(strange)
    ranked = torch.where(wrong, amount, -torch.inf)
    return tuple(int(index) for index in torch.unravel_index(ranked.argmax(), ranked.shape))


def _first(wrong: Tensor) -> tuple[int, ...]:
    return tuple(wrong.nonzero()[0].tolist())
