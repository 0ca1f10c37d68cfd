"""Promises of `torchlift.testing`, asserted."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from torch import Tensor

from torchlift.testing.report import Check, Finding, NotApplicable, examine


def assert_kept(check: Check, *arguments: Any) -> None:
    """The check finds nothing; where it does not apply, the test is skipped with its reason."""
    try:
        finding = examine(check, *arguments)
    except NotApplicable as reason:
        pytest.skip(str(reason))
    assert finding is None, str(finding)


def assert_all_kept(checks: tuple[Check, ...], *arguments: Any) -> None:
    """No check finds anything; each has tensors of its own, and those that do not apply are passed over."""
    findings: list[Finding | None] = []
    for check in checks:
        copies = [argument.clone() if isinstance(argument, Tensor) else argument for argument in arguments]
        with suppress(NotApplicable):
            findings.append(examine(check, *copies))
    findings = [finding for finding in findings if finding is not None]
    assert not findings, "\n".join(map(str, findings))


def named(checks: tuple[Check, ...]) -> pytest.MarkDecorator:
    """One test for each check."""
    return pytest.mark.parametrize("check", checks, ids=lambda check: check.__name__)
