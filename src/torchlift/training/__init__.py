"""Training of networks: data in batches, phases, records and checkpoints."""

from torchlift.core.progress import Progress
from torchlift.core.signatures import check_calls
from torchlift.training.gradient_step import BackPropagation, SweepDescent
from torchlift.training.history import History, read_history
from torchlift.training.lifted_step import ContrastiveDescent, LiftedDescent
from torchlift.training.metrics import METRICS, Metric, evaluate
from torchlift.training.options import TrainOptions
from torchlift.training.phase import Phase
from torchlift.training.result import Training, TrainingInterrupted
from torchlift.training.starts.initialise import LayerStart, initialise_weights
from torchlift.training.step import Needs, TrainMethod, TrainStep, Work
from torchlift.training.train import train

__all__ = [
    "METRICS",
    "BackPropagation",
    "ContrastiveDescent",
    "History",
    "LayerStart",
    "LiftedDescent",
    "Metric",
    "Needs",
    "Phase",
    "Progress",
    "SweepDescent",
    "TrainMethod",
    "TrainOptions",
    "TrainStep",
    "Training",
    "TrainingInterrupted",
    "Work",
    "evaluate",
    "initialise_weights",
    "read_history",
    "train",
]

check_calls(__name__)
