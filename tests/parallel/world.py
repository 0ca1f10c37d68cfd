"""Real processes on this machine for tests: many cases in one world, because a process takes seconds to start."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


class World:
    """Processes that each call functions of a module of this folder and write down what they return.

    One process imports everything and is forked, because importing torch takes longer than most cases.

    Args:
        folder: for the rendezvous and the answers; empty.
        processes: how many.
        module: of this folder, by name.
    """

    def __init__(self, folder: Path, processes: int, module: str, *arguments: str) -> None:
        self.folder, self.count = folder, processes
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        command = [sys.executable, str(HERE / "world.py"), str(folder), str(processes), module, *arguments]
        with (folder / "out").open("w") as out:
            self.process = subprocess.Popen(
                command, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait(self, seconds: float) -> list[int | None]:
        """Exit codes; whoever is still at work then is killed, and has none."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        files = [self.folder / f"code-{rank}" for rank in range(self.count)]
        return [int(file.read_text()) if file.exists() else None for file in files]

    def answers(self) -> list[dict[str, Any]]:
        """By rank: {case: what it returned, or a text that starts with "error"}."""
        found = []
        for rank in range(self.count):
            path = self.folder / f"answer-{rank}.json"
            lines = path.read_text().splitlines() if path.exists() else []
            found.append({name: value for line in lines for name, value in json.loads(line).items()})
        return found

    def output(self) -> str:
        return (self.folder / "out").read_text()[-8000:]


def run(folder: Path, processes: int, module: str, *arguments: str, seconds: float = 100.0) -> list[dict[str, Any]]:
    """The answers of a world whose processes all end well."""
    folder.mkdir(parents=True, exist_ok=True)
    world = World(folder, processes, module, *arguments)
    codes = world.wait(seconds)
    assert codes == [0] * processes, f"{codes}\n{world.output()}"
    return world.answers()


def main(folder: Path, processes: int, module: str, *arguments: str) -> None:
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(HERE.parent))
    cases = importlib.import_module(f"parallel.{module}").cases
    ranks: dict[int, int] = {}
    for rank in range(processes):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                work(folder, processes, rank, cases(*arguments))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        ranks[child] = rank
    for _ in range(processes):
        child, status = os.wait()
        (folder / f"code-{ranks[child]}").write_text(str(os.waitstatus_to_exitcode(status)))


def work(folder: Path, processes: int, rank: int, cases: dict[str, Callable[[], Any]]) -> None:
    """What one process does."""
    import torch.distributed as dist

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
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
