"""torchlift: lifted training and stable inversion of neural networks.

Every network has the form N(y) = K u + d with M u = V z and z = σ(W u + b).
"""

from torchlift import (
    engine,
    imaging,
    liftings,
    losses,
    networks,
    objective,
    operators,
    plot,
    prox,
    regularisers,
    solvers,
)
from torchlift.networks import lift
from torchlift.objective import Objective
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
    "Objective",
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
    "engine",
    "imaging",
    "lift",
    "liftings",
    "losses",
    "networks",
    "objective",
    "operators",
    "plot",
    "prox",
    "regularisers",
    "solvers",
]
