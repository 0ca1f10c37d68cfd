"""Linear operators: forward, adjoint, norm bound, matrix, and the algebra of them."""

from torchlift.operators.base import Adjoint, Compose, Context, LinearOperator, Scaled, Sum
from torchlift.operators.blocks import BlockOperator, BlockVector
from torchlift.operators.blur import Blur, gaussian_kernel
from torchlift.operators.convolution import Conv2d, ConvTranspose2d
from torchlift.operators.dense import Dense
from torchlift.operators.diagonal import Diagonal
from torchlift.operators.difference import FiniteDifference
from torchlift.operators.examples import OPERATORS
from torchlift.operators.functional import Functional
from torchlift.operators.mask import Mask
from torchlift.operators.norms import adjoint_error
from torchlift.operators.parameters import DenseRun, OperatorStack
from torchlift.operators.pooling import AveragePool2d
from torchlift.operators.shapes import Identity, Reshape, Zero
from torchlift.operators.transforms import dct_matrix

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
    "Dense",
    "DenseRun",
    "Diagonal",
    "FiniteDifference",
    "Functional",
    "Identity",
    "LinearOperator",
    "Mask",
    "OperatorStack",
    "Reshape",
    "Scaled",
    "Sum",
    "Zero",
    "adjoint_error",
    "dct_matrix",
    "gaussian_kernel",
]
