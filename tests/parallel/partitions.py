"""Cases for a world: chains and batches divided in many ways, and when their parts are exchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, Phase, given, settings
from torch import Tensor

from parallel import shapes
from parallel.meshes import mesh_of
from torchlift.liftings import MACQP, Bregman, Classical, Fenchel, Lifting
from torchlift.networks import MLP
from torchlift.objective import Objective, TrainingProblem
from torchlift.objective.fit import minimise_parameters
from torchlift.objective.problem import Split
from torchlift.parallel import LayerStage, Mesh, MeshShard, ShardedProblem, stage_of
from torchlift.parallel.mesh import Transfer
from torchlift.prox import ProximalActivation
from torchlift.solvers import LinearisedBCD, ProximalGradient, Stopping, solve

#: The same examples on all ranks, and no shrinking, in which ranks could go different ways.
EXAMPLES = settings(
    max_examples=8, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip


def iterates(spec: str) -> tuple[float, list[list[int]], list[list[int]]]:
    """The largest distance of any iterate from that of one process, by rank 0; which layers and samples ranks had."""
    mesh, distances, layers, samples = mesh_of(spec), [], [], []

    @EXAMPLES
    @given(
        st.lists(st.integers(1, 9), min_size=mesh.layers + 2, max_size=8),
        st.lists(st.integers(0, 4), min_size=mesh.data, max_size=mesh.data).filter(any),
        st.sampled_from([Bregman(0.5), Fenchel(0.4), Classical(0.5), MACQP(0.7)]),
        st.sampled_from(["whole", "odd-even", "layers"]),
        st.sampled_from(["forward", "backward", "odd-even", "jacobi"]),
    )
    def compare(widths: list[int], counts: list[int], lifting: Lifting, split: Split, sweep: Any) -> None:
        solver = LinearisedBCD(ProximalGradient(0.05), sweep=sweep)
        y, x = shapes.data(_chain(widths), sum(counts))
        problem = _problem(mesh, Objective(_chain(widths), lifting), y, x, counts, split)
        found = problem.whole(solve(problem, solver, problem.start("input"), stopping=Stopping(4, change=None)).point)
        if dist.get_rank() == 0:  # whose distances are looked at
            alone = TrainingProblem(Objective(_chain(widths), lifting), y, x, split=split)
            expected = solve(alone, solver, alone.start("input"), stopping=Stopping(4, change=None)).point
            distances.extend((a - b).abs().max() for a, b in zip(found.tensors, expected.tensors, strict=True))
        layers.append([b - a for a, b in _rows(problem)])
        samples.append(counts)

    compare()
    return float(torch.stack(distances).max()) if distances else float("nan"), layers, samples


@dataclass(frozen=True)
class Watched(Bregman):
    """Tells when the penalty of a layer is evaluated."""

    events: tuple[Callable[[str], None], ...] = ()

    def gradients(
        self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        self.events[0]("row")
        return super().gradients(activation, z, v, weight)


def order(spec: str) -> list[str]:
    """What happens on this rank in one sweep of all layers and all parameters at the same point."""
    events: list[str] = []
    widths = [5, 6, 6, 6, 6, 6, 6, 3]
    y, x = shapes.data(_chain(widths), 4)
    problem = _problem(mesh_of(spec), Objective(_chain(widths), Watched(0.5, (events.append,))), y, x, [4], "whole")
    solver, start = ProximalGradient(0.05), problem.start()
    state = solver.init(problem, start)
    post, wait = dist.batch_isend_irecv, Transfer.wait

    def posted(operations: Sequence[dist.P2POp]) -> Any:
        events.extend("send" if each.op is dist.isend else "receive" for each in operations)
        return post(list(operations))

    def waited(transfer: Transfer) -> None:
        if transfer.works:
            events.append("wait")
        wait(transfer)

    events.clear()
    with patch.object(dist, "batch_isend_irecv", posted), patch.object(Transfer, "wait", waited):
        solver.step(problem, state)
    return events


def exchanged(spec: str) -> dict[str, list[int]]:
    """Bytes reduced and sent for exact weights, by what is fitted."""
    mesh, found = mesh_of(spec), {}
    for name, lifting, counts in (
        ("sums", Classical(0.5), [9, 8]), ("iterations", Bregman(0.5), [9, 8]), ("few", Classical(0.5), [3, 2])
    ):  # fmt: skip
        y, x = shapes.data(_chain([5, 7, 3]), sum(counts))
        problem = _problem(mesh, Objective(_chain([5, 7, 3]), lifting), y, x, counts, "whole")
        z = problem.states(problem.start("input"))
        sent, reduced = mesh.traffic.sent, mesh.traffic.reduced
        minimise_parameters(problem.objective, problem.y, problem.x, z, 1e-8, shard=problem.shard)
        found[name] = [mesh.traffic.reduced - reduced, mesh.traffic.sent - sent]
    return found


def _chain(widths: list[int]) -> MLP:
    return MLP(widths, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _rows(problem: ShardedProblem) -> list[tuple[int, int]]:
    if not isinstance(problem.stage, LayerStage):
        return [(0, len(problem.whole_objective.layout.shapes))]
    return [layers.layers for layers in problem.stage.ranges]


def _problem(
    mesh: Mesh, objective: Objective, y: Tensor, x: Tensor, counts: Sequence[int], split: Split
) -> ShardedProblem:
    shard = MeshShard(mesh, tuple(counts))
    own = shard.rows
    return ShardedProblem(objective, y[own], x[own], shard, stage_of(objective, mesh), split=split)
