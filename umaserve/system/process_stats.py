"""Statistics of a process from the system: memory, processor time, page faults."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import lru_cache
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")

# what is made of each field of ProcessStats
METRICS_OF = {
    "rss_bytes": "rss_gb",
    "cpu_s": "cpu_s_per_1k_tokens",
    "major_faults": "residency_churn_mb_per_token",
}


class ProcessStats(NamedTuple):
    """``None`` where the system does not tell.  Those of its children count that it waited for."""

    rss_bytes: int | None = None
    cpu_s: float | None = None
    major_faults: int | None = None
    children_cpu_s: float = 0.0


def process_stats(pid: int) -> ProcessStats:
    """Return the statistics of a process of our own; all ``None`` if it has ended."""
    if sys.platform == "darwin":
        return _libproc(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            # the name in parentheses may hold anything; fields count from behind it: state = 0
            fields = file.read(4096).rsplit(b")", 1)[1].split()
    except (OSError, IndexError):
        return ProcessStats()
    return ProcessStats(
        rss_bytes=int(fields[21]) * _PAGE,
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS,
        major_faults=int(fields[9]),
        children_cpu_s=(int(fields[13]) + int(fields[14])) / _TICKS,
    )


def unmeasured() -> tuple[str, ...]:
    """Names of metrics that this system cannot measure: they are null."""
    own = process_stats(os.getpid())
    return tuple(name for field, name in METRICS_OF.items() if getattr(own, field) is None)


class _RusageInfo(ctypes.Structure):
    """``struct rusage_info_v0`` of macOS's <sys/resource.h>; times in units of the Mach clock."""

    _fields_ = [
        ("uuid", ctypes.c_uint8 * 16),
        ("user_time", ctypes.c_uint64),
        ("system_time", ctypes.c_uint64),
        ("pkg_idle_wkups", ctypes.c_uint64),
        ("interrupt_wkups", ctypes.c_uint64),
        ("pageins", ctypes.c_uint64),
        ("wired_size", ctypes.c_uint64),
        ("resident_size", ctypes.c_uint64),
        ("phys_footprint", ctypes.c_uint64),
        ("proc_start_abstime", ctypes.c_uint64),
        ("proc_exit_abstime", ctypes.c_uint64),
    ]


class _Timebase(ctypes.Structure):
    _fields_ = [("numer", ctypes.c_uint32), ("denom", ctypes.c_uint32)]


@lru_cache(maxsize=1)
def _libsystem() -> tuple[ctypes.CDLL, float]:
    """The library, and seconds per unit of the Mach clock."""
    library = ctypes.CDLL("/usr/lib/libSystem.B.dylib")
    base = _Timebase()
    library.mach_timebase_info(ctypes.byref(base))
    return library, base.numer / base.denom / 1e9


def _libproc(pid: int) -> ProcessStats:
    """macOS has no ``/proc``; written from its headers (<libproc.h>), never run."""
    try:
        library, unit_s = _libsystem()
        info = _RusageInfo()
        if library.proc_pid_rusage(pid, 0, ctypes.byref(info)):
            return ProcessStats()
    except (OSError, AttributeError, ZeroDivisionError):
        return ProcessStats()
    cpu_s = (info.user_time + info.system_time) * unit_s
    if pid != os.getpid():
        return ProcessStats(info.resident_size, cpu_s, info.pageins)
    import resource

    past = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ProcessStats(info.resident_size, cpu_s, info.pageins, past.ru_utime + past.ru_stime)
