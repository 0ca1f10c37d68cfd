"""The process group of processes that torchrun has started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from torchlift.core.errors import invalid_value
from torchlift.distributed.mesh import TIMEOUT, Mesh, as_mesh, parse_mesh


@contextmanager
def process_group(spec: str, *, timeout: float = TIMEOUT) -> Iterator[Mesh]:
    """A mesh over the processes of torchrun, whose process group lasts as long as the block.

    Arguments:
        spec: "data=2,layers=2".
        timeout: seconds to wait for other processes before giving up.
    """
    sizes = parse_mesh(spec)
    if not (dist.is_available() and dist.is_torchelastic_launched()):
        count = sizes["data"] * sizes["layers"]
        hint = f"Start with 'torchrun --nproc-per-node {count} -m torchlift train … --mesh {spec}'."
        invalid_value(f"mesh {spec!r}", "processes started by torchrun", "none", hint)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    try:
        yield as_mesh(spec, timeout=timeout)
    finally:
        dist.destroy_process_group()
