"""What the check of a contract finds, in words, and comparisons that say what differs, by how much and where."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchlift.core.errors import TorchliftError

Check = Callable[..., None]
"""A promise: the first line of its docstring states it, and calling it raises `Broken` where it is not kept."""


class ContractError(TorchliftError, ValueError):
    """A class does not keep the promises that torchlift relies on."""


class Broken(Exception):  # noqa: N818 (a message from a check to the examiner, never seen by users)
    """A promise is not kept.

    Arguments:
        observed: what was found, with its numbers.
        example: an input that shows it.
    """

    def __init__(self, observed: str, example: str = "") -> None:
        super().__init__(observed, example)
        self.observed, self.example = observed, example


class NotApplicable(Exception):  # noqa: N818 (as above)
    """A promise does not concern this object, or cannot be tried here; the text says why."""


@dataclass(frozen=True)
class Finding:
    """A promise that is not kept.

    Arguments:
        check: name of the check.
        promise: what was checked, as a sentence.
        observed: what was found instead, with its numbers.
        example: an input that shows it; empty where none is needed.
    """

    check: str
    promise: str
    observed: str
    example: str = ""

    def __str__(self) -> str:
        example = f"\n    for example: {self.example}" if self.example else ""
        return f"{self.promise}\n    found: {self.observed}{example}"


@dataclass(frozen=True)
class Report:
    """What was checked of an object, and what it does not keep.

    Arguments:
        subject: the object, as text.
        checked: the promises that were tried, as sentences.
        findings: those that are not kept; empty where all is well.
        left_out: promises that were not tried, each with the reason.
    """

    subject: str
    checked: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every promise that was tried is kept."""
        return not self.findings

    def raise_if_failed(self) -> Report:
        """Return the report if all promises are kept, else raise a `ContractError` with it."""
        if not self.ok:
            raise ContractError(str(self))
        return self

    def __str__(self) -> str:
        kept = f"{len(self.checked) - len(self.findings)} of {len(self.checked)} promises are kept"
        lines = [f"{self.subject}: {kept}."]
        lines += [f"  ✗ {finding}" for finding in self.findings]
        lines += [f"  – not tried: {promise} ({reason})" for promise, reason in self.left_out]
        return "\n".join(lines)


def promise(check: Check) -> str:
    """The first line of its docstring."""
    return (check.__doc__ or check.__name__).strip().splitlines()[0]


def examine(check: Check, *arguments: Any) -> Finding | None:
    """What a check finds for given arguments; None where the promise is kept.

    An exception of the examined code is a finding too: it is what a user would meet.

    Raises:
        NotApplicable: the promise cannot be tried.
    """
    try:
        check(*arguments)
    except NotApplicable:
        raise
    except Broken as broken:
        return Finding(check.__name__, promise(check), broken.observed, broken.example)
    except Exception as error:
        return Finding(check.__name__, promise(check), f"{type(error).__name__}: {error}")
    return None


def report(subject: str, work: Iterable[tuple[Check, Iterable[tuple[Any, ...]]]]) -> Report:
    """Try each check on its cases, up to the first that breaks it.

    Arguments:
        subject: what is examined, as text.
        work: each check with the arguments of all its cases.
    """
    checked: list[str] = []
    findings: list[Finding] = []
    left_out: list[tuple[str, str]] = []
    for check, cases in work:
        try:
            broken = next((finding for case in cases if (finding := examine(check, *case)) is not None), None)
        except NotApplicable as reason:
            left_out.append((promise(check), str(reason)))
            continue
        checked.append(promise(check))
        findings += [] if broken is None else [broken]
    return Report(subject, tuple(checked), tuple(findings), tuple(left_out))


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
