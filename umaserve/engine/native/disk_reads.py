"""Bytes that the system has read from disk for this process."""

from __future__ import annotations

import mmap
import resource

BLOCK = 512  # bytes of ``ru_inblock`` on Linux, page faults and what was read ahead among them


def by_process() -> int:
    """Bytes, all threads together; a page for each major page fault where blocks say less."""
    return _bytes(resource.RUSAGE_SELF)


def by_thread() -> int:
    """Bytes of the calling thread; 0 where the system does not tell (macOS)."""
    who = getattr(resource, "RUSAGE_THREAD", None)
    return 0 if who is None else _bytes(who)


def _bytes(who: int) -> int:
    used = resource.getrusage(who)
    return max(BLOCK * used.ru_inblock, mmap.PAGESIZE * used.ru_majflt)
