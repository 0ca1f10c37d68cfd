"""Commands in processes of their own, forked from one that has imported torchlift: run as a script, that one.

It is told arguments, a folder and an environment, and given files for output and errors and a pipe, which hears
the number of the process and its exit status. Starting `python -m torchlift` takes seconds, this some milliseconds.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

IMPORTED = ("torch._dynamo", "torchlift.cli.app", "torchlift.cli.train", "torchlift.lab.commands.reproduce")


@cache
def _server() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Where commands are sent to, and the process behind it, which ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, str(Path(__file__).resolve()), str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()
    atexit.register(_end, ours, process)
    return ours, process


def _end(commands: socket.socket, process: subprocess.Popen[bytes]) -> None:
    commands.close()
    process.wait()


class Command:
    """`python -m torchlift` with arguments; it offers what tests use of a `subprocess.Popen` with pipes for text."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.returncode: int | None = None
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 (read when it ends)
        self._status, theirs = os.pipe()
        said = json.dumps({"arguments": list(arguments), "folder": str(Path.cwd()), "environment": dict(os.environ)})
        socket.send_fds(_server()[0], [said.encode()], [self._out.fileno(), self._err.fileno(), theirs])
        os.close(theirs)
        self._lines = os.fdopen(self._status, "r")
        self.pid = int(self._lines.readline())

    def __del__(self) -> None:
        for file in (self._out, self._err, self._lines):
            file.close()

    def poll(self) -> int | None:
        return self._ended(0.0)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Output and errors, when it has ended."""
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired("torchlift", timeout or 0.0)
        for file in (self._out, self._err):
            file.seek(0)
        return self._out.read().decode(), self._err.read().decode()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
            self.returncode = int(self._lines.readline())
        return self.returncode


def popen(command: Sequence[str], **_: Any) -> Command:
    """In the place of `subprocess.Popen`, for a command of torchlift."""
    assert tuple(command[:3]) == (sys.executable, "-m", "torchlift"), command
    return Command(command[3:])


def _serve(descriptor: int) -> None:
    for name in IMPORTED:
        import_module(name)
    commands = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait for commands
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for pytest, which ends this one
    while True:
        said, files, _, _ = socket.recv_fds(commands, 1 << 20, 3)
        if not said:
            os._exit(0)
        if os.fork() == 0:
            commands.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _keep(json.loads(said), *files)
        for file in files:
            os.close(file)


def _keep(said: dict[str, Any], out: int, err: int, status: int) -> None:
    """Fork a process for a command, wait for it, and say how it ended."""
    child = os.fork()
    if child == 0:
        os.close(status)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.chdir(said["folder"])
        os.environ.clear()
        os.environ.update(said["environment"])
        os._exit(_run(said["arguments"]))
    os.write(status, f"{child}\n".encode())
    _, ended = os.waitpid(child, 0)
    os.write(status, f"{os.waitstatus_to_exitcode(ended)}\n".encode())
    os._exit(0)


def _run(arguments: list[str]) -> int:
    """What `python -m torchlift` does, and its exit status."""
    code: Any = 1
    sys.argv = ["torchlift", *arguments]
    try:
        code = import_module("torchlift.cli").main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return int(code)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
