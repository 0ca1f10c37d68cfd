"""What `torchlift train` shows: the plan before, the table after."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from torchlift.cli.command import Record
from torchlift.cli.settings.setup import Setup
from torchlift.cli.tables import columns, facts
from torchlift.core.memory import format_bytes
from torchlift.networks import Network
from torchlift.training.memory import plan_memory

#: Deeper networks are not drawn.
DRAWN = 12


def plan(setup: Setup) -> Record:
    """Sizes, memory, solvers and budgets of a run."""
    network, samples, held_out = setup.network, setup.samples, setup.held_out()
    phases = []
    for phase in setup.phases:
        planned = setup.planned(phase)
        memory = plan_memory(planned, held_out)
        phases.append(
            {
                "name": phase.title,
                "lifting": None if phase.lifting is None else repr(phase.lifting),
                "solver": repr(phase.method),
                "batch_size": planned.batches.batch_size,
                "steps_per_epoch": planned.per_epoch,
                "steps": planned.total_steps,
                "time_limit": phase.time_limit,
                "memory": dict(memory.rows),
            }
        )
    return {
        "data": {
            "task": setup.configuration.data.task,
            "set": setup.configuration.data.set,
            "samples": len(samples.train.y),
            "validation": 0 if samples.validation is None else len(samples.validation.y),
            "y": list(samples.in_shape),
            "x": list(samples.train.x.shape[1:]),
        },
        "network": {
            **described(setup, network),
            "shapes": {name: list(parameter.shape) for name, parameter in network.named_parameters()},
            "picture": network.picture() if network.depth <= DRAWN else None,
        },
        "loss": repr(setup.loss),
        "metrics": [metric.name for metric in setup.metrics],
        "phases": phases,
    }


def described(setup: Setup, network: Network) -> Record:
    """Kind and sizes of a network."""
    return {
        "kind": setup.configuration.network.kind,
        "in_shape": list(network.in_shape),
        "out_shape": list(network.out_shape),
        "depth": network.depth,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
    }


def show_plan(record: Record, console: Console) -> None:
    data, network = record["data"], record["network"]
    table = facts()
    where = f"{data['task']} on {data['set']}"
    table.add_row(
        "data", f"{where}: {data['samples']:,} to train, {data['validation']:,} to validate, {_size(data['y'])} each"
    )
    table.add_row("network", _network(network))
    for name, shape in network["shapes"].items():
        table.add_row("", f"{name}  {_size(shape)}")
    table.add_row("loss", record["loss"])
    table.add_row("metrics", ", ".join(record["metrics"]))
    for number, phase in enumerate(record["phases"], start=1):
        table.add_row(f"phase {number}", phase["name"])
        table.add_row("", f"solver  {phase['solver']}")
        table.add_row("", _budget(phase))
        memory = ", ".join(f"{name} {format_bytes(size)}" for name, size in phase["memory"].items())
        table.add_row("", f"memory  {memory}")
    console.print(table)
    if network["picture"] is not None:
        console.print()
        console.print(network["picture"], soft_wrap=True)
    console.print("\nNothing was trained.")


def show_result(record: Record, console: Console) -> None:
    console.print(record["message"])
    console.print()
    if record["validation"]:
        console.print(_metrics_table(record))
        console.print()
    table = facts()
    table.add_row("network", _network(record["network"]))
    speed = record["steps"] / record["seconds"] if record["seconds"] else 0.0
    table.add_row(
        "time", f"{record['seconds']:.1f} s, {speed:.3g} steps/s, threads: {record['environment']['threads']}"
    )
    if record["folder"] is not None:
        table.add_row("files", f"{record['folder']}: {', '.join(record['files'])}")
    console.print(table)


def _metrics_table(record: Record) -> Table:
    units: dict[str, str] = record["units"]
    table = columns(["validation"], [f"{name} ({unit})" if unit else name for name, unit in units.items()])
    for name, values in record["validation"].items():
        step = "" if values["step"] is None else f" (step {values['step']})"
        table.add_row(name + step, *(_number(values["metrics"].get(metric)) for metric in units))
    return table


def _network(network: dict[str, Any]) -> str:
    sizes = f"{_size(network['in_shape'])} → {_size(network['out_shape'])}"
    return f"{network['kind']}, {sizes}, J = {network['depth']}, {network['parameters']:,} parameters"


def _budget(phase: dict[str, Any]) -> str:
    limit = "" if phase["time_limit"] is None else f"{phase['time_limit']:g} s"
    steps = "" if phase["steps"] is None else f"{phase['steps']:,} steps"
    budget = f"at most {limit} or {steps}" if limit and steps else limit or steps
    return f"budget  {budget}; {phase['batch_size']:,} samples per step, {phase['steps_per_epoch']:,} steps per epoch"


def _size(shape: list[int]) -> str:
    return "×".join(map(str, shape)) or "1"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}" if abs(value) < 10 else f"{value:.2f}"
