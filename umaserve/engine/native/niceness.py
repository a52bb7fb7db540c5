"""Threads that let others go first."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

NICENESS = 5  # others who wake up take this core first, not the engine's
LAST = 10  # of a thread whose work nobody waits for
_PRIO_DARWIN_THREAD, _PRIO_DARWIN_BG = 3, 0x1000  # <sys/resource.h>, as read; never run


def stand_back(niceness: int = NICENESS) -> None:
    """Let others go before the calling thread, where a thread has a niceness of its own."""
    with contextlib.suppress(OSError):
        if sys.platform == "darwin" and niceness >= LAST:
            os.setpriority(_PRIO_DARWIN_THREAD, 0, _PRIO_DARWIN_BG)
        elif sys.platform.startswith("linux"):  # elsewhere it would be the whole process
            thread = threading.get_native_id()
            now = os.getpriority(os.PRIO_PROCESS, thread)
            # only root may have less of it than before
            os.setpriority(os.PRIO_PROCESS, thread, max(now, niceness))
