"""What stages of a pipeline hand to their neighbours: in one process, or between processes."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from torchlift.parallel.mesh import Mesh, Sums, Transfer

Way: TypeAlias = Literal["forward", "back"]
"""To the next stage, or to the one before."""


class Mail:
    """Tensors on their way from one stage to the next, all stages in one process."""

    def __init__(self) -> None:
        self.arrived: dict[tuple[Way, int], list[Tensor]] = {}
        """By the way and the stage that is to have them, the oldest first."""

    def exchange(self, way: Way, stage: int, outgoing: Tensor | None, incoming: Tensor | None) -> None:
        """Hand a tensor on, and begin to receive one that `receive` returns in the next step.

        Arguments:
            way: of both.
            stage: the one that calls.
            outgoing: to its neighbour; None for nothing.
            incoming: room for what comes from the other neighbour; None where nothing will come.
        """
        if outgoing is not None:
            self.deliver(way, stage + (1 if way == "forward" else -1), outgoing)

    def deliver(self, way: Way, stage: int, tensor: Tensor) -> None:
        """Have `receive` return a tensor."""
        self.arrived.setdefault((way, stage), []).append(tensor)

    def receive(self, way: Way, stage: int) -> Tensor:
        """What the exchange before this step has brought."""
        return self.arrived[way, stage].pop(0)

    def settle(self) -> None:
        """Wait until everything has arrived."""


class MeshMail(Mail):
    """The same between processes along the axis "layers", while they work.

    Both ways have one exchange per step on every process, in the same order, as
    nccl asks for.
    """

    def __init__(self, mesh: Mesh) -> None:
        super().__init__()
        self.mesh = mesh
        self._moving: dict[Way, Transfer] = {}

    def exchange(self, way: Way, stage: int, outgoing: Tensor | None, incoming: Tensor | None) -> None:
        self._wait(way)
        step = 1 if way == "forward" else -1
        receiver, sender = self.mesh.neighbour(step), self.mesh.neighbour(-step)
        send = [] if outgoing is None or receiver is None else [(outgoing.contiguous(), receiver)]
        receive = [] if incoming is None or sender is None else [(incoming, sender)]
        if send or receive:
            self._moving[way] = self.mesh.start(send, receive)
        for tensor, _ in receive:
            self.deliver(way, stage, tensor)

    def receive(self, way: Way, stage: int) -> Tensor:
        self._wait(way)
        return super().receive(way, stage)

    def settle(self) -> None:
        for way in list(self._moving):
            self._wait(way)

    def _wait(self, way: Way) -> None:
        if (transfer := self._moving.pop(way, None)) is not None:
            transfer.wait()


class LateSum:
    """Sums of one number per process over a mesh, each known one step later, so that nobody waits."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.value = mesh, float("nan")
        self._moving: tuple[Tensor, Sums] | None = None

    def exchange(self, number: float | None) -> None:
        """Begin to sum; None is a number that nobody has yet, on all processes."""
        self.settle()
        if number is None:
            self.value = float("nan")
        elif self.mesh.size == 1:
            self.value = number
        else:
            total = torch.tensor([number], dtype=torch.float64, device=self.mesh.device)
            self._moving = total, self.mesh.start_sums([total])

    def settle(self) -> float:
        """The last sum that was begun."""
        if self._moving is not None:
            total, sums = self._moving
            sums.wait()
            self.value, self._moving = float(total), None
        return self.value
