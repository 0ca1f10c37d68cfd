"""Training runs that can be killed: run as a script, this forks one for each line it is sent.

A line is a JSON list, the name of an action and its arguments. The answer is
the number of the process, then what the action prints, then its exit status.
Forking spares every run the seconds that importing torch takes.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from dataclasses import fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import torchlift as tl
from torchlift.core.errors import DataError
from torchlift.functions.regularisers import L1, Ridge
from torchlift.liftings import Bregman, Contrastive, Conventional
from torchlift.solvers import Backtracking, BlockCoordinateDescent, ImplicitStochasticGradient, ProximalGradient
from torchlift.training import BackPropagation, SweepDescent, TrainingInterrupted

torch.set_num_threads(1)

SIZES = [6, 8, 8, 3]
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
EXACT = ImplicitStochasticGradient(0.5, BlockCoordinateDescent(tolerance=0.1, inner_steps=5))

OPTIONS = {field.name for field in fields(tl.TrainOptions)}

#: Arguments and options of `tl.train` by name; each is a run of a dozen steps or more, with evaluations in between.
RUNS: dict[str, dict[str, Any]] = {
    "sweep": {"epochs": 5, "evaluate_every": 2},
    "sweep, annealed": {"epochs": 4, "solver": SweepDescent(partial(torch.optim.Adam, lr=1e-2), anneal="cosine")},
    "sweep, centred": {"epochs": 4, "solver": SweepDescent(SGD, centring=True)},
    "sweep, full": {"steps": 12, "batch_size": "full", "evaluate_every": 3},
    "contrastive": {"epochs": 4, "lifting": Contrastive(1.0)},
    "back-propagation": {"epochs": 4, "lifting": Conventional()},
    "linear": {"epochs": 4, "lifting": Conventional(), "solver": BackPropagation(SGD, anneal="linear")},
    "SGD": {"epochs": 4, "lifting": Conventional(), "solver": SGD},
    "Adam": {"epochs": 4, "lifting": Conventional(), "solver": torch.optim.Adam},
    "LBFGS": {"steps": 12, "lifting": Conventional(), "solver": partial(torch.optim.LBFGS, lr=0.3, max_iter=2)},
    "implicit": {"epochs": 3, "lifting": Bregman(1.0)},
    "exact": {"steps": 4, "lifting": Bregman(1.0), "solver": EXACT, "evaluate_every": 1},
    "random": {"epochs": 3, "lifting": Bregman(1.0), "states": "random"},
    "warm": {"epochs": 3, "lifting": Bregman(1.0), "states": "warm"},
    "full": {"steps": 12, "lifting": Bregman(1.0), "batch_size": "full", "evaluate_every": 3},
    "full, proximal": {"steps": 12, "batch_size": "full", "solver": ProximalGradient(Backtracking())},
    "coupled": {"epochs": 3, "lifting": Bregman(1.0), "coupling": 2.0},
    "coupled, warm": {"epochs": 3, "lifting": Bregman(1.0), "coupling": 2.0, "states": "warm"},
    "coupled, full": {"steps": 12, "lifting": Bregman(1.0), "coupling": 2.0, "batch_size": "full"},
    "regularised": {
        "epochs": 3, "lifting": Bregman(1.0), "state_regularisers": {1: L1(1e-3)},
        "parameter_regularisers": {"*weight": Ridge(1e-2)},
    },
    "patience": {"epochs": 30, "patience": 2, "lifting": Conventional(), "solver": SGD, "evaluate_every": 3},
    "tolerance": {"epochs": 30, "tolerance": 0.2},
    "phases": {
        "phases": [
            tl.Phase(steps=7, name="sweeps"),
            tl.Phase(Bregman(1.0), batch_size="full", steps=5, name="full"),
            tl.Phase(Conventional(), SGD, epochs=2, name="SGD"),
        ]
    },
    "phases that converge": {
        "phases": [tl.Phase(epochs=30, name="sweeps"), tl.Phase(Conventional(), SGD, steps=6, name="SGD")],
        "tolerance": 0.4,
    },
}  # fmt: skip


def arguments(name: str) -> dict[str, Any]:
    """A new network and its data; the same numbers in every process."""
    generator = torch.Generator().manual_seed(5)
    torch.manual_seed(2)
    network = tl.networks.MLP(SIZES)
    y = torch.rand(50, 6, generator=generator)
    x = torch.stack([y.sum(1), y[:, 0] * y[:, 1], y[:, 2].square()], 1)
    data, held_out = (y[:40], x[:40]), (y[40:], x[40:])
    return {"network": network, "data": data, "validation": held_out, "batch_size": 12, **RUNS[name]}


def called(settings: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `tl.train` from arguments and options together."""
    options = {name: value for name, value in settings.items() if name in OPTIONS}
    rest = {name: value for name, value in settings.items() if name not in OPTIONS}
    return {**rest, "options": tl.TrainOptions(**options)} if options else rest


def train(name: str, folder: str | Path | None = None, **more: Any) -> tl.training.Training:
    return tl.train(**called({**arguments(name), "folder": folder, **more}))


def run(name: str, folder: str) -> None:
    """To the end, from where it was left."""
    print(train(name, folder, resume=True, checkpoint_every=0.0).message.splitlines()[0], flush=True)


def run_slowly(name: str, folder: str) -> None:
    """Announces each row and waits a moment, so that signals find the run at work."""

    def say(row: Any) -> None:
        print(row["step"], flush=True)
        signal.sigtimedwait([], 0.05)

    try:
        print(
            train(name, folder or None, resume=bool(folder), callback=say, epochs=400, phases=None).message, flush=True
        )
    except TrainingInterrupted as stopped:
        print(stopped.result.message, flush=True)


def run_with_a_limit(name: str, folder: str, size: str, checkpoint_every: str) -> None:
    """Files may not grow beyond so many bytes: the system refuses to write more."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), int(size)))
    try:
        train(name, folder, resume=True, checkpoint_every=float(checkpoint_every))
        print("done", flush=True)
    except DataError as error:
        print(error, flush=True)


ACTIONS = {action.__name__: action for action in (run, run_slowly, run_with_a_limit)}


def main() -> None:
    import_module("torch._dynamo")  # which the first optimiser of every process would import otherwise
    for line in sys.stdin:
        name, *texts = json.loads(line)
        child = os.fork()
        if child == 0:
            print(os.getpid(), flush=True)
            ACTIONS[name](*texts)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(f"status {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    main()
