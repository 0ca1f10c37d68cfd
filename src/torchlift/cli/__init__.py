"""The `torchlift` command; importing this package loads none of its heavy parts."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status (0: done, 2: bad input)."""
    from torchlift.cli.app import run

    return run(sys.argv[1:] if arguments is None else arguments)
