"""Images to work on, the inverse problems made of them, and how good a result is."""

from torchlift.imaging.digits import Digits, load_digits
from torchlift.imaging.metrics import psnr, ssim
from torchlift.imaging.mnist import load_mnist
from torchlift.imaging.tasks import TASKS, Deblurring, Degraded, Denoising, Inpainting, Task

__all__ = [
    "TASKS",
    "Deblurring",
    "Degraded",
    "Denoising",
    "Digits",
    "Inpainting",
    "Task",
    "load_digits",
    "load_mnist",
    "psnr",
    "ssim",
]
