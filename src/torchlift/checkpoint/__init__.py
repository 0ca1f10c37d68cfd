"""Runs and models on disk: whole or not at all, verified when read, never unpickled."""

from torchlift.checkpoint.checkpoints import Checkpoint, Checkpoints
from torchlift.checkpoint.pair import load_tensors, save_tensors

__all__ = ["Checkpoint", "Checkpoints", "load_tensors", "save_tensors"]
