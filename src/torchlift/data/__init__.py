"""Data: batches that can be asked for again by number, bundled digits and photographs, imaging tasks and metrics."""

from torchlift.core.signatures import check_calls
from torchlift.data.base import Batch, Batches
from torchlift.data.convert import Data, as_batches, hold_out
from torchlift.data.digits import Digits, load_digits
from torchlift.data.images import load_images, load_photographs, random_phantoms, shepp_logan
from torchlift.data.loader import IterableBatches, LoaderBatches
from torchlift.data.metrics import psnr, ssim
from torchlift.data.mnist import load_mnist
from torchlift.data.patches import Patches, apply_in_tiles, tiles
from torchlift.data.scale import scale_warning
from torchlift.data.tasks import (
    TASKS,
    Deblurring,
    Degraded,
    Denoising,
    Inpainting,
    MagneticResonance,
    SuperResolution,
    Task,
    Tomography,
)
from torchlift.data.tensors import DrawnBatches, TensorBatches

__all__ = [
    "TASKS",
    "Batch",
    "Batches",
    "Data",
    "Deblurring",
    "Degraded",
    "Denoising",
    "Digits",
    "DrawnBatches",
    "Inpainting",
    "IterableBatches",
    "LoaderBatches",
    "MagneticResonance",
    "Patches",
    "SuperResolution",
    "Task",
    "TensorBatches",
    "Tomography",
    "apply_in_tiles",
    "as_batches",
    "hold_out",
    "load_digits",
    "load_images",
    "load_mnist",
    "load_photographs",
    "psnr",
    "random_phantoms",
    "scale_warning",
    "shepp_logan",
    "ssim",
    "tiles",
]

check_calls(__name__)
