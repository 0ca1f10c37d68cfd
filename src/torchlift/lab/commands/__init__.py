"""Subcommands of the laboratory."""

from torchlift.cli.command import Command
from torchlift.lab.commands.bench_distributed import BenchDistributed
from torchlift.lab.commands.bench_inversion import BenchInversion
from torchlift.lab.commands.bench_layers import BenchLayers
from torchlift.lab.commands.bench_solvers import BenchSolvers
from torchlift.lab.commands.bench_step import BenchStep
from torchlift.lab.commands.bench_training import BenchTraining
from torchlift.lab.commands.plan import Plan
from torchlift.lab.commands.reproduce import Reproduce
from torchlift.lab.commands.soak import Soak

COMMANDS: dict[str, type[Command]] = {
    command.name: command
    for command in (
        Reproduce,
        Plan,
        BenchDistributed,
        BenchInversion,
        BenchLayers,
        BenchSolvers,
        BenchStep,
        BenchTraining,
        Soak,
    )
}
"""By name."""
