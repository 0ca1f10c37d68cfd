"""The cost model: its constants, from measured times, and the bytes that the processes of a mesh exchange in a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import torch

from torchlift.lab.benchmarks.distributed.methods import Size
from torchlift.lab.planning import Machine, Passes, Work

#: Bytes of a single-precision number, and of the double-precision ones that decisions are made of.
NUMBER, DOUBLE = 4, 8


@dataclass(frozen=True)
class Volume:
    """Bytes of all processes together.

    Arguments:
        sent: to neighbours.
        reduced: given to sums over processes.
    """

    sent: int
    reduced: int


def jacobi_volume(size: Size, data: int, layers: int) -> Volume:
    """Of `methods.jacobi` on a mesh.

    Every boundary between layers of two processes is crossed by u forward and
    by its cotangent back, B·N numbers each, shared by the rows of the mesh:

        sent = 2(P − 1)·B·N·s

    Every process along "data" gives the gradients of its own layers to a sum,
    and every process two squared norms:

        reduced = Q·Σ(N² + N)·s + PQ·2·8       (the gradients only for Q > 1)
    """
    sent = 2 * (layers - 1) * size.batch * size.width * NUMBER
    gradients = data * size.parameters * NUMBER if data > 1 else 0
    return Volume(sent, gradients + data * layers * 2 * DOUBLE)


def sweeps_volume(size: Size, data: int) -> Volume:
    """Of `methods.sweeps` with Q processes along "data".

    Each gives to sums all gradients, the mean input of every weight matrix, the
    loss, and per hidden layer three numbers for the size of its perturbation:

        reduced = Q·(Σ(N² + N) + (J + 1)N + 1)·s + Q·3J·8
    """
    numbers = size.parameters + size.maps * size.width + 1
    return Volume(0, data * (numbers * NUMBER + 3 * size.layers * DOUBLE))


def late_sweeps_volume(size: Size, layers: int) -> Volume:
    """Of `methods.sweeps` with P processes along "layers".

    In every step each boundary is crossed by the states of one batch and by the
    signals of an earlier one, and every process gives the loss to a sum:

        sent = 2(P − 1)·B·N·s,    reduced = P·8
    """
    return Volume(2 * (layers - 1) * size.batch * size.width * NUMBER, layers * DOUBLE)


ALONE = {"lifting": "lifted", "back-propagation": "back-propagation"}
"""The methods of one process that tell how often a step touches memory."""


def fitted(measured: Sequence[tuple[Size, Mapping[str, float]]], processes: int) -> Machine:
    """A machine whose predictions for one process are as near to the measured times as can be.

    Speeds are measured by what they are for, while all processes are at it:
    matrix products, sums of two tensors, short messages, sums of gradients. What a step takes beyond
    its products is attributed to passes over states, passes over parameters
    and a cost per layer, by least squares of relative errors without negative
    parts. How far exchanges hide behind work is not fitted: on one machine
    they keep the same cores busy.

    Arguments:
        measured: seconds of all methods, by size.
        processes: how many took part.
    """
    # two read and one written
    memory = median(3 * size.batch * size.width * NUMBER / times["addition together"] for size, times in measured)
    latency = median(times["short message"] for _, times in measured)
    bandwidth = median(_bandwidth(size, times["sum of gradients"], latency, processes) for size, times in measured)
    machine = Machine(_flops(measured, "product"), memory, bandwidth, latency)
    passes = {
        method: _passes(machine, [(size, times[name]) for size, times in measured]) for method, name in ALONE.items()
    }
    return Machine(_flops(measured, "product together"), memory, bandwidth, latency, 0.0, passes)


def quiet(machine: Machine, measured: Sequence[tuple[Size, Mapping[str, float]]]) -> Machine:
    """The same while one process is at work and the others wait."""
    return machine.but(flops=_flops(measured, "product"))


def _flops(measured: Sequence[tuple[Size, Mapping[str, float]]], name: str) -> float:
    return median(2 * size.batch * size.width**2 / times[name] for size, times in measured)


def _bandwidth(size: Size, seconds: float, latency: float, processes: int) -> float:
    """What `Machine.total` makes of a sum of all gradients, which takes its latency at most half of the time."""
    rest = max(seconds - 2 * latency * (processes - 1).bit_length(), seconds / 2)
    return 2 * (processes - 1) / processes * size.parameters * NUMBER / rest


def as_work(size: Size) -> Work:
    return Work(size.maps, size.width, size.batch, NUMBER)


def _passes(machine: Machine, times: Sequence[tuple[Size, float]]) -> Passes:
    rows, rest = [], []
    for size, seconds in times:
        work = as_work(size)
        products = work.most_products(1) * machine.product(work.batch, work.width, NUMBER)
        parts = (
            work.layers * machine.touch(work.batch * work.width, NUMBER),
            work.layers * machine.touch(work.width**2, NUMBER),
            work.layers,
        )
        rows.append([part / seconds for part in parts])
        rest.append((seconds - products) / seconds)
    return Passes(*_least_squares(torch.tensor(rows, dtype=torch.float64), torch.tensor(rest, dtype=torch.float64)))


def _least_squares(A: torch.Tensor, b: torch.Tensor) -> list[float]:
    """argmin ‖Ax − b‖ over x ≥ 0, by trying which entries are zero; there are three."""
    columns = A.shape[1]
    best, least = [0.0] * columns, float(b.norm())
    for count in range(1, columns + 1):
        for chosen in combinations(range(columns), count):
            part = torch.linalg.lstsq(A[:, chosen], b.unsqueeze(1), driver="gelsd").solution.squeeze(1)
            error = float((A[:, chosen] @ part - b).norm())
            if bool((part >= 0).all()) and error < least:
                least = error
                best = [0.0] * columns
                for column, value in zip(chosen, part.tolist(), strict=True):
                    best[column] = value
    return best
