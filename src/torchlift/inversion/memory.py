"""How many images are inverted at once: planned before memory is taken."""

from __future__ import annotations

import math

from torchlift.core.checks import check_positive, check_size
from torchlift.core.errors import invalid_value
from torchlift.core.memory import available_memory
from torchlift.inversion.layers import Layers
from torchlift.inversion.problem import InversionProblem
from torchlift.networks import Network

#: An algorithm holds, at the worst moment of a step, at most about this many numbers for every entry of x, z, v and p:
#: the old and the new state, the last changes, and what a merged state and a layer's products need.
COPIES = 15

#: Images inverted at once by default: larger batches leave the caches and took 30 % longer per image.
BATCH = 256


def batch_size(
    network: object, problem: InversionProblem, batch_limit: int | None, memory_limit: float | None, copies: int = 1
) -> tuple[int, int]:
    """How many images to invert at once, and how many would fit; refuses if one needs more than the memory there is.

    Arguments:
        copies: from how many starts at once, where there is memory for them.
    """
    most = BATCH if batch_limit is None else check_size("invert batch_limit", batch_limit)
    free = available_memory(problem.guess.device) / 2
    limit = free if memory_limit is None else check_positive("invert memory_limit", memory_limit)
    needed = memory_per_image(network, problem)
    if needed > limit:
        hint = "Free some memory, or invert a smaller network."
        what = "invert memory_limit" if memory_limit is not None else "invert"
        invalid_value(what, f"at least {needed:,} bytes, which one image needs", f"{int(limit):,}", hint)
    room = int(limit // needed)
    return max(1, min(problem.batch, room // copies, most)), room


def memory_per_image(network: object, problem: InversionProblem) -> int:
    """An estimate in bytes: `COPIES` of every variable, see there."""
    shapes = [tuple(problem.guess.shape[1:])]
    shapes += [term.operator.out_shape for term in problem.split.terms if term.operator is not None]
    networks: tuple[Network, ...] = getattr(network, "networks", ())
    for layers in [Layers.of(each) for each in networks] if problem.layers is None else [problem.layers]:
        form = layers.form
        shapes += [*form.W.row_shapes, *form.W.row_shapes, *form.K.row_shapes]
    return COPIES * problem.guess.element_size() * sum(math.prod(shape) for shape in shapes)
