"""One living process at a time saves into a folder."""

from __future__ import annotations

import os
import sys
import weakref
from pathlib import Path

from torchlift.core.errors import DataError, message

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


class FolderLock:
    """The right to save into a folder, until the object is collected or the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor)
        except OSError as error:
            os.close(descriptor)
            if not isinstance(error, BlockingIOError | PermissionError):
                raise
            hint = "Wait until it has ended, or choose another folder."
            raise DataError(message(str(folder), "no other run that saves there", "one that does", hint)) from error
        weakref.finalize(self, os.close, descriptor)


# Locks belong to processes, so that a forked worker does not keep the one of its parent alive. The system drops
# such a lock when any descriptor of its file is closed: all users in a process share one.
_held: weakref.WeakValueDictionary[tuple[int, Path], FolderLock] = weakref.WeakValueDictionary()


def hold(folder: Path) -> FolderLock:
    """This process's lock of the folder; a DataError when another process has it."""
    key = os.getpid(), folder.resolve()
    lock = _held.get(key) or FolderLock(folder)
    _held[key] = lock
    return lock
