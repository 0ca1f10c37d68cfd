"""How long a step takes on machines that are not at hand: a cost model of lifting and of back-propagation."""

from torchlift.core.signatures import check_calls
from torchlift.lab.planning.back_propagation import data_parallel, pipelined
from torchlift.lab.planning.forecast import Forecast
from torchlift.lab.planning.lifting import lifting
from torchlift.lab.planning.machine import Machine, Passes
from torchlift.lab.planning.plan import METHODS, curves, plan
from torchlift.lab.planning.work import Work

__all__ = [
    "METHODS",
    "Forecast",
    "Machine",
    "Passes",
    "Work",
    "curves",
    "data_parallel",
    "lifting",
    "pipelined",
    "plan",
]

check_calls(__name__)
