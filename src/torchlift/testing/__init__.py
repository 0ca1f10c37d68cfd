"""What activations, operators, functions, liftings, networks, losses and solvers promise, and functions that check it.

The contract tests run the same checks on everything that is built in. Each
check is a function: its docstring states the promise, and it is tried on
random and on extreme inputs in double precision. A `Report` says in words
what is not kept, with the numbers and an input that shows it.
"""

from torchlift.core.signatures import check_calls
from torchlift.testing.activations import check_activation
from torchlift.testing.functions import check_function
from torchlift.testing.liftings import check_lifting
from torchlift.testing.losses import check_loss
from torchlift.testing.networks import check_network
from torchlift.testing.operators import check_operator
from torchlift.testing.report import ContractError, Finding, Report
from torchlift.testing.solvers import check_solver

__all__ = [
    "ContractError",
    "Finding",
    "Report",
    "check_activation",
    "check_function",
    "check_lifting",
    "check_loss",
    "check_network",
    "check_operator",
    "check_solver",
]

check_calls(__name__)
