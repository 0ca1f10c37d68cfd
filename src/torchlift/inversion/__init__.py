"""Stable inversion of trained networks: `invert`, its algorithms, its rules for the weight, and error bounds.

| algorithm       | class          | minimises                                              |
|-----------------|----------------|--------------------------------------------------------|
| `"sweep"`       | `Sweep`        | the lifted objective: backward sweeps with momentum    |
| `"paper"`       | `Simultaneous` | the lifted objective: all variables at once            |
| `"exact"`       | `Exact`        | the objective of one layer, with a duality gap         |
| `"nested-adam"` | `NestedAdam`   | ½‖N(x) − y‖² + weight·R(x) by back-propagation          |
| `"nested-pdhg"` | `NestedPDHG`   | the same, with the prior's own proximal maps           |
"""

from __future__ import annotations

from torchlift.inversion.bound import ErrorBound, error_bound
from torchlift.inversion.door import ALGORITHMS
from torchlift.inversion.exact import Exact
from torchlift.inversion.invert import invert
from torchlift.inversion.nested import NestedAdam, NestedPDHG
from torchlift.inversion.problem import InversionProblem
from torchlift.inversion.result import Inversion, WeightTrace
from torchlift.inversion.simultaneous import Simultaneous
from torchlift.inversion.solver import InversionSolver
from torchlift.inversion.state import Status
from torchlift.inversion.sweep import Sweep
from torchlift.inversion.weights import RULES, Discrepancy, LCurve, Sure, WeightRule

__all__ = [
    "ALGORITHMS",
    "RULES",
    "Discrepancy",
    "ErrorBound",
    "Exact",
    "Inversion",
    "InversionProblem",
    "InversionSolver",
    "LCurve",
    "NestedAdam",
    "NestedPDHG",
    "Simultaneous",
    "Status",
    "Sure",
    "Sweep",
    "WeightRule",
    "WeightTrace",
    "error_bound",
    "invert",
]
