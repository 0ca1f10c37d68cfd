"""Predicted steps of lifting, late sweeps and back-propagation, what a step of each is worth, and all side by side.

The busiest of the devices has l = ⌈L/P⌉ layers and b = ⌈B/Q⌉ samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torchlift.core.checks import check_size
from torchlift.core.errors import invalid_value
from torchlift.lab.planning.machine import Forecast, Machine, Work, meshes

#: Copies of the states and of the parameters at the peak of a step.
#: Lifting: the point and the next one, what the engine reads, gradients, and steps between them.
#: Late sweeps: weights, gradients, momentum, average, the weights before the last step; beside them one copy of the
#: weights for every batch in flight. Back-propagation: activations for the way back; weights and gradients.
COPIES = {"lifting": (5.7, 7.0), "late sweeps": (1.3, 5.0), "back-propagation": (1.3, 2.0)}
#: How often a step of late sweeps touches weights more than plain gradient descent: it predicts them.
PREDICTION = 3.0

#: Share of a step's worth that each update between the two ways of a batch costs in the first stage of late sweeps.
#: Simulated in one process by `SweepDescent(stages=P)`: see "Layers at the same time" in docs/cluster.md.
PRICE = 0.04
#: The longest delay that was simulated; beyond it the price is a guess.
LONGEST = 9


def lifting(work: Work, machine: Machine, data: int = 1, layers: int = 1) -> Forecast:
    """One Jacobi step on a mesh: all layers' lifted variables and weights move at once.

    With l = ⌈L/P⌉ layers and b = ⌈B/Q⌉ samples per device, three products per layer (v = Wu, Wᵀr and rᵀu), as in
    back-propagation; nobody waits for another layer's result of the same step:

        work     = 3l·2bN²/F + l·((p_s bN + p_w N²)s/M + o)
        exchange = max(0, 2(λ + bNs/β) − (l − 1)/l · work)     neighbours, behind the inner layers
                 + sum over Q of l·N²s                         gradients, where samples are divided
                 + sum over PQ of a few numbers                the norm that decides when to stop

    Sums do not hide behind work here, since ours do not either.
    """
    count, samples = work.most_layers(layers), work.most_samples(data)
    compute = _work(work, machine, "lifting", samples, layers)
    exchange = machine.total(count * work.weights, data)
    if layers > 1:
        boundary = 2 * machine.message(work.states(samples))
        exchange += max(0.0, boundary - compute * (count - 1) / count)
    exchange += machine.total(16, data * layers)
    memory = _memory(work, "lifting", count, samples)
    return Forecast("lifting", data * layers, data, layers, 1, compute, exchange, 0.0, memory)


def late_sweeps(work: Work, machine: Machine, data: int = 1, layers: int = 1) -> Forecast:
    """One step of P stages of l layers, each at work on another batch; nobody waits for a turn.

        work     = 3l·2bN²/F + l·((p_s bN + (p_w + 3) N²)s/M + o)
        exchange = max(0, 2(λ + bNs/β) − work)                 neighbours, behind the work
                 + sum over Q of l·N²s                         gradients, where samples are divided

    with the passes of back-propagation. The first stage has 2(P − 1) batches in flight, and keeps
    the weights of each. What lateness costs in steps says `steps_needed`.
    """
    count, samples = work.most_layers(layers), work.most_samples(data)
    predicting = PREDICTION if layers > 1 else 0.0
    compute = _work(work, machine, "back-propagation", samples, layers, predicting)
    exchange = machine.total(count * work.weights, data)
    if layers > 1:
        exchange += max(0.0, 2 * machine.message(work.states(samples)) - compute)
    flights = 2 * (layers - 1)
    memory = _memory(work, "late sweeps", count, max(flights, 1) * samples, flights)
    return Forecast("late sweeps", data * layers, data, layers, 1, compute, exchange, 0.0, memory)


def data_parallel(work: Work, machine: Machine, data: int = 1) -> Forecast:
    """Back-propagation: every device has the whole network and b samples; gradients are summed on the way back.

    work     = 3L·2bN²/F + L·((p_s bN + p_w N²)s/M + o)
    exchange = sum over Q of L·N²s, of which the share `overlap` hides behind the way back, ⅔ of the work
    """
    samples = work.most_samples(data)
    compute = _work(work, machine, "back-propagation", samples, 1)
    exchange = _exposed(machine, machine.total(work.layers * work.weights, data), compute)
    # one more copy of the gradients is in the buckets that are summed
    memory = _memory(work, "back-propagation", work.layers, samples, data > 1)
    return Forecast("data-parallel", data, data, 1, 1, compute, exchange, 0.0, memory)


def pipelined(work: Work, machine: Machine, data: int, layers: int, micro_batches: int) -> Forecast:
    """Schedule 1F1B: P stages of l layers work on m micro-batches of c = ⌈b/m⌉ samples one after the other.

        slot     = 3l·2cN²/F + l·(p_s cNs/M + o)               one micro-batch, forward and back
        work     = m·slot + l·p_w N²s/M
        idle     = (P − 1)·(slot + 2(λ + cNs/β))               the pipeline fills and drains
        exchange = (1 − overlap)·m(λ + 2cNs/β) + sum over Q of l·N²s, hidden as in `data_parallel`

    While one neighbour waits for a message the other works, so that of the two
    latencies per micro-batch one counts. A stage keeps the activations of P micro-batches at most.
    """
    count, samples = work.most_layers(layers), -(-work.most_samples(data) // micro_batches)
    update = machine.passes["back-propagation"].parameters
    slot = _work(work, machine, "back-propagation", samples, layers, -update)
    compute = micro_batches * slot + count * machine.touch(update * work.width**2, work.number)
    hop = 2 * machine.message(work.states(samples)) if layers > 1 else 0.0
    exposed = micro_batches * (hop - machine.latency) if layers > 1 else 0.0
    exchange = (1 - machine.overlap) * exposed
    exchange += _exposed(machine, machine.total(count * work.weights, data), compute)
    memory = _memory(work, "back-propagation", count, min(layers, micro_batches) * samples, data > 1)
    idle = (layers - 1) * (slot + hop)
    return Forecast("pipelined", data * layers, data, layers, micro_batches, compute, exchange, idle, memory)


def _work(work: Work, machine: Machine, method: str, samples: int, layers: int, more: float = 0.0) -> float:
    """Seconds that the busiest of the devices along layers computes, with `more` passes over parameters."""
    passes = machine.passes[method]
    touched = passes.states * samples * work.width + (passes.parameters + more) * work.width**2
    products = work.most_products(layers) * machine.product(samples, work.width, work.number)
    return products + work.most_layers(layers) * (machine.touch(touched, work.number) + passes.overhead)


def _memory(work: Work, method: str, layers: int, samples: int, more: int = 0) -> float:
    """Bytes for layers and the states of samples, with `more` copies of the parameters."""
    states, parameters = COPIES[method]
    return layers * ((parameters + more) * work.weights + states * work.states(samples))


def _exposed(machine: Machine, total: float, work: float) -> float:
    """What is left of a sum of gradients that is begun on the way back."""
    return total - min(machine.overlap * total, work * 2 / 3)


def steps_needed(forecast: Forecast, work: Work) -> float:
    """Steps to the quality that one step after the other of back-propagation or sweeps would reach in one.

    - One with back-propagation, and with sweeps that are not divided into stages.
    - 1 + 0.04 τ with late sweeps, where τ = 2(P − 1) − 1 updates of the first of P
      stages lie between the two ways of a batch: from the validation error of a deep autoencoder with
      2, 4 and 6 stages, and the steps without delay that lead to the same error.
    - L with lifted variables that all move at once: the loss gradient propagates one of L layers per step.
    """
    if forecast.method == "lifting":
        return float(work.layers)
    if forecast.method == "late sweeps" and forecast.layers > 1:
        return 1.0 + PRICE * (2 * (forecast.layers - 1) - 1)
    return 1.0


def guessed(forecast: Forecast) -> bool:
    """Whether the delay is longer than any that was measured."""
    return forecast.method == "late sweeps" and 2 * (forecast.layers - 1) - 1 > LONGEST


METHODS = ("late sweeps", "lifting", "data-parallel", "pipelined")


def plan(work: Work, machine: Machine, devices: int, *, memory: float | None = None) -> list[Forecast]:
    """Late sweeps, layer-parallel lifting, data-parallel and pipelined back-propagation, each on its fastest mesh.

    All but data-parallel ones divide layers on two devices and more, and samples
    too where that is faster. A method that no mesh allows is left out: there are
    more devices than samples, or than layers and samples.

    Trainings are compared, not steps: the time of a step counts as often as
    `steps_needed` says.

    Arguments:
        work: the network and its batch.
        machine: devices and links.
        devices: how many there are; a mesh uses all of them.
        memory: bytes of one device; meshes that need more are left out.
    """
    check_size("plan devices", devices)
    forecasts: dict[str, Callable[[int], list[Forecast]]] = {
        "late sweeps": lambda count: [late_sweeps(work, machine, *mesh) for mesh in _divided(work, count)],
        "lifting": lambda count: [lifting(work, machine, *mesh) for mesh in _divided(work, count)],
        "data-parallel": lambda count: [data_parallel(work, machine, count)] if count <= work.batch else [],
        "pipelined": lambda count: [
            pipelined(work, machine, *mesh, parts)
            for mesh in _divided(work, count)
            for parts in (2**k for k in range(work.most_samples(mesh[0]).bit_length()))
        ],
    }
    best_of_each = []
    for method in METHODS:
        possible = [
            replace(forecast, steps=steps_needed(forecast, work))
            for forecast in forecasts[method](devices)
            if memory is None or forecast.memory <= memory
        ]
        if possible:
            best = min(possible, key=lambda forecast: forecast.training)
            alone = min(forecast.seconds for forecast in forecasts[method](1))
            best_of_each.append(replace(best, efficiency=alone / (devices * best.seconds)))
    return best_of_each


def recommended(forecasts: Sequence[Forecast]) -> Forecast | None:
    """The one whose training is shortest; None where there is none."""
    return min(forecasts, key=lambda forecast: forecast.training, default=None)


def curves(
    work: Work, machine: Machine, devices: Sequence[int], *, memory: float | None = None
) -> dict[str, list[Forecast | None]]:
    """`plan` for many numbers of devices, by method; None where a method is left out."""
    if not devices:
        invalid_value("curves devices", "at least one number", "none")
    plans = [{forecast.method: forecast for forecast in plan(work, machine, count, memory=memory)} for count in devices]
    return {method: [by_method.get(method) for by_method in plans] for method in METHODS}


def _divided(work: Work, devices: int) -> list[tuple[int, int]]:
    """Meshes that divide layers, if there are two devices."""
    return [mesh for mesh in meshes(devices, work.batch, work.layers) if mesh[1] > 1 or devices == 1]
