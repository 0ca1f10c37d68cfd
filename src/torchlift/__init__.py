"""torchlift: lifted training and stable inversion of neural networks.

Every network has the form N(y) = K u + d with M u = V z and z = σ(W u + b).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from torchlift import (
    functions,
    liftings,
    networks,
    operators,
    prox,
)
from torchlift.functions import losses
from torchlift.networks import lift
from torchlift.networks.base import Storage, use_storage
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

if TYPE_CHECKING:
    from torchlift import contrib as contrib
    from torchlift import data, inversion, io, objective, parallel, report, solvers, sweeps, testing, training
    from torchlift import lab as lab
    from torchlift.functions import priors, regularisers
    from torchlift.inversion import invert
    from torchlift.objective import Objective
    from torchlift.report import plot
    from torchlift.sweeps import Perturbation, RelativeStep, sweeping
    from torchlift.testing import (
        check_activation,
        check_function,
        check_lifting,
        check_loss,
        check_network,
        check_operator,
        check_solver,
    )
    from torchlift.training import Phase, TrainOptions, initialise_weights, train

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
    "Perturbation",
    "Phase",
    "ReLU",
    "ReLU6",
    "RelativeStep",
    "Sigmoid",
    "Simplex",
    "SoftThreshold",
    "Softmax",
    "Softplus",
    "Softsign",
    "Squareplus",
    "Tanh",
    "TrainOptions",
    "check_activation",
    "check_function",
    "check_lifting",
    "check_loss",
    "check_network",
    "check_operator",
    "check_solver",
    "data",
    "functions",
    "initialise_weights",
    "inversion",
    "invert",
    "io",
    "lift",
    "liftings",
    "losses",
    "networks",
    "objective",
    "operators",
    "parallel",
    "plot",
    "priors",
    "prox",
    "regularisers",
    "report",
    "solvers",
    "sweeping",
    "sweeps",
    "testing",
    "train",
    "training",
]

#: What is loaded when it is first asked for, so that `import torchlift` stays quick, and from where.
_LATER = {
    "check_activation": "testing",
    "check_function": "testing",
    "check_lifting": "testing",
    "check_loss": "testing",
    "check_network": "testing",
    "check_operator": "testing",
    "check_solver": "testing",
    "invert": "inversion",
    "Objective": "objective",
    "Perturbation": "sweeps",
    "RelativeStep": "sweeps",
    "sweeping": "sweeps",
    "Phase": "training",
    "initialise_weights": "training",
    "TrainOptions": "training",
    "train": "training",
    "plot": "report",
    "priors": "functions",
    "regularisers": "functions",
    "contrib": "",
    "data": "",
    "inversion": "",
    "io": "",
    "lab": "",
    "objective": "",
    "parallel": "",
    "report": "",
    "solvers": "",
    "sweeps": "",
    "testing": "",
    "training": "",
}

use_storage(lambda: cast("Storage", import_module("torchlift.io")))


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'torchlift' has no attribute {name!r}")
    home = _LATER[name]
    if not home:
        return import_module(f"torchlift.{name}")
    if home in ("functions", "report"):
        return import_module(f"torchlift.{home}.{name}")
    return getattr(import_module(f"torchlift.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
