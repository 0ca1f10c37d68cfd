"""Cases for a world: gradients that are summed while the way back goes on, and work that is divided."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from parallel import shapes
from parallel.meshes import mesh_of
from torchlift.functions.losses import SquaredError
from torchlift.networks.dense_chain import DenseForm
from torchlift.parallel import Mesh, MeshShard
from torchlift.parallel import mesh as exchanges
from torchlift.parallel.gradients import backward
from torchlift.sweeps import Perturbation, dense_chain
from torchlift.sweeps.orthogonal import orthogonal_directions

#: Bytes from which on a tensor is summed alone in these cases: eight numbers.
LARGE = 64


class Layers(nn.Module):
    """Layers from 5 to 5 units, used in an order that a subclass says."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(count))
        self.double()

    def forward(self, y: Tensor) -> Tensor:
        for layer in self.layers:
            y = torch.tanh(layer(y))
        return y


class Boundaries(nn.Module):
    """Gradients just below, at and above the size of a message, and one that is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.randn(n, dtype=torch.float64) for n in (3, 4, 7, 1, 8, 9, 8, 1, 1))
        self.turned = nn.Parameter(torch.randn(4, 5, dtype=torch.float64).T)

    def forward(self, y: Tensor) -> Tensor:
        u = y @ self.turned
        return torch.cat([u.sum(1, keepdim=True) * part.sin() for part in self.parts], 1)


class Branches(Layers):
    """Samples of this process decide which layer comes first."""

    def forward(self, y: Tensor) -> Tensor:
        first, second, last = self.layers if dist.get_rank() == 0 else (self.layers[1], self.layers[0], self.layers[2])
        return last(torch.tanh(second(torch.tanh(first(y)))))


class Unused(Layers):
    """Nothing reaches the second layer."""

    def forward(self, y: Tensor) -> Tensor:
        return self.layers[2](torch.tanh(self.layers[0](y)))


class Repeated(Layers):
    """A checkpoint goes back inside of the way back, to a layer that has had a gradient already."""

    def forward(self, y: Tensor) -> Tensor:
        again = self.layers[1]
        inside: Any = checkpoint(lambda u: torch.tanh(again(u)), self.layers[0](y), use_reentrant=True)
        return again(torch.tanh(self.layers[2](inside)))


def _normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5)).double()


def _frozen() -> nn.Module:
    module = Layers()
    module.layers[1].requires_grad_(False)
    return module


MODULES: dict[str, Callable[[], nn.Module]] = {
    "layers": Layers, "boundaries": Boundaries, "shared weights": lambda: shapes.network("module"),
    "branches": Branches, "no gradient": Unused, "checkpoint": Repeated, "frozen": _frozen, "batch norm": _normalised,
}  # fmt: skip


def cases() -> dict[str, Callable[[], Any]]:
    made: dict[str, Callable[[], Any]] = {}
    for name in MODULES:
        for counts in ((3, 2), (4, 0)):
            made[f"summed {name} {counts}"] = partial(_small, partial(_summed, name, counts))
    made["order"] = partial(_small, _order)
    made["divided"] = _divided
    return made


def _small(case: Callable[[], Any]) -> Any:
    with patch.object(exchanges, "LARGE", LARGE):
        return case()


def _summed(name: str, counts: tuple[int, int]) -> tuple[float, list[str]]:
    """The distance from gradients that are summed one by one at the end, and what happened when."""
    torch.manual_seed(2)
    module, shard = MODULES[name](), MeshShard(_mesh(), counts)
    y = torch.randn(sum(counts), *getattr(module, "in_shape", (5,)), dtype=torch.float64)
    y = y[shard.rows] if shard.counted else torch.full_like(y[:2], torch.nan)  # which counts for nothing
    if name == "batch norm" and shard.counted:
        y = torch.cat([y, -y])  # it refuses a sample that is alone
    module(y).square().mean().backward()
    expected = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
    for gradient in (gradient for gradient in expected if gradient is not None):
        total = gradient.contiguous() if shard.counted else torch.zeros_like(gradient).contiguous()
        dist.all_reduce(total)
        gradient.copy_(total)
    module.zero_grad()

    events: list[str] = []
    y = y.requires_grad_()
    y.register_hook(lambda _: events.append("end"))
    with patch.object(dist, "all_reduce", _telling(events)):
        loss = module(y).square().mean()
        backward(loss, module.parameters(), shard)
    assert all(not parameter._post_accumulate_grad_hooks for parameter in module.parameters())
    found = [parameter.grad for parameter in module.parameters()]
    assert [gradient is None for gradient in found] == [gradient is None for gradient in expected]
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if a is not None and b is not None]
    return max(float((a - b).abs().max()) for a, b in pairs), events


def _order() -> list[str]:
    """What happens in a sweep through a chain of dense layers."""
    torch.manual_seed(2)
    module = nn.Sequential(*[part for _ in range(3) for part in (nn.Linear(5, 5), nn.ReLU())], nn.Linear(5, 5)).double()
    form = DenseForm.of(module)
    assert form is not None
    y = torch.randn(4, 5, dtype=torch.float64)
    shard = MeshShard(_mesh(), (2, 2))
    events: list[str] = []
    weight, wait = dense_chain._differentiate_weight, exchanges.Sums.wait

    def made(*arguments: Any) -> None:
        events.append("gradient")
        weight(*arguments)

    def waited(sums: exchanges.Sums) -> None:
        events.append("wait")
        wait(sums)

    with (
        patch.object(dist, "all_reduce", _telling(events)),
        patch.object(dense_chain, "_differentiate_weight", made),
        patch.object(exchanges.Sums, "wait", waited),
    ):
        loss = lambda u: SquaredError().mean(u, torch.ones_like(u)) * shard.scale  # noqa: E731
        dense_chain.differentiate_dense_chain(
            y[shard.rows], form.stacks(), form.activations, Perturbation(), shard, loss
        )
    return events


def _divided() -> list[Any]:
    """Distances of what is made together from what one makes alone, and how many tensors this process has made."""
    torch.manual_seed(2)
    mesh, answers = _mesh(), []
    for sizes in ([3], [4, 2], [2, 7, 2], [5, 1, 1, 1, 2]):
        tensors = [torch.randn(n, 4, 3, dtype=torch.float64) for n in sizes]
        made: list[int] = []

        def turn(chosen: list[Tensor], made: list[int] = made) -> list[Tensor]:
            made.append(len(chosen))
            return orthogonal_directions(chosen)

        with patch.object(exchanges, "WORTH", 0):
            found = mesh.divide(turn, tensors, "data")
        expected = orthogonal_directions(tensors)
        answers.append([max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True)), sum(made)])
        mesh.divide(turn, tensors, "data")  # too little to be divided
        answers[-1].append(made[-1])
    return answers


def _telling(events: list[str]) -> Callable[..., Any]:
    honest = dist.all_reduce

    def told(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
        events.append("numbers" if tensor.numel() <= 2 else "sum")
        return honest(tensor, *arguments, **options)

    return told


def _mesh() -> Mesh:
    return mesh_of("data=2,layers=1")
