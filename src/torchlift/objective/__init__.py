"""The training objective: network + lifting + loss + batch, and the problems that solvers see of it."""

from torchlift.core.signatures import check_calls
from torchlift.objective.batches import TrainingBatches
from torchlift.objective.error_problem import ErrorProblem
from torchlift.objective.objective import Objective
from torchlift.objective.problem import TrainingProblem
from torchlift.objective.report import Report

__all__ = ["ErrorProblem", "Objective", "Report", "TrainingBatches", "TrainingProblem"]

check_calls(__name__)
