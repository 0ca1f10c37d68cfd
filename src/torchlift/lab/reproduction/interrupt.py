"""Whether Ctrl-C was pressed, even where someone else has answered it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def noticing_interrupts() -> Iterator[Callable[[], bool]]:
    """Tells whether SIGINT has arrived since the beginning of the block.

    `train` and the solvers turn Ctrl-C into a result and return early, with
    handlers of their own. The wake-up descriptor of `signal` sees the signal
    whoever handles it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread is interrupted
        return
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)  # an event loop needs it more than we do
    seen = bytearray()

    def interrupted() -> bool:
        with suppress(BlockingIOError):
            seen.extend(os.read(reader, 4096))
        return signal.SIGINT in seen

    try:
        yield interrupted
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)
