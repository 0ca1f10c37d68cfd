"""Training of networks: data in batches, phases, records and checkpoints."""

from torchlift.training.gradients import lifted_gradients
from torchlift.training.history import History, read_history
from torchlift.training.methods import TorchOptimiser
from torchlift.training.metrics import METRICS, Metric, evaluate
from torchlift.training.phase import Phase
from torchlift.training.progress import Progress
from torchlift.training.result import Training
from torchlift.training.train import train
from torchlift.training.weights import LayerStart, initialise_weights

__all__ = [
    "METRICS",
    "History",
    "LayerStart",
    "Metric",
    "Phase",
    "Progress",
    "TorchOptimiser",
    "Training",
    "evaluate",
    "initialise_weights",
    "lifted_gradients",
    "read_history",
    "train",
]
