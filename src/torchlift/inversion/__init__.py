"""Stable inversion of trained networks: `invert`, its algorithms, its rules for the weight, and error bounds.

| algorithm       | class          | minimises                                              |
|-----------------|----------------|--------------------------------------------------------|
| `"auto"`        | `Automatic`    | the network's objective: sweeps, then the next two      |
| `"quasi-newton"`| `QuasiNewton`  | L(N(x); y) + weight·R(x): L-BFGS, with a smoothed prior |
| `"accelerated"` | `Accelerated`  | the same by accelerated proximal gradient               |
| `"sweep"`       | `Sweep`        | the lifted objective: backward sweeps with momentum    |
| `"paper"`       | `Simultaneous` | the lifted objective: all variables at once            |
| `"exact"`       | `Exact`        | the objective of one layer, with a duality gap         |
| `"nested-adam"` | `NestedAdam`   | the same by Adam, with a smoothed prior                |
| `"nested-pdhg"` | `NestedPDHG`   | the same by primal-dual steps                          |
"""

from __future__ import annotations

from torchlift.core.signatures import check_calls
from torchlift.inversion.accelerated import Accelerated
from torchlift.inversion.automatic import Automatic
from torchlift.inversion.bound import ErrorBound, error_bound
from torchlift.inversion.exact import Exact
from torchlift.inversion.intervals import Calibration, Interval, calibrate
from torchlift.inversion.invert import invert
from torchlift.inversion.lifted import Simultaneous, Sweep
from torchlift.inversion.nested import NestedAdam, NestedPDHG
from torchlift.inversion.problem import InversionProblem
from torchlift.inversion.quasi_newton import QuasiNewton
from torchlift.inversion.result import Inversion, WeightTrace
from torchlift.inversion.solver import InversionSolver, Status
from torchlift.inversion.validation import ALGORITHMS
from torchlift.inversion.weights import RULES, Discrepancy, LCurve, Sure, WeightRule

__all__ = [
    "ALGORITHMS",
    "RULES",
    "Accelerated",
    "Automatic",
    "Calibration",
    "Discrepancy",
    "ErrorBound",
    "Exact",
    "Interval",
    "Inversion",
    "InversionProblem",
    "InversionSolver",
    "LCurve",
    "NestedAdam",
    "NestedPDHG",
    "QuasiNewton",
    "Simultaneous",
    "Status",
    "Sure",
    "Sweep",
    "WeightRule",
    "WeightTrace",
    "calibrate",
    "error_bound",
    "invert",
]

check_calls(__name__)
