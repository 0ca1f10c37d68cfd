"""The meshes of a world, each made once: every one has groups of its own."""

from __future__ import annotations

from torchlift.parallel import Mesh, as_mesh

MESHES = {
    1: ("data=1,layers=1",),
    2: ("data=2,layers=1", "data=1,layers=2"),
    4: ("data=2,layers=2", "data=1,layers=4", "data=4,layers=1"),
}

MADE: dict[str, Mesh] = {}


def mesh_of(spec: str) -> Mesh:
    if spec not in MADE:
        MADE[spec] = as_mesh(spec, timeout=60)
    return MADE[spec]
