"""What a result was measured on: recorded beside every figure."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from umaserve.llama import builds
from umaserve.system.processor import logical_cores, processor_name

RESULTS = Path(__file__).resolve().parent / "results"
BACKEND = os.environ.get("UMA_BACKEND", "auto")
# read with this file: when a result is saved, the benchmark itself is the load
LOAD_BEFORE = round(os.getloadavg()[0], 2)


def build() -> builds.Build:
    """The libllama that the daemon loads; its programs are the peers."""
    found = builds.select(BACKEND)
    if found is None:
        raise SystemExit("no libllama is built yet: python build_llama.py --with-peers")
    return found


def peer(name: str) -> Path:
    """One of llama.cpp's own programs, of the same build as the library."""
    path = build().bin_dir / name
    if not path.exists():
        raise SystemExit(f"{name} is not built yet: python build_llama.py --with-peers")
    return path


def describe() -> dict[str, Any]:
    """Processor, cores, accelerator, system and versions; no host name and no path."""
    found = build()
    return {
        "cpu": processor_name(),
        "cores": logical_cores(),
        "accelerator": _accelerator(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "backend": found.backend,
        "llama": f"{found.version} ({found.commit})",
        "commit": _commit(),
        **{name: version(name) for name in ("numpy", "numba", "trio", "msgspec")},
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "load_before": LOAD_BEFORE,
    }


def _accelerator() -> str | None:
    """What the backend computes on when that is not the processor."""
    if build().backend == "cpu":
        return None
    lines = (
        "from umaserve import llama\n"
        f"for d in llama.devices(llama.load({BACKEND!r})):\n"
        "    if d['type'] in ('gpu', 'igpu'): print('device:', d['description'])\n"
    )
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True)
    names = [s[8:] for s in done.stdout.splitlines() if s.startswith("device: ")]
    return ", ".join(names) or None


def _commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=RESULTS.parent)
    except OSError:
        return None
    return done.stdout.strip() or None


def spread(values: list[float]) -> dict[str, float]:
    """Median and the 10th and 90th percentile."""
    ordered = sorted(values)
    if len(ordered) == 1:
        ordered = ordered * 2
    at = statistics.quantiles(ordered, n=10, method="inclusive")
    return {"median": statistics.median(ordered), "p10": at[0], "p90": at[-1], "n": len(values)}


def ratio(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Spread of ``ours / theirs``, taken turn by turn (both lists are in order of turns)."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def save(name: str, result: dict[str, Any]) -> Path:
    """Write ``benchmarks/results/NAME.json`` with the machine and the command that made it.

    ``$UMA_BENCH_RESULTS`` names another folder.
    """
    folder = Path(os.environ.get("UMA_BENCH_RESULTS", RESULTS))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"machine": describe(), **result}, indent=1) + "\n")
    return path
