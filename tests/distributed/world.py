"""Real processes on this machine for tests: many cases in one world, because a process takes seconds to start."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


class World:
    """Processes that each call functions of a module of this folder and write down what they return.

    Args:
        folder: for the rendezvous and the answers; empty.
        processes: how many.
        module: of this folder, by name.
    """

    def __init__(self, folder: Path, processes: int, module: str, *arguments: str) -> None:
        self.folder = folder
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        command = [sys.executable, str(HERE / "world.py"), str(folder), str(processes), module, *arguments]
        self.processes = []
        for rank in range(processes):
            with (folder / f"out-{rank}").open("w") as out:
                own = [*command[:4], str(rank), *command[4:]]
                self.processes.append(subprocess.Popen(own, env=environment, stdout=out, stderr=subprocess.STDOUT))

    def wait(self, seconds: float) -> list[int | None]:
        """Exit codes; whoever is still at work then is killed, and has none."""
        end = time.monotonic() + seconds
        codes: list[int | None] = []
        for process in self.processes:
            try:
                codes.append(process.wait(max(0.1, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(None)
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        return codes

    def answers(self) -> list[dict[str, Any]]:
        """By rank: {case: what it returned, or a text that starts with "error"}."""
        found = []
        for rank in range(len(self.processes)):
            path = self.folder / f"answer-{rank}.json"
            lines = path.read_text().splitlines() if path.exists() else []
            found.append({name: value for line in lines for name, value in json.loads(line).items()})
        return found

    def output(self) -> str:
        return "\n".join((self.folder / f"out-{rank}").read_text()[-3000:] for rank in range(len(self.processes)))


def run(folder: Path, processes: int, module: str, *arguments: str, seconds: float = 100.0) -> list[dict[str, Any]]:
    """The answers of a world whose processes all end well."""
    folder.mkdir(parents=True, exist_ok=True)
    world = World(folder, processes, module, *arguments)
    codes = world.wait(seconds)
    assert codes == [0] * processes, f"{codes}\n{world.output()}"
    return world.answers()


def main(folder: Path, processes: int, rank: int, module: str, *arguments: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    sys.path.insert(0, str(HERE.parent))
    cases: dict[str, Callable[[], Any]] = importlib.import_module(f"distributed.{module}").cases(*arguments)
    place = f"file://{folder / 'rendezvous'}"
    dist.init_process_group("gloo", place, timedelta(seconds=60), world_size=processes, rank=rank)
    with (folder / f"answer-{rank}.json").open("w") as file:
        for name, case in cases.items():
            begin = time.process_time()
            try:
                answer = case()
            except Exception as error:
                traceback.print_exc()
                answer = f"error {type(error).__name__}: {error}"
            file.write(json.dumps({name: answer}) + "\n")
            file.flush()
            print(f"{time.process_time() - begin:.2f} s  {name}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
