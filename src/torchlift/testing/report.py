"""What the check of a contract finds, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

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
