"""Training data of every kind as numbered batches that can be asked for again."""

from torchlift.data.base import Batch, Batches
from torchlift.data.convert import Data, as_batches
from torchlift.data.drawn import DrawnBatches
from torchlift.data.iterable import IterableBatches
from torchlift.data.loader import LoaderBatches
from torchlift.data.scale import scale_warning
from torchlift.data.tensors import TensorBatches

__all__ = [
    "Batch",
    "Batches",
    "Data",
    "DrawnBatches",
    "IterableBatches",
    "LoaderBatches",
    "TensorBatches",
    "as_batches",
    "scale_warning",
]
