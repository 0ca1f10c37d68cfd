"""Promises of `torchlift.testing`, asserted."""

from __future__ import annotations

from typing import Any

import pytest

from torchlift.testing.report import Check, NotApplicable, examine


def assert_kept(check: Check, *arguments: Any) -> None:
    """The check finds nothing; where it does not apply, the test is skipped with its reason."""
    try:
        finding = examine(check, *arguments)
    except NotApplicable as reason:
        pytest.skip(str(reason))
    assert finding is None, str(finding)


def named(checks: tuple[Check, ...]) -> pytest.MarkDecorator:
    """One test for each check."""
    return pytest.mark.parametrize("check", checks, ids=lambda check: check.__name__)
