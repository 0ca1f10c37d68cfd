"""Layer-parallel lifted training."""

from __future__ import annotations

from torchlift.lab.planning.forecast import Forecast
from torchlift.lab.planning.machine import Machine
from torchlift.lab.planning.work import Work

#: Copies of the lifted variables and of the parameters at the peak of a step: the point and the next one, what the
#: engine reads, gradients, and steps between them.
STATES, PARAMETERS = 5.7, 7.0


def lifting(work: Work, machine: Machine, data: int = 1, layers: int = 1) -> Forecast:
    """One Jacobi step on a mesh: all layers' lifted variables and weights move at once.

    With l = ⌈L/P⌉ layers and b = ⌈B/Q⌉ samples per device, three products per
    layer (v = Wu, Wᵀr and rᵀu), as in back-propagation; nobody waits for another
    layer's result of the same step:

        work     = 3l·2bN²/F + l·((p_s bN + p_w N²)s/M + o)
        exchange = max(0, 2(λ + bNs/β) − (l − 1)/l · work)     neighbours, behind the inner layers
                 + sum over Q of l·N²s                         gradients, where samples are divided
                 + sum over PQ of a few numbers                the norm that decides when to stop

    Sums do not hide behind work here, since ours do not either.
    """
    count, samples = work.most_layers(layers), work.most_samples(data)
    passes = machine.passes["lifting"]
    compute = work.most_products(layers) * machine.product(samples, work.width, work.number)
    touched = passes.states * samples * work.width + passes.parameters * work.width**2
    compute += count * (machine.touch(touched, work.number) + passes.overhead)
    exchange = machine.total(count * work.weights, data)
    if layers > 1:
        boundary = 2 * machine.message(work.states(samples))
        exchange += max(0.0, boundary - compute * (count - 1) / count)
    exchange += machine.total(16, data * layers)
    memory = count * (PARAMETERS * work.weights + STATES * work.states(samples))
    return Forecast("lifting", data * layers, data, layers, 1, compute, exchange, 0.0, memory)
