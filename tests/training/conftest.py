"""Fixtures of the tests of training."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from forks import Forks


@pytest.fixture(scope="session")
def runs() -> Iterator[Forks]:
    """Runs in processes of their own, forked from one that has imported everything."""
    runs = Forks(Path(__file__).with_name("runs.py"), "-W", "error")
    yield runs
    runs.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundredth of a second between any two looks at the clock, however busy the machine is."""
    monkeypatch.setattr("time.monotonic", itertools.count(0, 0.01).__next__)
