"""The rule for processes that fork: no other thread may run in them.

A fork copies the calling thread alone.  A lock that another thread held stays locked in the child,
and GNU OpenMP there waits for threads that do not exist.
"""

from __future__ import annotations

import os
from pathlib import Path

TASKS = Path("/proc/self/task")


def require_one_thread() -> None:
    """Raise RuntimeError where this process has several threads, and name them.  Linux alone."""
    tasks = os.listdir(TASKS)
    if len(tasks) > 1:
        names = ", ".join((TASKS / task / "comm").read_text().strip() for task in tasks)
        raise RuntimeError(f"a process of {len(tasks)} threads must not fork: {names}")
