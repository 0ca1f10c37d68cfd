"""Real processes on this machine for tests: many cases in one world, because a process takes seconds to start."""

from __future__ import annotations

import atexit
import gc
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
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


@cache
def server() -> subprocess.Popen[str]:
    """A process that has imported everything and is forked for every world; it ends with this one."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    command = [sys.executable, str(HERE / "world.py")]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.communicate)  # closes its input, after which it ends
    return process


class World:
    """Processes that each call functions of a module of this folder and write down what they return.

    Arguments:
        folder: for the rendezvous and the answers; empty.
        processes: how many.
        module: of this folder, by name.
    """

    def __init__(self, folder: Path, processes: int, module: str, *arguments: str) -> None:
        self.folder, self.count = folder, processes
        pipe = server()
        assert pipe.stdin is not None and pipe.stdout is not None
        print(json.dumps([str(folder), processes, module, *arguments]), file=pipe.stdin, flush=True)
        self.group = int(pipe.stdout.readline())

    def wait(self, seconds: float) -> list[int | None]:
        """Exit codes; whoever is still at work then is killed, and has none."""
        end = time.monotonic() + seconds
        files = [self.folder / f"code-{rank}" for rank in range(self.count)]
        while time.monotonic() < end and self._alive() and not all(file.exists() for file in files):
            time.sleep(0.02)
        with suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)
        return [int(file.read_text()) if file.exists() else None for file in files]

    def _alive(self) -> bool:
        try:
            os.killpg(self.group, 0)
        except ProcessLookupError:
            return False
        return True

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


def main() -> None:
    """Fork a world for every line of input, and say which process group it is."""
    import torch
    import torch._dynamo  # which the first optimiser of every process would import otherwise

    torch.set_num_threads(1)
    sys.path.insert(0, str(HERE.parent))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for worlds that have ended
    for line in sys.stdin:
        folder, processes, module, *arguments = json.loads(line)
        cases = importlib.import_module(f"parallel.{module}").cases
        gc.freeze()  # `train` collects garbage after every run on a mesh, and need not look at all that is imported
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setpgid(0, 0)
            out = os.open(Path(folder) / "out", os.O_WRONLY | os.O_CREAT)
            for stream in (1, 2):
                os.dup2(out, stream)
            lead(Path(folder), processes, lambda cases=cases, arguments=arguments: cases(*arguments))
            os._exit(0)
        with suppress(OSError):  # the child may have done so, or be gone
            os.setpgid(child, child)
        print(child, flush=True)


def lead(folder: Path, processes: int, cases: Callable[[], dict[str, Callable[[], Any]]]) -> None:
    """Fork the processes of a world, and write down how they end."""
    ranks: dict[int, int] = {}
    for rank in range(processes):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                work(folder, processes, rank, cases())
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        ranks[child] = rank
    for _ in range(processes):
        child, status = os.wait()
        part = folder / f"code-{ranks[child]}.part"
        part.write_text(str(os.waitstatus_to_exitcode(status)))
        part.rename(part.with_suffix(""))  # whoever sees the file sees all of it


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
    main()
