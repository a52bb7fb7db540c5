"""Where the front runs while nothing is asked: not on the core that the engine's loop wakes on.

Who connects wakes both, the front to read the request and the loop to be ready for it.  The loop
has a core of its own (`umaserve.engine.model.thread_places`).  If the front happens to be there,
one of them waits for the other for about a millisecond.  While requests run, the front may run
anywhere.

Concerns the calling thread alone, and what it starts meanwhile; on Linux only.
"""

from __future__ import annotations

import os
from collections.abc import Collection

_all: set[int] = set()  # what the system allowed before; empty while nothing is kept off


def keep_off(cpus: Collection[int]) -> None:
    """Leave these CPUs to others, if there are any besides, until `go_anywhere`."""
    if not _all:
        _all.update(keep_off_here(cpus))


def go_anywhere() -> None:
    """Run wherever the system allowed before."""
    if _all:
        _set(_all)
        _all.clear()


def keep_off_here(cpus: Collection[int]) -> set[int]:
    """The same for good, by a thread that the loop wakes: Linux would rather wake it on the loop's
    core than on any other that is busy.  Returns what was allowed before, if that was changed."""
    if not cpus or not hasattr(os, "sched_setaffinity"):
        return set()
    allowed = os.sched_getaffinity(0)
    left = allowed.difference(cpus)
    if not left or left == allowed:
        return set()
    _set(left)
    return allowed


def go_anywhere_here() -> None:
    """The same for a thread that was started meanwhile, and keeps off what its starter did."""
    if _all:
        _set(_all)


def _set(cpus: set[int]) -> None:
    try:
        os.sched_setaffinity(0, cpus)
    except OSError:  # the system has taken CPUs away meanwhile, and chosen others for us
        return
