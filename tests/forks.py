"""A process that forks a child for every action it is told: quick, because torch is imported once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


class Forks:
    """Starts actions of a script in new processes, hears what they say, kills them.

    The script reads JSON lines [action, arguments…] and prints the number of
    the child, what the child says, and "status …".
    """

    def __init__(self, script: Path, *options: str) -> None:
        command = [sys.executable, *options, str(script)]
        self._parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, action: str, *arguments: object) -> int:
        """The number of the new process."""
        assert self._parent.stdin is not None
        print(json.dumps([action, *map(str, arguments)]), file=self._parent.stdin, flush=True)
        return int(self.line())

    def line(self) -> str:
        assert self._parent.stdout is not None
        return self._parent.stdout.readline().rstrip("\n")

    def end(self) -> list[str]:
        """All that is left to hear; the last line is the exit status."""
        lines = [self.line()]
        while not lines[-1].startswith("status "):
            assert lines[-1], "the process that forks has died"
            lines.append(self.line())
        return lines

    def run(self, action: str, *arguments: object) -> list[str]:
        self.start(action, *arguments)
        return self.end()

    def close(self) -> None:
        self._parent.communicate()
