"""The rule for processes that fork: no other thread may run in them.

A fork copies the calling thread alone.  A lock that another thread held stays locked in the child,
and GNU OpenMP there waits for threads that do not exist.
"""

from __future__ import annotations

import os
from contextlib import suppress

TASKS = "/proc/self/task"


def has_one_thread() -> bool:
    """Return whether this process surely has one thread; False where the system does not tell."""
    return len(_names()) == 1


def require_one_thread() -> None:
    """Raise RuntimeError unless `has_one_thread`; the message names the threads."""
    names = _names()
    if len(names) != 1:
        known = f"{len(names)} threads" if names else "an unknown number of threads"
        raise RuntimeError(f"a process of {known} must not fork: {', '.join(names)}")


def _names() -> list[str]:
    """Names of the threads; none where there is no ``/proc``."""
    names = []
    with suppress(OSError):
        for task in os.listdir(TASKS):
            with open(f"{TASKS}/{task}/comm", encoding="utf-8", errors="replace") as name:
                names.append(name.read().strip())
    return names
