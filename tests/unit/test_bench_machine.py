"""What others do with the cores before `umaserve bench` begins."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from umaserve.bench import machine
from umaserve.bench.result import BUSY


def tells(monkeypatch: pytest.MonkeyPatch, *readings: str) -> None:
    """Have the system tell these times of its cores, one text a look."""
    texts: Iterator[str] = iter(readings)
    real = Path.read_text

    def read_text(path: Path, *args: str) -> str:
        if str(path) != "/proc/stat":
            return real(path, *args)
        text = next(texts)
        if not text:
            raise FileNotFoundError(path)
        return text

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr(machine, "LOOK_S", 0.0)


def stat(used: int, idle: int, *, others: int = 0) -> str:
    """Ticks of the cores that this process may run on; ``others`` are those of one more core."""
    own = [f"cpu{n} {used} 0 0 {idle - 1} 1 0 0 0 999 999" for n in os.sched_getaffinity(0)]
    return "\n".join(["cpu 1 2 3 4 5 6 7 8 9 10", *own, f"cpu999 {others} 0 0 0 0 0 0 0 0 0"])


@pytest.mark.parametrize(("used", "idle", "share"), [(0, 100, 0.0), (40, 60, 0.4), (100, 0, 1.0)])
def test_it_is_the_share_of_these_cores_time(
    used: int, idle: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tells(monkeypatch, stat(500, 700), stat(500 + used, 700 + idle, others=5000))
    assert machine.used_by_others() == pytest.approx(share)


def test_what_the_daemon_itself_takes_is_not_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    count = len(os.sched_getaffinity(0))
    tells(monkeypatch, stat(500, 700), stat(550, 750))
    seconds = iter([3.0, 3.0 + 0.5 * count * 50 / os.sysconf("SC_CLK_TCK")])
    monkeypatch.setattr(machine, "_cpu_s", lambda pids: next(seconds) if pids else 0.0)
    assert machine.used_by_others([1]) == pytest.approx(0.25)


def test_without_times_of_the_cores_the_load_average_stands_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tells(monkeypatch, "", "")
    monkeypatch.setattr(os, "getloadavg", lambda: (0.25 * machine.logical_cores(), 9.0, 9.0))
    assert machine.used_by_others() == pytest.approx(0.25)


@contextmanager
def busy(count: int) -> Iterator[list[int]]:
    """So many processes that compute all the time; their ids."""
    command = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            found.append(stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE)))
            stack.callback(found[-1].kill)
        for each in found:
            assert each.stdout is not None and each.stdout.readline()
        yield [each.pid for each in found]


def test_programs_that_compute_are_seen() -> None:
    with busy(machine.logical_cores()):
        assert machine.used_by_others() > BUSY


def test_a_process_of_the_system_has_a_time_of_its_own() -> None:
    with busy(1) as pids:
        began = machine._cpu_s(pids)
        while (now := machine._cpu_s(pids)) == began:
            pass
        assert now > began
        assert 0.0 <= machine.used_by_others(pids) <= 1.0
