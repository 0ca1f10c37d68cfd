"""torchlift: lifted training and stable inversion of neural networks.

Every network has the form N(y) = K u + d with M u = V z and z = σ(W u + b).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from torchlift import (
    liftings,
    losses,
    networks,
    operators,
    prox,
)
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
    from torchlift import (
        contracts,
        data,
        engine,
        imaging,
        inversion,
        models,
        objective,
        plot,
        priors,
        records,
        regularisers,
        report,
        reproduce,
        sklearn,
        solvers,
        sweeps,
        training,
    )
    from torchlift import deepinv as deepinv  # not in __all__: `from torchlift import *` must not need the package
    from torchlift.contracts import (
        check_activation,
        check_lifting,
        check_loss,
        check_network,
        check_operator,
        check_solver,
    )
    from torchlift.inversion import invert
    from torchlift.objective import Objective
    from torchlift.sweeps import Perturbation, RelativeStep, sweeping
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
    "check_lifting",
    "check_loss",
    "check_network",
    "check_operator",
    "check_solver",
    "contracts",
    "data",
    "engine",
    "imaging",
    "initialise_weights",
    "inversion",
    "invert",
    "lift",
    "liftings",
    "losses",
    "models",
    "networks",
    "objective",
    "operators",
    "plot",
    "priors",
    "prox",
    "records",
    "regularisers",
    "report",
    "reproduce",
    "sklearn",
    "solvers",
    "sweeping",
    "sweeps",
    "train",
    "training",
]

#: What is loaded when it is first asked for, so that `import torchlift` stays quick, and from where.
_LATER = {
    "contracts": "contracts",
    "check_activation": "contracts",
    "check_lifting": "contracts",
    "check_loss": "contracts",
    "check_network": "contracts",
    "check_operator": "contracts",
    "check_solver": "contracts",
    "data": "data",
    "deepinv": "deepinv",
    "engine": "engine",
    "imaging": "imaging",
    "inversion": "inversion",
    "invert": "inversion",
    "models": "models",
    "objective": "objective",
    "Objective": "objective",
    "plot": "plot",
    "priors": "priors",
    "records": "records",
    "regularisers": "regularisers",
    "report": "report",
    "reproduce": "reproduce",
    "sklearn": "sklearn",
    "solvers": "solvers",
    "sweeps": "sweeps",
    "Perturbation": "sweeps",
    "RelativeStep": "sweeps",
    "sweeping": "sweeps",
    "training": "training",
    "Phase": "training",
    "initialise_weights": "training",
    "TrainOptions": "training",
    "train": "training",
}

use_storage(lambda: cast("Storage", import_module("torchlift.models")))


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'torchlift' has no attribute {name!r}")
    part = import_module(f"torchlift.{_LATER[name]}")
    return part if name == _LATER[name] else getattr(part, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
