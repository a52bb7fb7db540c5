"""Threads that let others go first."""

from __future__ import annotations

import os
import sys
import threading

NICENESS = 5  # others who wake up take this core first, not the engine's


def stand_back() -> None:
    """Let others go before this thread, where a thread has a niceness of its own (Linux)."""
    if sys.platform.startswith("linux"):
        thread = threading.get_native_id()
        now = os.getpriority(os.PRIO_PROCESS, thread)
        # only root may have less of it than before
        os.setpriority(os.PRIO_PROCESS, thread, max(now, NICENESS))
