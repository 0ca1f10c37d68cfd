"""Cases for a world of four: runs that are stopped on one mesh and go on with others, and checkpoints that break."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import torchlift as tl
from parallel import shapes
from torchlift.io import Checkpoints
from torchlift.liftings import Bregman
from torchlift.parallel import Mesh, as_mesh
from torchlift.parallel import mesh as exchanges
from torchlift.solvers import (
    Backtracking,
    BlockCoordinateDescent,
    LinearisedBCD,
    Nesterov,
    ProximalGradient,
)
from torchlift.training import SweepDescent
from training.runs import called

STEPS, STOP = 8, 4

RUNS: dict[str, dict[str, Any]] = {
    "lifted": {
        "lifting": Bregman(0.5), "batch_size": "full", "solver": ProximalGradient(Backtracking(), Nesterov()),
    },
    "blocks": {"lifting": Bregman(0.5), "batch_size": "full", "solver": BlockCoordinateDescent(inner_steps=2)},
    "learned": {"lifting": Bregman(0.5), "batch_size": "full", "solver": ProximalGradient(Backtracking())},
    "sweeps": {"batch_size": 10, "solver": SweepDescent()},
    "module": {"batch_size": 10},
    "narrow": {"batch_size": 10},
    "Adam": {"batch_size": 10, "solver": torch.optim.Adam},
    "warm": {
        "lifting": Bregman(), "batch_size": 10, "states": "warm", "solver": LinearisedBCD(ProximalGradient(0.05)),
    },
}  # fmt: skip

OWN_NETWORK = ("module", "learned", "narrow")
"""Runs of the network that they are called by."""

#: (run, where it is stopped, where it goes on); "alone" is one process without a mesh.
MOVES = (
    ("lifted", "data=2,layers=2", "data=2,layers=2"),
    ("lifted", "data=2,layers=2", "data=4"),
    ("lifted", "data=2,layers=2", "layers=4"),
    ("lifted", "data=2,layers=2", "alone"),
    ("lifted", "alone", "data=2,layers=2"),
    ("blocks", "layers=4", "data=2,layers=2"),
    ("learned", "layers=4", "layers=4"),
    ("learned", "data=2,layers=2", "alone"),
    ("learned", "alone", "layers=4"),
    ("sweeps", "data=4", "alone"),
    ("sweeps", "alone", "data=4"),
    ("module", "data=4", "alone"),
    ("module", "data=4", "data=4"),
    ("narrow", "data=4", "data=4"),
    ("narrow", "data=4", "alone"),
    ("Adam", "data=4", "alone"),
    ("warm", "data=4", "data=4"),
    ("warm", "data=4", "alone"),
    ("warm", "alone", "data=4"),
)


def train(name: str, folder: Path | None = None, **settings: Any) -> tl.training.Training:
    """A run of eight steps, three to an epoch; `callback` stops it in the middle."""
    net = shapes.network(
        {"lifted": "resnet", "module": "module", "learned": "learned", "narrow": "narrow"}.get(name, "mlp")
    )
    options = {"steps": STEPS, "evaluate_every": STOP, "progress": False, "folder": folder, **RUNS[name]}
    return tl.train(net, shapes.data(net, 21), **called(options | settings))


def stop(name: str, folder: Path, mesh: Mesh | None = None) -> int:
    return train(name, folder, mesh=mesh, callback=lambda row: row["step"] == STOP).steps


def parameters(result: tl.training.Training) -> list[float]:
    return [float(entry) for p in result.network.parameters() for entry in p.detach().flatten()]


def place(folder: Path, name: str, mesh: str) -> Path:
    return folder / f"{name} {mesh}"


def cases(folder: str) -> dict[str, Callable[[], Any]]:
    root = Path(folder)
    exchanges.WORTH = 0  # these layers are all small, and are to be divided too
    found: dict[str, Callable[[], Any]] = {}
    for name, mesh in dict.fromkeys((name, mesh) for name, mesh, _ in MOVES if mesh != "alone"):
        found[f"stop {name} {mesh}"] = partial(_stop, name, place(root, name, mesh), mesh)
    for name, before, after in MOVES:
        if after != "alone":
            found[f"{name}: {before} to {after}"] = partial(_resume, name, place(root, name, before), after)
    return found | {
        "damaged": partial(_damaged, root / "damaged"),
        "all damaged": partial(_all_damaged, root / "damaged"),
        "full disk": partial(_full_disk, root / "full"),
        "kept": partial(_kept, root / "kept"),
    }


_MESHES: dict[str, Mesh] = {}


def _mesh(spec: str) -> Mesh:
    if spec not in _MESHES:
        _MESHES[spec] = as_mesh(spec, timeout=60)
    return _MESHES[spec]


def _stop(name: str, folder: Path, mesh: str) -> int:
    return stop(name, folder, _mesh(mesh))


def _resume(name: str, folder: Path, mesh: str) -> list[float]:
    """All parameters at the end, to be compared with those of a run without a break."""
    copy = folder.with_name(f"{folder.name} to {mesh}")
    if dist.get_rank() == 0:
        shutil.copytree(folder, copy)
    dist.barrier()
    return parameters(train(name, copy, mesh=_mesh(mesh), resume=True))


def _every_step(folder: Path, **settings: Any) -> tl.training.Training:
    options = {"checkpoint_every": 0.0, "mesh": _mesh("data=2,layers=2"), **settings}
    return train("lifted", folder, **options)


def _damaged(folder: Path) -> tuple[str, list[float]]:
    """Of two checkpoints the newer one has a shard in which a bit is wrong."""
    _every_step(folder, callback=lambda row: row["step"] == STOP)
    _flip(folder / "checkpoints" / f"step-{STOP:08d}" / "shard-00004-of-00004.safetensors")
    result = _every_step(folder, resume=True)
    return result.message, parameters(result)


def _all_damaged(folder: Path) -> None:
    """One shard is gone, another is torn; the run of `_damaged` has left two checkpoints."""
    last, before = sorted((folder / "checkpoints").glob("step-*"), reverse=True)
    dist.barrier()
    if dist.get_rank() == 0:
        (last / "shard-00002-of-00004.safetensors").unlink()
        os.truncate(before / "shard-00003-of-00004.safetensors", 40)
    dist.barrier()
    _every_step(folder, resume=True)


def _full_disk(folder: Path) -> list[str]:
    """The last process has no room for the second checkpoint; the first one stays and nothing is left over."""
    honest, calls = os.fsync, 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OSError(28, os.strerror(28))
        honest(descriptor)

    os.fsync = full if dist.get_rank() == 3 else honest
    try:
        _every_step(folder)
    except Exception as error:
        said = str(error)
    else:
        said = "no failure"
    finally:
        os.fsync = honest
    dist.barrier()
    return [said, *sorted(path.name for path in (folder / "checkpoints").iterdir())]


def _kept(folder: Path) -> list[Any]:
    """Three stay; a single process reads and prunes them as its own."""
    _every_step(folder, keep=3)
    dist.barrier()
    return [*Checkpoints(folder / "checkpoints").steps(), Checkpoints(folder / "checkpoints").load().step]


def _flip(file: Path) -> None:
    dist.barrier()
    if dist.get_rank() == 0:
        content = bytearray(file.read_bytes())
        content[-3] ^= 1
        file.write_bytes(content)
    dist.barrier()
