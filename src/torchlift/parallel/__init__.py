"""Many processes as one: a mesh of them, what they exchange, and how they agree. One process needs nothing of this."""

from torchlift.parallel.agreement import agreed_clock, check_agreement, on_all, on_first
from torchlift.parallel.launch import process_group, restarted
from torchlift.parallel.mesh import AXES, Mesh, MeshError, Traffic, as_mesh, parse_mesh
from torchlift.parallel.share import Share, shares
from torchlift.parallel.sharing import MeshSharing

__all__ = [
    "AXES",
    "Mesh",
    "MeshError",
    "MeshSharing",
    "Share",
    "Traffic",
    "agreed_clock",
    "as_mesh",
    "check_agreement",
    "on_all",
    "on_first",
    "parse_mesh",
    "process_group",
    "restarted",
    "shares",
]
