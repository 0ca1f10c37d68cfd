"""The training objective: network + lifting + loss + batch, and the solvers that need to know it is one."""

from torchlift.objective.batches import TrainingBatches
from torchlift.objective.nudge import Nudge, NudgeState
from torchlift.objective.objective import Objective
from torchlift.objective.problem import TrainingProblem
from torchlift.objective.report import Report
from torchlift.objective.sweep import Sweep, backward_sweep
from torchlift.objective.sweep_descent import SweepDescent

__all__ = [
    "Nudge",
    "NudgeState",
    "Objective",
    "Report",
    "Sweep",
    "SweepDescent",
    "TrainingBatches",
    "TrainingProblem",
    "backward_sweep",
]
