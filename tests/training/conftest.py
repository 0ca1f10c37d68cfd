"""Fixtures of the tests of training."""

from __future__ import annotations

import itertools

import pytest


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundredth of a second between any two looks at the clock, however busy the machine is."""
    monkeypatch.setattr("time.monotonic", itertools.count(0, 0.01).__next__)
