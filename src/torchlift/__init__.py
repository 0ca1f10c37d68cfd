"""torchlift: lifted training and stable inversion of neural networks.

Every network has the form N(y) = K u + d with M u = V z and z = σ(W u + b).

Every name is loaded when it is first used, so that `torchlift --help` need not wait for torch.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchlift import contrib as contrib
    from torchlift import (
        data,
        functions,
        inversion,
        io,
        liftings,
        networks,
        objective,
        operators,
        parallel,
        prox,
        report,
        solvers,
        sweeps,
        testing,
        training,
    )
    from torchlift import lab as lab
    from torchlift.functions import losses, priors, regularisers
    from torchlift.inversion import invert
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

__version__ = "0.2.0"

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

#: Names that are no subpackages, and where they live.
_HOMES = {
    "torchlift.functions": ("losses", "priors", "regularisers"),
    "torchlift.inversion": ("invert",),
    "torchlift.networks": ("lift",),
    "torchlift.objective": ("Objective",),
    "torchlift.report": ("plot",),
    "torchlift.sweeps": ("Perturbation", "RelativeStep", "sweeping"),
    "torchlift.testing": tuple(name for name in __all__ if name.startswith("check_")),
    "torchlift.training": ("Phase", "TrainOptions", "initialise_weights", "train"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__ and name not in ("contrib", "core", "lab"):
        raise AttributeError(f"module 'torchlift' has no attribute {name!r}{_elsewhere(name)}")
    home = _HOME_OF.get(name, "torchlift.prox" if name[0].isupper() else None)
    value = import_module(f"torchlift.{name}") if home is None else _member(home, name)
    globals()[name] = value
    return value


def _member(home: str, name: str) -> Any:
    """A name of a package, or its subpackage of that name."""
    package = import_module(home)
    return getattr(package, name) if hasattr(package, name) else import_module(f"{home}.{name}")


def _elsewhere(name: str) -> str:
    """Where a name lives that was looked for at the top, for the message."""
    if name[0].isupper():
        for part in __all__:
            room = __getattr__(part) if part[0].islower() else None
            if isinstance(room, ModuleType) and name in getattr(room, "__all__", ()):
                return f". There is torchlift.{part}.{name}"
    return ""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
