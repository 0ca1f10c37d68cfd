"""Tiny runs of the experiments: what the contract has finished is read by other tests, not done again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from torchlift.lab.reproduction import Experiment, Work


@pytest.fixture(scope="session")
def finished() -> dict[str, Path]:
    """The parts of tiny runs that are whole, by name of the experiment."""
    return {}


@pytest.fixture(scope="session")
def tiny(finished: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[Experiment], Work]:
    """Work for an experiment at scale tiny in a folder of its own."""

    def work(experiment: Experiment) -> Work:
        folder = tmp_path_factory.mktemp(experiment.name)
        if experiment.name in finished:
            shutil.copytree(finished[experiment.name], folder / "parts")
        return Work("tiny", 0, folder)

    return work
