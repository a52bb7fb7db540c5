"""Wake-ups of an idle daemon, and its time of a core."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from umaserve.system.process_stats import process_stats

WATCHED_S = 3.0
_SWITCHES = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)", re.M)


class Usage(NamedTuple):
    """Usage of a process since its start: seconds of a core, and how often its threads slept."""

    cpu_s: float
    sleeps: int


def usage(pid: int) -> Usage | None:
    """None where the system does not tell, or the process is gone."""
    try:
        tasks = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    except OSError:
        return None
    cpu_s = process_stats(pid).cpu_s
    if cpu_s is None or not tasks:
        return None
    return Usage(cpu_s, sum(int(count) for text in tasks for count in _SWITCHES.findall(text)))


def family(front: int) -> Iterator[int]:
    """The front's process and its children, where the system tells."""
    yield front
    for path in Path(f"/proc/{front}/task").glob("*/children"):
        yield from (int(word) for word in path.read_text().split())


def idle_text(info: dict[str, Any], watched_s: float = WATCHED_S) -> str:
    """A sentence about the daemon that ``info`` is of; "" where it is busy or nobody can tell."""
    front = info.get("pid")
    if not isinstance(front, int) or info.get("sessions"):
        return ""
    before = {pid: usage(pid) for pid in family(front)}
    time.sleep(watched_s)
    wakes = share = 0.0
    for pid, first in before.items():
        last = usage(pid)
        if first is not None and last is not None:
            wakes += (last.sleeps - first.sleeps) / watched_s
            share += (last.cpu_s - first.cpu_s) / watched_s
    if all(first is None for first in before.values()):
        return ""
    text = f"its {len(before)} processes wake {wakes:.0f} times a second"
    return f"{text} and take {share:.1%} of a core in {watched_s:g} s without requests"
