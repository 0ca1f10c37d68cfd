"""The training objective: network + lifting + loss + batch."""

from torchlift.objective.objective import Objective
from torchlift.objective.problem import TrainingBatches, TrainingProblem
from torchlift.objective.report import Report

__all__ = ["Objective", "Report", "TrainingBatches", "TrainingProblem"]
