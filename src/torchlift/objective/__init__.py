"""The training objective: network + lifting + loss + batch, and the solvers that need to know it is one."""

from torchlift.objective.back_propagation import back_propagate
from torchlift.objective.batches import TrainingBatches
from torchlift.objective.gram_rule import GramRule
from torchlift.objective.nudge import Nudge, NudgeState
from torchlift.objective.objective import Objective
from torchlift.objective.problem import TrainingProblem
from torchlift.objective.relative_step import RelativeStep
from torchlift.objective.report import Report
from torchlift.objective.rules import ScaledStep, SweepRule
from torchlift.objective.sweep import Sweep, backward_sweep
from torchlift.objective.sweep_descent import SweepDescent

__all__ = [
    "GramRule",
    "Nudge",
    "NudgeState",
    "Objective",
    "RelativeStep",
    "Report",
    "ScaledStep",
    "Sweep",
    "SweepDescent",
    "SweepRule",
    "TrainingBatches",
    "TrainingProblem",
    "back_propagate",
    "backward_sweep",
]
