"""Bytes that the processes of a mesh exchange in a step: formulas, to be compared with what is counted."""

from __future__ import annotations

from dataclasses import dataclass

from torchlift.lab.benchmarks.distributed.methods import Size

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


def jacobi(size: Size, data: int, layers: int) -> Volume:
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


def sweeps(size: Size, data: int) -> Volume:
    """Of `methods.sweeps` with Q processes along "data".

    Each gives to sums all gradients, the mean input of every weight matrix, the
    loss, and per hidden layer three numbers for the size of its perturbation:

        reduced = Q·(Σ(N² + N) + (J + 1)N + 1)·s + Q·3J·8
    """
    numbers = size.parameters + size.maps * size.width + 1
    return Volume(0, data * (numbers * NUMBER + 3 * size.layers * DOUBLE))


def late_sweeps(size: Size, layers: int) -> Volume:
    """Of `methods.sweeps` with P processes along "layers".

    In every step each boundary is crossed by the states of one batch and by the
    signals of an earlier one, and every process gives the loss to a sum:

        sent = 2(P − 1)·B·N·s,    reduced = P·8
    """
    return Volume(2 * (layers - 1) * size.batch * size.width * NUMBER, layers * DOUBLE)
