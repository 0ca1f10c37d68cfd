"""Networks and data that the cases of all worlds share, small and in double precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchlift.networks import MLP, Chain, ResNet, lift
from torchlift.prox import SoftThreshold
from torchlift.prox.base import ActivationModule

NETWORKS = ("mlp", "resnet", "convolutional")


class Module(nn.Module):
    """One that is not of this library: functions, a shortcut, a normalisation, shared parameters."""

    in_shape, out_shape = (1, 4, 4), (2,)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.norm, self.out = nn.LayerNorm(48), nn.Linear(48, 2)
        self.double()

    def forward(self, y: Tensor) -> Tensor:
        u = self.first(y).relu()
        u = u + torch.tanh(self.again(u))
        u = u + torch.tanh(self.again(u))
        return self.out(nn.functional.softplus(self.norm(u.flatten(1))))


class Flat(nn.Sequential):
    """Units that hardly respond, so that they are probed further, and some depth behind them."""

    in_shape, out_shape = (5,), (3,)

    def __init__(self) -> None:
        layers = [part for _ in range(2) for part in (nn.Linear(8, 8), nn.ReLU())]
        super().__init__(nn.Linear(5, 30), nn.Softshrink(1.8), nn.Linear(30, 8), nn.Tanh(), *layers, nn.Linear(8, 3))
        self.double()


class Narrow(nn.Sequential):
    """Matrices whose steps are orthogonalised, one of them frozen."""

    in_shape, out_shape = (5,), (3,)

    def __init__(self) -> None:
        parts = [part for _ in range(4) for part in (nn.Linear(17, 17), nn.Tanh())]
        super().__init__(nn.Linear(5, 17), nn.Tanh(), *parts, nn.Linear(17, 3))
        self[4].requires_grad_(False)
        self.double()


def network(kind: str, seed: int = 1, scale: float = 1.0) -> Any:
    """Four layers or more, so that four processes have one each; parameters times a factor."""
    chosen = _network(kind, seed)
    with torch.no_grad():
        for parameter in chosen.parameters():
            parameter.mul_(scale)
    return chosen


def _network(kind: str, seed: int) -> Chain | Module | Flat | Narrow:
    generator = torch.Generator().manual_seed(seed)
    if kind == "mlp":
        return MLP([5, 7, 7, 4, 7, 3], generator=generator, dtype=torch.float64)
    if kind == "resnet":
        return ResNet(5, [4, 6, 4, 3], 2, activation="tanh", generator=generator, dtype=torch.float64)
    torch.manual_seed(seed)
    if kind == "learned":  # a threshold in each of four layers
        parts = [p for n in (5, 4, 4, 4) for p in (nn.Linear(n, 4), ActivationModule(_soft_threshold()))]
        return lift(nn.Sequential(*parts, nn.Linear(4, 2)).double(), (5,))
    if kind in (others := {"module": Module, "flat": Flat, "narrow": Narrow}):
        return others[kind]()
    modules = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(),
        nn.Conv2d(2, 1, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2),
    )  # fmt: skip
    return lift(modules.double(), (1, 4, 4))


def _soft_threshold() -> SoftThreshold:
    return SoftThreshold(nn.Parameter(torch.tensor(0.05, dtype=torch.float64)))


def data(net: Chain | Module | Flat | Narrow, samples: int, seed: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(samples, *net.in_shape, generator=generator, dtype=torch.float64)
    return y, torch.randn(samples, *net.out_shape, generator=generator, dtype=torch.float64)


def distance(one: nn.Module, other: nn.Module) -> float:
    """The largest difference of any two parameters."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def checksum(net: nn.Module) -> float:
    return sum(float(p.detach().abs().sum()) for p in net.parameters())
