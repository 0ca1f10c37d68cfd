"""Back-propagation whose samples are divided, or whose layers are."""

from __future__ import annotations

from torchlift.lab.planning.forecast import Forecast
from torchlift.lab.planning.machine import Machine
from torchlift.lab.planning.work import Work

#: Copies of the activations, which are kept for the way back, and of the parameters: weights and gradients.
STATES, PARAMETERS = 1.3, 2.0


def data_parallel(work: Work, machine: Machine, data: int = 1) -> Forecast:
    """Every device has the whole network and b = ⌈B/Q⌉ samples; gradients are summed on the way back.

    work     = 3L·2bN²/F + L·((p_s bN + p_w N²)s/M + o)
    exchange = sum over Q of L·N²s, of which the share `overlap` hides behind the way back, ⅔ of the work
    """
    samples = work.most_samples(data)
    passes = machine.passes["back-propagation"]
    compute = work.most_products(1) * machine.product(samples, work.width, work.number)
    touched = passes.states * samples * work.width + passes.parameters * work.width**2
    compute += work.layers * (machine.touch(touched, work.number) + passes.overhead)
    exchange = _exposed(machine, machine.total(work.layers * work.weights, data), compute)
    # one more copy of the gradients is in the buckets that are summed
    copies = PARAMETERS + (data > 1)
    memory = work.layers * (copies * work.weights + STATES * work.states(samples))
    return Forecast("data-parallel", data, data, 1, 1, compute, exchange, 0.0, memory)


def pipelined(work: Work, machine: Machine, data: int, layers: int, micro_batches: int) -> Forecast:
    """Schedule 1F1B: P stages of l = ⌈L/P⌉ layers work on m micro-batches of c = ⌈b/m⌉ samples one after the other.

        slot     = 3l·2cN²/F + l·(p_s cNs/M + o)               one micro-batch, forward and back
        work     = m·slot + l·p_w N²s/M
        idle     = (P − 1)·(slot + 2(λ + cNs/β))               the pipeline fills and drains
        exchange = (1 − overlap)·m(λ + 2cNs/β) + sum over Q of l·N²s, hidden as above

    While one neighbour waits for a message the other works, so that of the two
    latencies per micro-batch one counts. A stage keeps the activations of P micro-batches at most.
    """
    count, samples = work.most_layers(layers), -(-work.most_samples(data) // micro_batches)
    passes = machine.passes["back-propagation"]
    slot = work.most_products(layers) * machine.product(samples, work.width, work.number)
    slot += count * (machine.touch(passes.states * samples * work.width, work.number) + passes.overhead)
    compute = micro_batches * slot + count * machine.touch(passes.parameters * work.width**2, work.number)
    hop = 2 * machine.message(work.states(samples)) if layers > 1 else 0.0
    exposed = micro_batches * (hop - machine.latency) if layers > 1 else 0.0
    exchange = (1 - machine.overlap) * exposed
    exchange += _exposed(machine, machine.total(count * work.weights, data), compute)
    kept = min(layers, micro_batches) * samples
    memory = count * ((PARAMETERS + (data > 1)) * work.weights + STATES * work.states(kept))
    idle = (layers - 1) * (slot + hop)
    return Forecast("pipelined", data * layers, data, layers, micro_batches, compute, exchange, idle, memory)


def _exposed(machine: Machine, total: float, work: float) -> float:
    """What is left of a sum of gradients that is begun on the way back."""
    return total - min(machine.overlap * total, work * 2 / 3)
