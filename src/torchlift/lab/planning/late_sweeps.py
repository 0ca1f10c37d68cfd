"""Late sweeps: layers divided into stages that work on different batches at the same time."""

from __future__ import annotations

from torchlift.lab.planning.forecast import Forecast
from torchlift.lab.planning.machine import Machine
from torchlift.lab.planning.work import Work

#: Copies of the activations of a batch in flight, and of the parameters: weights, gradients, momentum, average, the
#: weights before the last step; beside them one for every batch in flight.
STATES, PARAMETERS = 1.3, 5.0
#: How often a step touches weights more than plain gradient descent: it predicts them.
PREDICTION = 3.0


def late_sweeps(work: Work, machine: Machine, data: int = 1, layers: int = 1) -> Forecast:
    """One step of P stages of l = ⌈L/P⌉ layers, each at work on another batch; nobody waits for a turn.

        work     = 3l·2bN²/F + l·((p_s bN + (p_w + 3) N²)s/M + o)
        exchange = max(0, 2(λ + bNs/β) − work)                 neighbours, behind the work
                 + sum over Q of l·N²s                         gradients, where samples are divided

    with the passes of back-propagation. The first stage has 2(P − 1) batches in flight, and
    keeps the weights of each. What lateness costs in steps says `torchlift.lab.planning.delay`.
    """
    count, samples = work.most_layers(layers), work.most_samples(data)
    passes = machine.passes["back-propagation"]
    compute = work.most_products(layers) * machine.product(samples, work.width, work.number)
    weights = passes.parameters + (PREDICTION if layers > 1 else 0.0)
    compute += count * (
        machine.touch(passes.states * samples * work.width + weights * work.width**2, work.number) + passes.overhead
    )
    exchange = machine.total(count * work.weights, data)
    if layers > 1:
        exchange += max(0.0, 2 * machine.message(work.states(samples)) - compute)
    flights = 2 * (layers - 1)
    memory = count * ((PARAMETERS + flights) * work.weights + STATES * max(flights, 1) * work.states(samples))
    return Forecast("late sweeps", data * layers, data, layers, 1, compute, exchange, 0.0, memory)
