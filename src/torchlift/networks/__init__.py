"""Architectures in the form N(y) = K u + d, M u = V z, z = σ(W u + b)."""

from torchlift.core.signatures import check_calls
from torchlift.networks.base import Network
from torchlift.networks.chain import Chain
from torchlift.networks.denoisers import DDFB, FirmDenoiser, ScCP
from torchlift.networks.feedforward import MLP, Linear, Perceptron, ResNet, Shallow
from torchlift.networks.form import ForwardStates, FusedRow, UnifiedForm, assemble
from torchlift.networks.graph import GraphNetwork
from torchlift.networks.lifting import lift
from torchlift.networks.modules import TABLEAUS, Residual, RungeKutta, Tableau
from torchlift.networks.unrolled_algorithms import LISTA, PrimalDual

#: Architectures by name; the contract suite runs on each.
NETWORKS: dict[str, type[Network]] = {
    cls.__name__: cls for cls in (Perceptron, Shallow, MLP, ResNet, LISTA, PrimalDual, DDFB, ScCP, FirmDenoiser, Chain)
}

__all__ = [
    "DDFB",
    "LISTA",
    "MLP",
    "NETWORKS",
    "TABLEAUS",
    "Chain",
    "FirmDenoiser",
    "ForwardStates",
    "FusedRow",
    "GraphNetwork",
    "Linear",
    "Network",
    "Perceptron",
    "PrimalDual",
    "ResNet",
    "Residual",
    "RungeKutta",
    "ScCP",
    "Shallow",
    "Tableau",
    "UnifiedForm",
    "assemble",
    "lift",
]

check_calls(__name__)
