"""Folders that appear complete on the disk, or not at all, and into which one living process at a time saves."""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from torchlift.core.errors import DataError, message, system_words


@contextmanager
def replacing(folder: Path) -> Generator[Path, None, None]:
    """A new folder `.name.new` that takes the place of `folder` at the end of the block.

    What is replaced waits as `.name.old` until the new one is in place, so at
    every moment one of the two is complete: see `present`.

    Raises:
        DataError: The disk is full or refuses; `folder` is then as it was.
    """
    new, old = hidden(folder, "new"), hidden(folder, "old")
    try:
        with writing(folder):
            remove(new)
            new.mkdir(parents=True)
            yield new
            sync(new)
            if os.path.lexists(folder):
                remove(old)
                folder.rename(old)
            new.rename(folder)
            sync(folder.parent)
            remove(old)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def present(folder: Path) -> Path:
    """The folder, or the old one if a crash came between the two renames of `replacing`."""
    old = hidden(folder, "old")
    return old if not os.path.lexists(folder) and old.exists() else folder


@contextmanager
def writing(path: Path) -> Generator[None, None, None]:
    """Failures to write become a DataError that names the path and the reason."""
    try:
        yield
    except DataError:
        raise
    except (OSError, SafetensorError) as error:
        hint = "Make room or choose another folder; what was saved before is intact."
        raise DataError(message(str(path), "to be able to write there", reason(error), hint)) from error


def discard(folder: Path) -> None:
    """Remove a folder; out of sight at once, so that a kill leaves no half of it under its name."""
    gone = hidden(folder, "gone")
    remove(gone)
    folder.rename(gone)
    remove(gone)


def remove(path: Path) -> None:
    """Remove whatever is there, if anything; of a symbolic link only the link."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def sync(path: Path) -> None:
    """Return when the file, or the names in the folder, have reached the disk."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":
        return  # Windows opens no folders
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hidden(folder: Path, ending: str) -> Path:
    return folder.with_name(f".{folder.name}.{ending}")


def reason(error: Exception) -> str:
    """What the system said, without the path and the number."""
    return system_words(error) if isinstance(error, OSError) else str(error) or type(error).__name__


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
