"""Jobs of torchrun whose processes are killed at random moments, and start again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


class Job:
    """`torchlift train` on a mesh, started by torchrun.

    Arguments:
        config: a TOML file.
        out: the folder of the run.
        mesh: such as "data=2".
        processes: how many that is.
        restarts: how often torchrun may start them again.
        timeout: seconds that the processes wait for each other.
    """

    def __init__(self, config: Path, out: Path, mesh: str, processes: int, restarts: int, timeout: int = 60) -> None:
        self.out, self.processes = out, processes
        options = ["--nproc-per-node", str(processes), "--max-restarts", str(restarts)]
        command = ["-m", "torchlift", "train", str(config), "--mesh", mesh, "--mesh-timeout", str(timeout)]
        command += ["--out", str(out)]
        self.said = out.with_name(f"{out.name}.txt")
        with self.said.open("w") as said:
            self.process = subprocess.Popen(
                [*LAUNCHER, *options, *command], env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=said, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def ranks(self) -> dict[int, int]:
        """{rank: process} of all that are alive, from what Linux knows of them."""
        found: dict[int, int] = {}
        with suppress(OSError):
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            for child in map(int, children):
                with suppress(OSError):
                    variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
                    found |= {int(v.removeprefix(b"RANK=")): child for v in variables if v.startswith(b"RANK=")}
        return found

    def step(self) -> int:
        """The last step that is saved."""
        names = [path.name for path in (self.out / "checkpoints").glob("step-*")]
        return max((int(name.removeprefix("step-")) for name in names), default=0)

    def kill(self, chosen: random.Random, step: int, number: signal.Signals = signal.SIGKILL) -> tuple[int, int] | None:
        """Send a signal to some rank once a step is saved, or soon after the start for step 0; None if all is over."""
        while self.process.poll() is None:
            ranks = self.ranks()
            if len(ranks) == self.processes and self.step() >= step:
                time.sleep(chosen.uniform(0.0, 0.05 if step else 3.0))
                rank = chosen.randrange(self.processes)
                with suppress(ProcessLookupError):
                    os.kill(ranks[rank], number)
                    while ranks[rank] in self.ranks().values() and self.process.poll() is None:
                        time.sleep(0.02)  # until torchrun has buried it
                    return rank, self.step()
            time.sleep(0.005)
        return None

    def end(self, seconds: float) -> int | None:
        """The exit code, or None if it does not end in time; nothing is left running."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        code = self.process.poll()
        for child in self.ranks().values():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        if code is None:
            self.process.kill()
            self.process.wait()
        return code


CONFIG: Mapping[str, str] = {
    "data": """
[data]
images = 41
validation = 10

[network]
widths = [12]
dtype = "float64"

[training]
steps = 12
batch_size = 10
threads = 1
checkpoint_every = 0.0
""",
    "layers": """
[data]
images = 21
validation = 5

[network]
widths = [12, 10]
dtype = "float64"

[training]
steps = 20
batch_size = "full"
lifting = "bregman"
solver = "linearised-bcd"
threads = 1
checkpoint_every = 0.0
""",
}
