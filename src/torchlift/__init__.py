"""torchlift: lifted training and stable inversion of neural networks.

Every network has the form N(y) = K u + d with M u = V z and z = σ(W u + b).
"""

from torchlift import imaging, networks, operators, plot, prox
from torchlift.networks import lift
from torchlift.prox import (
    CELU,
    ELU,
    ISRU,
    Arctan,
    Box,
    GroupSoftThreshold,
    Hardtanh,
    Identity,
    L2Ball,
    LeakyReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    Simplex,
    Softmax,
    Softplus,
    Softsign,
    SoftThreshold,
    Squareplus,
    Tanh,
)

__version__ = "0.1.0"

__all__ = [
    "CELU",
    "ELU",
    "ISRU",
    "Arctan",
    "Box",
    "GroupSoftThreshold",
    "Hardtanh",
    "Identity",
    "L2Ball",
    "LeakyReLU",
    "ReLU",
    "ReLU6",
    "Sigmoid",
    "Simplex",
    "SoftThreshold",
    "Softmax",
    "Softplus",
    "Softsign",
    "Squareplus",
    "Tanh",
    "imaging",
    "lift",
    "networks",
    "operators",
    "plot",
    "prox",
]
