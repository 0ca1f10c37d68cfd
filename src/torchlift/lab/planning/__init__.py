"""How long steps and trainings take on machines that are not at hand: a cost model."""

from torchlift.core.signatures import check_calls
from torchlift.lab.planning.machine import Forecast, Machine, Passes, Work
from torchlift.lab.planning.plan import (
    METHODS,
    curves,
    data_parallel,
    guessed,
    late_sweeps,
    lifting,
    pipelined,
    plan,
    recommended,
    steps_needed,
)

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
