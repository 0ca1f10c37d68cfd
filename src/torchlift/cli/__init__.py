"""The `torchlift` command; importing this package loads none of its heavy parts."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status (0: done, 2: bad input, 130: stopped by Ctrl-C)."""
    if arguments is None:  # the process is ours alone
        _stop_at_once()
    from torchlift.cli.app import run

    return run(sys.argv[1:] if arguments is None else arguments)


def interruptible() -> None:
    """Once everything is loaded, Ctrl-C is a KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _stop_at_once() -> None:
    """Ctrl-C ends the process while it is loading, when there is nothing to save.

    An exception in the middle of importing torch or NumPy comes out as another one, or as a message of C++. Where
    Ctrl-C is ignored, as by nohup, it stays so.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)


def _stop(number: int, frame: object) -> None:
    try:
        os.write(2, b"torchlift: stopped\n")
    finally:  # also where there is nowhere to write to
        os._exit(128 + number)
