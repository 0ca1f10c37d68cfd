# pyright: reportPrivateImportUsage=false
"""Processes that do the same: started together, with equal settings and weights, one clock, and one that writes."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import nn

from torchlift.core.checks import check_positive
from torchlift.core.errors import TorchliftError, invalid_value, message
from torchlift.data import Batch
from torchlift.operators.context import context_tensors
from torchlift.parallel.mesh import TIMEOUT, Axis, Mesh, MeshError, as_mesh, parse_mesh

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


T = TypeVar("T")


def agreed_clock(mesh: Mesh, clock: Callable[[], float] = time.monotonic) -> Callable[[], float]:
    """The clock of rank 0 for all, so that limits of time end all processes at the same step."""

    def now() -> float:
        return float(mesh.broadcast_(torch.tensor(clock(), dtype=torch.float64, device=mesh.device), 0))

    return clock if mesh.size == 1 else now


def sync(mesh: Mesh, clock: Callable[[], float], asked: bool) -> tuple[float, Callable[[], bool]]:
    """The time of rank 0, and whether any process was asked to stop, in one exchange."""
    now, count = mesh.sum_numbers([clock() if mesh.first else 0.0, float(asked)])
    return now, lambda: count > 0


def of_first(mesh: Mesh, numbers: Mapping[str, float]) -> dict[str, float]:
    """The numbers of rank 0, for all: rounding may differ between processes, decisions must not."""
    return dict(numbers) if mesh.size == 1 else json.loads(mesh.texts(json.dumps(dict(numbers)))[0])


def begin_alike(mesh: Mesh, network: nn.Module, settings: Mapping[str, Any], example: Batch) -> None:
    """Refuse other settings, versions or data than those of rank 0; take over its weights and buffers."""
    if mesh.size == 1:
        return
    tensors = (example.y, example.x, *context_tensors(example.context))
    data = hashlib.sha256(b"".join(tensor.cpu().contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()
    check_agreement(mesh, {"torchlift version": _version(), "first sample": data, **settings})
    take_over(mesh, network)


@torch.no_grad()
def take_over(mesh: Mesh, network: nn.Module, source: int = 0, axis: Axis | None = None) -> None:
    """The weights and buffers of one process, number `source` of the axis, on all of them."""
    for tensor in network.state_dict(keep_vars=True).values():
        if isinstance(tensor, torch.Tensor):
            values = tensor.detach().clone(memory_format=torch.contiguous_format)
            tensor.copy_(mesh.broadcast_(values, source, axis))


def check_agreement(mesh: Mesh, settings: Mapping[str, Any]) -> None:
    """Refuse settings or versions that are not the same on all ranks, naming what differs and where."""
    versions = {"torch version": torch.__version__, "python version": platform.python_version()}
    texts = {name: json.dumps(value, sort_keys=True, default=str) for name, value in {**versions, **settings}.items()}
    tables = [json.loads(text) for text in mesh.texts(json.dumps(texts))]
    for name in {name: None for table in tables for name in table}:
        values = [table.get(name) for table in tables]
        odd = [rank for rank, value in enumerate(values) if value != values[0]]
        if odd:
            theirs = "; ".join(f"{values[rank]} on rank {rank}" for rank in odd)
            raise MeshError(
                f"mesh {mesh}: expected {name} to be the same on all ranks, got {values[0]} on rank 0, {theirs}. "
                "Start all processes with the same script, configuration and installation."
            )


def on_first(mesh: Mesh, function: Callable[[], T]) -> T | None:
    """Call the function on rank 0 only; its failure is raised on all ranks. Elsewhere the result is None."""
    if mesh.size == 1:
        return function()
    results: list[T] = []
    on_all(mesh, lambda: results.append(function()) if mesh.first else None)
    return results[0] if results else None


def on_all(mesh: Mesh, function: Callable[[], Any]) -> list[Any]:
    """Call the function on all ranks; returns the results, which JSON must be able to hold, by rank.

    What fails on one rank is raised there, and on the others as a MeshError that names it.
    """
    result, failure = None, None
    try:
        result = function()
    except (TorchliftError, OSError) as error:
        failure = error
    reason = None if failure is None else str(failure) or type(failure).__name__
    answers = [json.loads(text) for text in mesh.texts(json.dumps([result, reason]))]
    if failure is not None:
        raise failure
    failures = [f"{mesh.name(rank)}: {text}" for rank, (_, text) in enumerate(answers) if text is not None]
    if failures:
        raise MeshError(" | ".join(failures))
    return [answer for answer, _ in answers]


def _version() -> str:
    try:
        return version("torchlift")
    except PackageNotFoundError:
        return "unknown"
