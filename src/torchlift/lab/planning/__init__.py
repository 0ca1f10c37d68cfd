"""How long steps and trainings take on machines that are not at hand: a cost model."""

from torchlift.core.signatures import check_calls
from torchlift.lab.planning.forecast import Forecast, Work
from torchlift.lab.planning.machine import Machine, Passes
from torchlift.lab.planning.methods import data_parallel, guessed, late_sweeps, lifting, pipelined, steps_needed
from torchlift.lab.planning.plan import METHODS, curves, plan, recommended

__all__ = [
    "METHODS",
    "Forecast",
    "Machine",
    "Passes",
    "Work",
    "curves",
    "data_parallel",
    "guessed",
    "late_sweeps",
    "lifting",
    "pipelined",
    "plan",
    "recommended",
    "steps_needed",
]

check_calls(__name__)
