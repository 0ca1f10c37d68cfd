"""Cases for a world of four: a run that is stopped on one mesh and goes on with others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torchlift as tl
from distributed import shapes
from torchlift.distributed import as_mesh
from torchlift.liftings import Bregman
from torchlift.objective import SweepDescent
from torchlift.solvers import Backtracking, Nesterov, ProximalGradient

MESHES = ("data=2,layers=2", "data=4", "layers=4")
STEPS, STOP = 12, 5

RUNS: dict[str, dict[str, Any]] = {
    "lifted": {
        "lifting": Bregman(0.5), "batch_size": "full", "solver": ProximalGradient(Backtracking(), Nesterov()),
    },
    "sweeps": {"batch_size": 10, "solver": SweepDescent()},
}  # fmt: skip


def train(name: str, folder: Path | None = None, **settings: Any) -> tl.training.Training:
    """A run of 12 steps; `callback` stops it in the middle."""
    net = shapes.network("resnet" if name == "lifted" else "mlp")
    options = {"steps": STEPS, "evaluate_every": STOP, "progress": False, "folder": folder, **RUNS[name]}
    return tl.train(net, shapes.data(net, 21), **options, **settings)


def cases(folder: str) -> dict[str, Callable[[], Any]]:
    """`lifted` stops on 2 x 2, `sweeps` on 4 x 1; the folders are copied by the test in between."""
    place, step = Path(folder), (Path(folder) / "stopped").exists()
    if not step:
        return {
            "lifted": partial(_stopped, "lifted", place / "lifted", "data=2,layers=2"),
            "sweeps": partial(_stopped, "sweeps", place / "sweeps", "data=4"),
        }
    found: dict[str, Callable[[], Any]] = {
        f"lifted {mesh}": partial(_resumed, "lifted", place / f"lifted {mesh}", mesh) for mesh in MESHES
    }
    return found | {"sweeps data=4": partial(_resumed, "sweeps", place / "sweeps data=4", "data=4")}


def _stopped(name: str, folder: Path, mesh: str) -> int:
    return train(name, folder, mesh=as_mesh(mesh, timeout=60), callback=lambda row: row["step"] == STOP).steps


def _resumed(name: str, folder: Path, mesh: str) -> list[float]:
    """All parameters at the end, to be compared with those of a run without a break."""
    result = train(name, folder, mesh=as_mesh(mesh, timeout=60), resume=True)
    return [float(entry) for p in result.network.parameters() for entry in p.detach().flatten()]
