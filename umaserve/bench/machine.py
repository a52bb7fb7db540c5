"""What a result was measured on: recorded with it; no host name."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import umaserve

PACKAGES = ("numpy", "numba", "trio", "msgspec")


def describe(info: dict[str, Any]) -> dict[str, Any]:
    """Processor, system, versions and model; ``info`` is the daemon's."""
    model = info["model"]
    found = {
        "processor": processor(),
        "cores": cores(),
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
        "load_before": round(os.getloadavg()[0], 2),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }
    return {name: value for name, value in found.items() if value is not None}


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    if sys.platform == "darwin":
        done = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.stdout.strip():
            return done.stdout.strip()
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cores() -> int:
    """Logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
