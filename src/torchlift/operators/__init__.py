"""Linear operators: forward, adjoint, norm bound, matrix, and the algebra of them."""

from torchlift.core.signatures import check_calls
from torchlift.operators.base import Adjoint, Compose, Context, LinearOperator, Scaled, Sum
from torchlift.operators.blocks import BlockOperator, BlockVector
from torchlift.operators.convolution import AveragePool2d, Conv2d, ConvTranspose2d, filter_norm
from torchlift.operators.difference import FiniteDifference
from torchlift.operators.elementary import Dense, Diagonal, Identity, Reshape, Zero
from torchlift.operators.examples import OPERATORS
from torchlift.operators.imaging import Blur, DownSample, Mask, Radon, gaussian_kernel
from torchlift.operators.norms import adjoint_error
from torchlift.operators.parameters import DenseRun, OperatorStack
from torchlift.operators.physics import Functional
from torchlift.operators.transforms import (
    CosineTransform,
    Fourier,
    Separable,
    WaveletTransform,
    convolutional_dictionary,
    cosine_filters,
    dct_matrix,
)

__all__ = [
    "OPERATORS",
    "Adjoint",
    "AveragePool2d",
    "BlockOperator",
    "BlockVector",
    "Blur",
    "Compose",
    "Context",
    "Conv2d",
    "ConvTranspose2d",
    "CosineTransform",
    "Dense",
    "DenseRun",
    "Diagonal",
    "DownSample",
    "FiniteDifference",
    "Fourier",
    "Functional",
    "Identity",
    "LinearOperator",
    "Mask",
    "OperatorStack",
    "Radon",
    "Reshape",
    "Scaled",
    "Separable",
    "Sum",
    "WaveletTransform",
    "Zero",
    "adjoint_error",
    "convolutional_dictionary",
    "cosine_filters",
    "dct_matrix",
    "filter_norm",
    "gaussian_kernel",
]

check_calls(__name__)
