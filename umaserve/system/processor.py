"""Name, cores and use of the processor, and facts that macOS tells by sysctl(3)."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

_STAT = Path("/proc/stat")


def sysctl(*names: str) -> list[str]:
    """Return a line for each of these names that the system knows: ``name: value``.

    A name of a branch, such as ``hw.optional.arm``, has a line for each name below it.  The
    program's path is whole, since not every ``PATH`` has its folder.
    """
    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-i", *names], capture_output=True, text=True, check=False
        )
    except OSError:
        return []
    return done.stdout.splitlines()


def logical_cores() -> int:
    """Logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor_name() -> str:
    """Name of the processor's model, or of its architecture where the system tells no model."""
    if sys.platform == "darwin":
        lines, mark = sysctl("machdep.cpu.brand_string"), "machdep.cpu.brand_string"
    else:
        lines, mark = _cpuinfo(), "model name"
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == mark and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []


class CpuTimes(NamedTuple):
    """Clock ticks of processors since the start of the machine: in use, and all."""

    busy: int
    whole: int


def cpu_times(own: bool = False) -> CpuTimes | None:
    """Times of all processors, or of those that this process may run on; None without ``/proc``."""
    busy = whole = 0
    try:
        lines = _STAT.read_text("ascii").splitlines()
        names = {f"cpu{number}" for number in os.sched_getaffinity(0)} if own else {"cpu"}
        for name, *words in map(str.split, lines):
            if name in names:
                counts = [int(word) for word in words[:8]]  # behind these, guests count again
                whole += sum(counts)
                busy += sum(counts) - sum(counts[3:5])  # without what waits for a disk
    except (OSError, ValueError):
        return None
    return CpuTimes(busy, whole)
