"""The machine that a result was measured on, as recorded with it; no host name."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import umaserve
from umaserve.system.process_stats import process_stats
from umaserve.system.processor import cpu_times, logical_cores, processor_name

PACKAGES = ("numpy", "numba", "trio", "msgspec")
LOOK_S = 1.0


def describe(info: dict[str, Any], others: float) -> dict[str, Any]:
    """Processor, system, versions and model; ``info`` is the daemon's.

    ``others``: what `used_by_others` said before.
    """
    model = info["model"]
    found = {
        "processor": processor_name(),
        "cores": logical_cores(),
        "memory_gb": memory_gb(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "umaserve": info.get("version") or umaserve.__version__,
        "llama.cpp": model.get("library_version"),
        "backend": model.get("backend"),
        "device": model.get("device"),
        "model": model.get("name"),
        "model_description": model.get("description"),
        "model_bytes": model.get("model_bytes"),
        "n_ctx": model.get("n_ctx"),
        "parallel": model.get("n_seq"),
        "threads": model.get("n_threads"),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "used_by_others_pct": round(100 * others, 1),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }
    return {name: value for name, value in found.items() if value is not None}


def memory_gb() -> float | None:
    """Physical memory, 10^9 bytes."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (OSError, ValueError):
        return None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def used_by_others(own: Sequence[int] = ()) -> float:
    """The share, from 0 to 1, of these cores' time that others use for about ``LOOK_S``.

    ``own`` are processes that do not count.  Where the system does not tell, the load average of
    the last minute stands for it.
    """
    begin, mine = cpu_times(own=True), _cpu_s(own)
    time.sleep(LOOK_S)
    end, mine = cpu_times(own=True), _cpu_s(own) - mine
    if begin is None or end is None or end.whole <= begin.whole:
        return min(os.getloadavg()[0] / logical_cores(), 1.0)
    used = end.busy - begin.busy - mine * os.sysconf("SC_CLK_TCK")
    return min(max(used / (end.whole - begin.whole), 0.0), 1.0)


def _cpu_s(pids: Sequence[int]) -> float:
    return sum(process_stats(pid).cpu_s or 0.0 for pid in pids)
