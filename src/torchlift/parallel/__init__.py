"""Meshes of processes: what they exchange, which samples and layers each holds, and how they agree.

`Mesh()`, `core.Shard` and `objective.Stage` are a single process, all samples and
all layers; training and solvers see no difference.
"""

from torchlift.core.signatures import check_calls
from torchlift.parallel.agreement import (
    agreed_clock,
    begin_alike,
    check_agreement,
    of_first,
    on_all,
    on_first,
    process_group,
    restarted,
    sync,
    take_over,
)
from torchlift.parallel.checkpoints import ShardedCheckpoints, load_sharded, open_checkpoints
from torchlift.parallel.mail import LateSum, Mail, MeshMail
from torchlift.parallel.mesh import AXES, Mesh, MeshError, Traffic, as_mesh, parse_mesh
from torchlift.parallel.partition import LayerStage, ModuleRange, cut_sequential, stage_of
from torchlift.parallel.problem import ShardedProblem, ShardedTrainingBatches, training_batches, training_problem
from torchlift.parallel.shard import MeshShard, MeshSharing, ShardedBatches, shard_batches, shard_of, split_evenly

__all__ = [
    "AXES",
    "LateSum",
    "LayerStage",
    "Mail",
    "Mesh",
    "MeshError",
    "MeshMail",
    "MeshShard",
    "MeshSharing",
    "ModuleRange",
    "ShardedBatches",
    "ShardedCheckpoints",
    "ShardedProblem",
    "ShardedTrainingBatches",
    "Traffic",
    "agreed_clock",
    "as_mesh",
    "begin_alike",
    "check_agreement",
    "cut_sequential",
    "load_sharded",
    "of_first",
    "on_all",
    "on_first",
    "open_checkpoints",
    "parse_mesh",
    "process_group",
    "restarted",
    "shard_batches",
    "shard_of",
    "split_evenly",
    "stage_of",
    "sync",
    "take_over",
    "training_batches",
    "training_problem",
]

check_calls(__name__)
