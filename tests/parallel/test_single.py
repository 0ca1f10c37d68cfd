"""One process is a mesh of size one: every exchange gives back what it was given."""

from __future__ import annotations

import torch

from torchlift.core.shard import WHOLE
from torchlift.data import as_batches
from torchlift.liftings import Bregman
from torchlift.networks import MLP
from torchlift.objective import Objective, TrainingBatches, TrainingProblem
from torchlift.objective.stage import Stage
from torchlift.parallel import (
    Mesh,
    MeshShard,
    agreed_clock,
    as_mesh,
    of_first,
    on_all,
    on_first,
    shard_batches,
    stage_of,
    training_batches,
    training_problem,
)

MESH = Mesh()
X = torch.arange(6.0).view(3, 2)


def test_a_mesh_of_one_exchanges_nothing() -> None:
    assert (MESH.size, MESH.rank, MESH.first, str(MESH)) == (1, 0, True, "data=1,layers=1")
    assert as_mesh(None).size == 1
    assert MESH.neighbour(1) is None and MESH.neighbour(-1) is None
    assert MESH.sum_numbers([1.5, 2.0]) == [1.5, 2.0]
    assert torch.equal(MESH.sum_(X.clone()), X)
    assert [tensor is X for tensor in MESH.gather(X, "data")] == [True]
    assert MESH.texts("one") == ["one"]
    assert MESH.any(True) and not MESH.any(False)
    assert on_first(MESH, lambda: 3) == 3
    assert on_all(MESH, lambda: 3) == [3]
    assert of_first(MESH, {"loss": 0.5}) == {"loss": 0.5}
    assert agreed_clock(MESH, lambda: 7.0)() == 7.0
    assert MESH.traffic.calls == 0


def test_the_shard_of_one_process_is_the_whole_batch() -> None:
    """`WHOLE` and the shard of a mesh of one say the same."""
    for shard in (WHOLE, MeshShard(MESH, (3,))):
        assert shard.whole and shard.counted and shard.scale == 1.0
        assert shard.samples(X) == 3
        assert shard.sum([1.5, 2.0]) == [1.5, 2.0]
        assert shard.gather(X) is X
        mean = X.clone()
        shard.mean_(mean)
        shard.sum_(mean)
        assert torch.equal(mean, X) and torch.equal(shard.mean(X), X)
    assert WHOLE.sharing() is None
    assert WHOLE.which(True) == ""


def test_one_process_gets_the_plain_problems() -> None:
    objective = Objective(MLP([2, 4, 2], generator=torch.Generator().manual_seed(0)), Bregman())
    batches = as_batches((X, X), batch_size=3)
    assert shard_batches(batches, MESH) is batches
    assert type(stage_of(objective, MESH)) is Stage
    assert type(training_problem(objective, batches, MESH)) is TrainingProblem
    assert type(training_batches(objective, batches, MESH)) is TrainingBatches
