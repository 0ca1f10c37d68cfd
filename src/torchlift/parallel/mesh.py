"""A mesh of processes with the axes "data" and "layers", and what they can exchange."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, NoReturn, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from torchlift.core.checks import check_instance, check_positive
from torchlift.core.errors import TorchliftError, invalid_type, invalid_value

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

AXES = ("data", "layers")
Axis: TypeAlias = Literal["data", "layers"]

#: Seconds that a process waits for the others.
TIMEOUT = 300.0
#: Seconds in which a process must answer when it is asked who is missing.
ANSWER = 2.0
#: Bytes from which on a tensor is summed where it lies; smaller ones are summed together in a copy.
LARGE = 1 << 18
#: Bytes of results from which on work is divided among processes: below, it takes as long as the exchange.
WORTH = 1 << 20


class MeshError(TorchliftError, RuntimeError):
    """A process of the mesh is gone, hangs, or disagrees with the others."""


@dataclass
class Traffic:
    """What this process has exchanged so far: bytes given to reductions, bytes sent to neighbours, and calls."""

    reduced: int = 0
    sent: int = 0
    calls: int = 0


@dataclass(eq=False)
class Mesh:
    """data × layers processes, numbered row by row: rank = data_rank · layers + layer_rank.

    `Mesh()` is a single process, which exchanges nothing and needs no process
    group. Others are made by `as_mesh` inside an initialised one. Every method is
    to be called by all processes of its axis at the same time.

    Arguments:
        data, layers: number of processes along each axis.
        devices: torch's own mesh.
        watch: a group of all processes that only serves to find out who is missing.
        timeout: seconds to wait for other processes before giving up.
        places: the layers of each rank, such as "layers 3 to 4", for messages.
        traffic: a count of what was exchanged.
    """

    data: int = 1
    layers: int = 1
    devices: DeviceMesh | None = None
    watch: dist.ProcessGroup | None = None
    timeout: float = TIMEOUT
    places: dict[int, str] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)

    def __post_init__(self) -> None:
        if self.devices is not None and not hasattr(self.devices, "get_group"):
            invalid_type("Mesh devices", "a DeviceMesh of torch", self.devices, "Try as_mesh('data=2').")

    @property
    def size(self) -> int:
        return self.data * self.layers

    @property
    def rank(self) -> int:
        return dist.get_rank() if self.size > 1 else 0

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and shows progress."""
        return self.rank == 0

    @property
    def data_rank(self) -> int:
        return self.rank // self.layers

    @property
    def layer_rank(self) -> int:
        return self.rank % self.layers

    @property
    def device(self) -> torch.device:
        """Where numbers lie that are exchanged."""
        return torch.device("cpu" if self.devices is None or self.devices.device_type == "cpu" else "cuda")

    def __str__(self) -> str:
        return f"data={self.data},layers={self.layers}"

    def name(self, rank: int) -> str:
        """A rank and its layers."""
        return f"rank {rank} ({self.places[rank]})" if rank in self.places else f"rank {rank}"

    def neighbour(self, step: int) -> int | None:
        """The rank `step` places further along the layers, if there is one."""
        return self.rank + step if 0 <= self.layer_rank + step < self.layers else None

    def sum_(self, tensor: Tensor, axis: Axis | None = None) -> Tensor:
        """Overwrite a contiguous tensor by its sum over an axis, or over all processes."""
        if self._length(axis) > 1:
            self.traffic.reduced += _bytes(tensor)
            work = dist.all_reduce(tensor, group=self.group(axis), async_op=True)
            self._wait(work, "a sum")
        return tensor

    def sum_all_(self, tensors: Sequence[Tensor], axis: Axis | None = None, weight: float = 1.0) -> None:
        """`sum_` of many tensors of one dtype, times the weight of each process (0 takes NaN too)."""
        self.start_sums(tensors, axis, weight).wait()

    def start_sums(self, tensors: Sequence[Tensor] = (), axis: Axis | None = None, weight: float = 1.0) -> Sums:
        """Begin `sum_all_`: `Sums.add` takes further tensors, `Sums.wait` ends it."""
        sums = Sums(self, axis, weight)
        sums.add(*tensors)
        sums.begin()
        return sums

    def sum_numbers(self, numbers: Sequence[float], axis: Axis | None = None) -> list[float]:
        """Sums of numbers, in double precision."""
        if self._length(axis) == 1:
            return list(numbers)
        return self.sum_(torch.tensor(list(numbers), dtype=torch.float64, device=self.device), axis).tolist()

    def broadcast_(self, tensor: Tensor, source: int, axis: Axis | None = None) -> Tensor:
        """Overwrite a contiguous tensor by that of the process number `source` of the axis."""
        if self._length(axis) > 1:
            self.traffic.sent += _bytes(tensor)
            work = dist.broadcast(tensor, group=self.group(axis), group_src=source, async_op=True)
            self._wait(work, "a broadcast")
        return tensor

    def gather(self, tensor: Tensor, axis: Axis) -> list[Tensor]:
        """The tensors of all processes of an axis, which have one shape and dtype."""
        if self._length(axis) == 1:
            return [tensor]
        tensor = tensor.contiguous()
        tensors = [torch.empty_like(tensor) for _ in range(self._length(axis))]
        self.traffic.sent += _bytes(tensor)
        self._wait(dist.all_gather(tensors, tensor, group=self.group(axis), async_op=True), "a collection")
        return tensors

    def divide(
        self, function: Callable[[list[Tensor]], list[Tensor]], tensors: Sequence[Tensor], axis: Axis
    ) -> list[Tensor]:
        """function(tensors), of which every process makes a share for all.

        Arguments:
            function: gives one tensor for each, of its shape and dtype, which does not depend on the others.
            tensors: the same on all processes of the axis, of one dtype.
            axis: the processes.
        """
        count = self._length(axis)
        if count == 1 or len(tensors) == 1 or sum(map(_bytes, tensors)) < WORTH:
            return function(list(tensors))
        shares: list[list[int]] = [[] for _ in range(count)]
        sizes = [0] * count
        for place in sorted(range(len(tensors)), key=lambda place: -tensors[place].numel()):
            lightest = sizes.index(min(sizes))
            shares[lightest].append(place)
            sizes[lightest] += tensors[place].numel()
        own = self.data_rank if axis == "data" else self.layer_rank
        made = tensors[0].new_zeros(max(sizes))
        if shares[own]:
            results = function([tensors[place] for place in shares[own]])
            torch.cat([result.reshape(-1) for result in results], out=made[: sizes[own]])
        together = list(tensors)
        for share, size, row in zip(shares, sizes, self.gather(made, axis), strict=True):
            parts = row[:size].split([tensors[place].numel() for place in share])
            for place, part in zip(share, parts, strict=True):
                together[place] = part.view(tensors[place].shape)
        return together

    def texts(self, text: str) -> list[str]:
        """The texts of all processes, by rank."""
        if self.size == 1:
            return [text]
        content = torch.tensor(list(text.encode()), dtype=torch.uint8, device=self.device)
        sizes = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        sizes[self.rank] = len(content)
        sizes = self.sum_(sizes).tolist()
        table = torch.zeros(self.size, max(*sizes, 1), dtype=torch.uint8, device=self.device)
        table[self.rank, : len(content)] = content
        rows = self.sum_(table).tolist()
        return [bytes(row[:size]).decode() for row, size in zip(rows, sizes, strict=True)]

    def any(self, condition: bool) -> bool:
        """Whether a condition holds on any process."""
        return self.sum_numbers([float(condition)])[0] > 0

    def which(self, condition: bool) -> str:
        """The names of the ranks where a condition holds; empty if it holds nowhere."""
        flags = [0.0] * self.size
        flags[self.rank] = float(condition)
        return ", ".join(self.name(rank) for rank, flag in enumerate(self.sum_numbers(flags)) if flag)

    def start(self, send: Sequence[tuple[Tensor, int]], receive: Sequence[tuple[Tensor, int]]) -> Transfer:
        """Begin to send tensors to ranks and to receive others; `Transfer.wait` ends it."""
        group = self.group("layers")
        operations = [dist.P2POp(dist.isend, tensor, rank, group=group) for tensor, rank in send]
        operations += [dist.P2POp(dist.irecv, tensor, rank, group=group) for tensor, rank in receive]
        self.traffic.sent += sum(_bytes(tensor) for tensor, _ in send)
        self.traffic.calls += len(operations)
        try:
            works = dist.batch_isend_irecv(operations) if operations else []
        except RuntimeError as error:
            self._refuse("an exchange with its neighbours", error)
        return Transfer(self, works, [rank for _, rank in (*send, *receive)], [tensor for tensor, _ in send])

    def _length(self, axis: Axis | None) -> int:
        return self.size if axis is None else getattr(self, axis)

    def group(self, axis: Axis | None) -> dist.ProcessGroup | None:
        """torch's process group of an axis, or of all processes; None for a single process."""
        return dist.group.WORLD if axis is None or self.devices is None else self.devices.get_group(axis)

    def _wait(self, work: dist.Work | None, what: str) -> None:
        self.traffic.calls += 1
        assert work is not None  # asynchronous calls by members of the group
        try:
            # Only gloo waits here; nccl's own watchdog sees to its timeouts.
            work.wait(timedelta(seconds=self.timeout)) if self.device.type == "cpu" else work.wait()
        except RuntimeError as error:
            self._refuse(what, error)

    def _refuse(self, what: str, error: RuntimeError) -> NoReturn:
        missing = self._missing()
        who = ", ".join(self.name(rank) for rank in missing) or "another process"
        reason = str(error).splitlines()[0]
        raise MeshError(
            f"{self.name(self.rank)}: expected {what} within {self.timeout:g} s, got no answer from {who} "
            f"({reason}). See what that process printed last; a longer `timeout` helps if it was only slow."
        ) from error

    def _missing(self) -> list[int]:
        """The ranks that do not answer; rank 0 knows all of them, the others know of rank 0."""
        try:
            dist.monitored_barrier(self.watch, timedelta(seconds=ANSWER), wait_all_ranks=True)
        except RuntimeError as error:
            match = re.search(r"Ranks ([0-9, ]+) failed", str(error))
            return [int(rank) for rank in match[1].split(",")] if match else ([] if self.first else [0])
        return []


@dataclass(frozen=True, eq=False)
class Transfer:
    """Messages to and from neighbours that are on their way."""

    mesh: Mesh
    works: list[dist.Work]
    ranks: list[int]
    sending: list[Tensor]
    """Kept alive until it is sent."""

    def wait(self) -> None:
        """Until all have arrived."""
        for work, rank in zip(self.works, self.ranks, strict=True):
            self.mesh._wait(work, f"an exchange with {self.mesh.name(rank)}")


@dataclass(eq=False)
class Sums:
    """Sums over processes that are on their way, large tensors one by one and small ones together.

    Every process adds the same tensors in the same order, and leaves them alone until `wait` has ended.

    Arguments:
        mesh: the processes.
        axis: the axis to sum over, or None for all processes.
        weight: what this process's tensors count (0 takes NaN too).
    """

    mesh: Mesh
    axis: Axis | None
    weight: float
    _works: list[dist.Work | None] = field(default_factory=list)
    _small: list[Tensor] = field(default_factory=list)
    """Those that wait for others to make one message with."""
    _gathered: int = 0
    """Their bytes."""
    _joined: list[tuple[list[Tensor], Tensor]] = field(default_factory=list)
    """Small tensors, and all of them in one, which is summed in their place."""

    def add(self, *tensors: Tensor) -> None:
        """Begin to sum further tensors; small ones wait until there are enough of them."""
        if self.mesh._length(self.axis) == 1:
            return
        for tensor in tensors:
            if summed_alone(tensor):
                self._start(tensor)
            else:
                self._small.append(tensor)
                self._gathered += _bytes(tensor)
        if self._gathered >= LARGE:
            self.begin()

    def begin(self) -> None:
        """Begin to sum all that were added."""
        if len(self._small) == 1 and self._small[0].is_contiguous():
            self._start(self._small[0])
        elif self._small:
            flat = torch.cat([tensor.reshape(-1) for tensor in self._small])
            self._joined.append((self._small, flat))
            self._start(flat)
        self._small, self._gathered = [], 0

    def wait(self) -> None:
        """Until the tensors hold their sums."""
        self.begin()
        for work in self._works:
            self.mesh._wait(work, "a sum")
        for tensors, flat in self._joined:
            for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))
        self._works, self._joined = [], []

    def _start(self, tensor: Tensor) -> None:
        scaled = tensor.zero_() if not self.weight else tensor.mul_(self.weight) if self.weight != 1 else tensor
        self.mesh.traffic.reduced += _bytes(tensor)
        self._works.append(dist.all_reduce(scaled, group=self.mesh.group(self.axis), async_op=True))


def summed_alone(tensor: Tensor) -> bool:
    """Whether a tensor is summed where it lies."""
    return tensor.is_contiguous() and _bytes(tensor) >= LARGE


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def parse_mesh(text: str) -> dict[Axis, int]:
    """{"data": 2, "layers": 2} from "data=2,layers=2"; an axis that is left out has length 1."""
    text = check_instance("mesh", text, str, 'a text such as "data=2,layers=2"')
    sizes: dict[Axis, int] = {"data": 1, "layers": 1}
    seen: set[str] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, number = (piece.strip() for piece in part.partition("="))
        if name not in AXES:
            invalid_value("mesh", f"the axes {' and '.join(AXES)}", repr(name), 'Try "data=2,layers=2".')
        if not number.isdecimal() or int(number) < 1 or name in seen:
            invalid_value(f"mesh axis {name}", "one whole number >= 1", repr(part), 'Try "data=2,layers=2".')
        seen.add(name)
        sizes[name] = int(number)
    return sizes


def as_mesh(spec: Mesh | str | None, *, timeout: float = TIMEOUT) -> Mesh:
    """A mesh over all processes of the process group that torch was initialised with.

    Arguments:
        spec: "data=2,layers=2", a mesh as it is, or None for a single process.
        timeout: seconds to wait for other processes before giving up.
    """
    if spec is None:
        return Mesh()
    if isinstance(spec, Mesh):
        return spec
    sizes = parse_mesh(spec)
    check_positive("mesh timeout", timeout)
    count = sizes["data"] * sizes["layers"]
    if not (dist.is_available() and dist.is_initialized()):
        hint = (
            f"Start with 'torchrun --nproc-per-node {count} script.py' and call torch.distributed.init_process_group."
        )
        invalid_value(f"mesh {spec!r}", "an initialised process group", "none", hint)
    if dist.get_world_size() != count:
        hint = f"Start {count} processes, or choose axes whose product is {dist.get_world_size()}."
        invalid_value(f"mesh {spec!r}", f"{count} processes", dist.get_world_size(), hint)
    from torch.distributed.device_mesh import init_device_mesh  # slow, and one process never needs it

    kind = "cuda" if dist.get_backend() == "nccl" else "cpu"
    devices = init_device_mesh(kind, (sizes["data"], sizes["layers"]), mesh_dim_names=AXES)
    watch = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
    assert not isinstance(watch, int)  # every process is in it
    return Mesh(sizes["data"], sizes["layers"], devices, watch, timeout)
