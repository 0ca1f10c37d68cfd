"""Runs and models on disk: whole or not at all, verified when read, never unpickled."""

from torchlift.checkpoint.checkpoints import Checkpoint, Checkpoints
from torchlift.checkpoint.pair import load_tensors, save_tensors
from torchlift.checkpoint.shards import Piece, whole_piece, write_index, write_shard
from torchlift.checkpoint.stored import Stored

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "Piece",
    "Stored",
    "load_tensors",
    "save_tensors",
    "whole_piece",
    "write_index",
    "write_shard",
]
