"""One living process at a time saves into a folder."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from filelock import FileLock, Timeout

from torchlift.core.errors import DataError, message


class FolderLock:
    """The right to save into a folder, until the object is collected or the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        self._lock = FileLock(folder / ".lock", thread_local=False)
        try:
            self._lock.acquire(blocking=False)
        except Timeout as error:
            hint = "Wait until it has ended, or choose another folder."
            raise DataError(message(str(folder), "no other run that saves there", "one that does", hint)) from error


# All users in a process share one lock; a forked process is another one.
_held: weakref.WeakValueDictionary[tuple[int, Path], FolderLock] = weakref.WeakValueDictionary()


def hold(folder: Path) -> FolderLock:
    """This process's lock of the folder; a DataError when another process has it."""
    key = os.getpid(), folder.resolve()
    lock = _held.get(key) or FolderLock(folder)
    _held[key] = lock
    return lock
