"""What a process and its children have used, from ``/proc`` (Linux) or psutil elsewhere."""

from __future__ import annotations

import psutil


def family(pid: int) -> list[psutil.Process]:
    """The process and all its descendants that live."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def cpu_s(pid: int) -> float:
    """CPU seconds, user and system, of the process and its living descendants so far."""
    total = 0.0
    for process in family(pid):
        times = process.cpu_times()
        total += times.user + times.system
    return total
