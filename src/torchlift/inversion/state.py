"""What an inversion remembers between steps, image by image."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchlift.core.trees import map_leaves
from torchlift.inversion.layers import Tensors
from torchlift.solvers import State

T = TypeVar("T")


class Status(IntEnum):
    """Where one image stands."""

    RUNNING = 0
    CONVERGED = 1
    STALLED = 2
    DIVERGED = 3
    MAX_STEPS = 4
    TIME_LIMIT = 5
    STOPPED = 6

    @property
    def sentence(self) -> str:
        return _SENTENCES[self]


_SENTENCES = {
    Status.RUNNING: "still running",
    Status.CONVERGED: "the residuals of the optimality conditions reached the tolerance",
    Status.STALLED: "no visible progress any more; the best iterate is returned, not proved optimal to the tolerance",
    Status.DIVERGED: "the objective grew without bound; the best iterate is returned",
    Status.MAX_STEPS: "the number of steps ran out before the tolerance was reached",
    Status.TIME_LIMIT: "the time ran out before the tolerance was reached",
    Status.STOPPED: "stopped on request",
}


@dataclass(frozen=True, eq=False)
class Watch:
    """What is known about every image: (B,) each, `best_x` (B, *in_shape).

    Arguments:
        value: the objective.
        start: the objective at the start.
        best: the least objective so far.
        best_x: the input that had it.
        relative: the bound on what can still be gained, relative to the objective; infinite before the first step.
        mark, least_bound: objective and bound when the image last made progress.
        since: steps since then.
        size: ‖·‖² of the data and variables at the start, which says how far rounding goes.
        status: a `Status`.
        monotone: whether the objective never increased.
        steps: steps made until the image was finished.
    """

    value: Tensor
    start: Tensor
    best: Tensor
    best_x: Tensor
    relative: Tensor
    mark: Tensor
    least_bound: Tensor
    since: Tensor
    size: Tensor
    status: Tensor
    monotone: Tensor
    steps: Tensor

    @classmethod
    def begin(cls, like: Tensor, x: Tensor, size: Tensor) -> Watch:
        """Before the first step; the objective is filled in once it is known."""
        zero, whole = torch.zeros_like(like), torch.zeros_like(like, dtype=torch.int64)
        infinite = torch.full_like(like, torch.inf)
        running, true = torch.full_like(whole, Status.RUNNING), torch.ones_like(whole, dtype=torch.bool)
        return cls(
            *(zero, zero, zero, x),
            *(infinite, torch.full_like(like, 1e30), infinite),
            whole,
            size,
            running,
            true,
            whole,
        )

    @property
    def running(self) -> Tensor:
        return self.status == Status.RUNNING


@dataclass(frozen=True, eq=False)
class InversionState(State):
    """The variables (in `point`: x, z, dual) and what follows from them.

    Every tensor has the images along its first axis.

    Arguments:
        u, v: states u_0 … u_{n−1} and pre-activations v_1 … v_n.
        products: A_i x of the prior.
        memory: what the algorithm remembers, a dataclass of tensors.
        bound: on what can still be gained, see `InversionSolver`: (B,).
        watch: how every image fares.
    """

    u: Tensors
    v: Tensors
    products: Tensors
    memory: Any
    bound: Tensor
    watch: Watch

    @property
    def x(self) -> Tensor:
        return self.point["x"][0]

    @property
    def z(self) -> Tensors:
        return self.point["z"]

    @property
    def duals(self) -> Tensors:
        return self.point["dual"]


def choose(mask: Tensor, yes: T, no: T) -> T:
    """The images of `yes` where the mask (B,) is true, else those of `no`; numbers come from `yes`."""
    rows = mask.nonzero()[:, 0]  # copying some rows takes a third of the time of comparing all
    return map_leaves(lambda _, a, b: a if a is b else b.index_copy(0, rows, a[rows]), yes, no)


def select(state: T, index: Tensor) -> T:
    """Some images only."""
    return map_leaves(lambda _, tensor: tensor[index], state)
