"""A training run as a file of settings: read, checked, saved, and turned into data, network and phases."""

from torchlift.cli.settings.data import Samples, load_samples
from torchlift.cli.settings.files import read_configuration, write_configuration
from torchlift.cli.settings.network import build_network
from torchlift.cli.settings.settings import (
    Configuration,
    DataSettings,
    NetworkSettings,
    PhaseSettings,
    TrainingSettings,
)
from torchlift.cli.settings.setup import Setup, prepare, settle
from torchlift.cli.settings.solvers import SOLVERS
from torchlift.cli.settings.training import build_loss, build_phases

__all__ = [
    "SOLVERS",
    "Configuration",
    "DataSettings",
    "NetworkSettings",
    "PhaseSettings",
    "Samples",
    "Setup",
    "TrainingSettings",
    "build_loss",
    "build_network",
    "build_phases",
    "load_samples",
    "prepare",
    "read_configuration",
    "settle",
    "write_configuration",
]
