"""Images to work on: the bundled digits and the full MNIST set."""

from torchlift.imaging.digits import Digits, load_digits
from torchlift.imaging.mnist import load_mnist

__all__ = ["Digits", "load_digits", "load_mnist"]
