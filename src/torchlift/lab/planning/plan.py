"""All methods side by side, each on its best mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torchlift.core.checks import check_size
from torchlift.core.errors import invalid_value
from torchlift.lab.planning.forecast import Forecast, Work, meshes
from torchlift.lab.planning.machine import Machine
from torchlift.lab.planning.methods import data_parallel, late_sweeps, lifting, pipelined, steps_needed

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
