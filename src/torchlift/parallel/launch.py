# pyright: reportPrivateImportUsage=false
"""The process group of processes that torchrun has started, for the first time or again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import uuid4

import torch
import torch.distributed as dist

from torchlift.core.checks import check_positive
from torchlift.core.errors import invalid_value, message
from torchlift.parallel.mesh import TIMEOUT, Mesh, MeshError, as_mesh, parse_mesh

#: Seconds between two looks at who has come.
PAUSE = 0.01


@contextmanager
def process_group(spec: str, *, timeout: float = TIMEOUT) -> Iterator[Mesh]:
    """A mesh over the processes of torchrun, whose process group lasts as long as the block.

    Arguments:
        spec: "data=2,layers=2".
        timeout: seconds to wait for other processes before giving up.
    """
    sizes = parse_mesh(spec)
    check_positive("mesh timeout", timeout)
    if not (dist.is_available() and dist.is_torchelastic_launched()):
        count = sizes["data"] * sizes["layers"]
        hint = f"Start with 'torchrun --nproc-per-node {count} -m torchlift train … --mesh {spec}'."
        invalid_value(f"mesh {spec!r}", "processes started by torchrun", "none", hint)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    limit = timedelta(seconds=timeout)
    try:
        store, rank, size = next(dist.rendezvous("env://", timeout=limit))
        store = dist.PrefixStore(attempt(store, rank, size, timeout), store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    except MeshError:
        raise
    except RuntimeError as error:
        hint = "See what the other processes printed last."
        raise MeshError(message(f"mesh {spec}", "a connection of all processes", error, hint)) from error
    try:
        yield as_mesh(spec, timeout=timeout)
    finally:
        dist.destroy_process_group()


def restarted() -> bool:
    """Whether torchrun has started these processes again after some of them had failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def attempt(store: dist.Store, rank: int, size: int, timeout: float) -> str:
    """A name for this start of all processes, which none of an earlier start can have known.

    torchrun keeps its store when it starts processes again, and with it the
    addresses of those that are dead: whoever reads one before the new process
    has written its own waits in vain. So all keys get a new prefix. Rank 0
    invents it and answers each other rank under a word that this one has just
    invented. Counting restarts would not do: on several machines each
    torchrun counts its own.
    """
    if rank:
        word = uuid4().hex
        store.set(f"torchlift/asks/{rank}", word)
        try:
            name = store.get(f"torchlift/answer/{word}").decode()
        except dist.DistError as error:
            raise MeshError(_absent(rank, {0}, timeout)) from error
        store.set(f"{name}/here/{rank}", "")
        return name
    name, missing, end = f"torchlift/{uuid4().hex}", set(range(1, size)), time.monotonic() + timeout
    while missing:
        for other in sorted(missing):
            if store.check([asks := f"torchlift/asks/{other}"]):
                store.set(f"torchlift/answer/{store.get(asks).decode()}", name)
            if store.check([f"{name}/here/{other}"]):
                missing.remove(other)
        if missing and time.monotonic() > end:
            raise MeshError(_absent(rank, missing, timeout))
        time.sleep(PAUSE)
    return name


def _absent(rank: int, missing: set[int], timeout: float) -> str:
    names = ", ".join(f"rank {other}" for other in sorted(missing))
    return (
        f"rank {rank}: expected all processes to start within {timeout:g} s, got no sign of {names}. "
        "See what that process printed last; a longer `timeout` helps if it was only slow."
    )
