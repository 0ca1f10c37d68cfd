"""How long a step takes on machines that are not at hand: a cost model of lifting and of back-propagation."""

from torchlift.planning.back_propagation import data_parallel, pipelined
from torchlift.planning.forecast import Forecast
from torchlift.planning.lifting import lifting
from torchlift.planning.machine import Machine, Passes
from torchlift.planning.plan import WAYS, curves, plan
from torchlift.planning.work import Work

__all__ = ["WAYS", "Forecast", "Machine", "Passes", "Work", "curves", "data_parallel", "lifting", "pipelined", "plan"]
