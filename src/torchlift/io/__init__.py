"""Runs and models on disk: whole or not at all, verified when read, never unpickled."""

from torchlift.core.signatures import check_calls
from torchlift.io.checkpoints import Checkpoint, Checkpoints
from torchlift.io.models import load_denoiser, load_model, save_model
from torchlift.io.stored import LocalShard, ShardedTensor, Stored, load_tensors, save_tensors, write_index, write_shard

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "LocalShard",
    "ShardedTensor",
    "Stored",
    "load_denoiser",
    "load_model",
    "load_tensors",
    "save_model",
    "save_tensors",
    "write_index",
    "write_shard",
]

check_calls(__name__)
