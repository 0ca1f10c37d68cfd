"""How long steps and trainings take on machines that are not at hand: a cost model."""

from torchlift.core.signatures import check_calls
from torchlift.lab.planning.back_propagation import data_parallel, pipelined
from torchlift.lab.planning.delay import guessed, steps_needed
from torchlift.lab.planning.forecast import Forecast
from torchlift.lab.planning.late_sweeps import late_sweeps
from torchlift.lab.planning.lifting import lifting
from torchlift.lab.planning.machine import Machine, Passes
from torchlift.lab.planning.plan import METHODS, curves, plan, recommended
from torchlift.lab.planning.work import Work

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
