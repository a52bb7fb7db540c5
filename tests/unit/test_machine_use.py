"""Use of the whole machine, as a dashboard is told."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from umaserve.server.figures import machine
from umaserve.server.figures.machine import MachineUse, gpu_reader
from umaserve.system import processor
from umaserve.system.processor import cpu_times


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_memory_is_told_and_shares_are_shares() -> None:
    seen = MachineUse().read()
    assert set(seen) == {"cpu", "gpu", "memory_used_bytes", "memory_total_bytes"}
    assert 0 < seen["memory_used_bytes"] < seen["memory_total_bytes"]
    assert seen["gpu"] is None or 0.0 <= seen["gpu"] <= 1.0


def stat(folder: Path, busy: int, idle: int, waits: int = 0) -> None:
    """``/proc/stat`` with as many clock ticks: user, nice, system, idle, iowait, three others."""
    (folder / "stat").write_text(f"cpu  {busy} 0 0 {idle} {waits} 0 0 0 9 9\ncpu0 1 2 3 4\n")


def test_the_processor_s_share_is_that_since_the_last_look(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "_STAT", tmp_path / "stat")
    monkeypatch.setattr(os, "getloadavg", lambda: (1.0, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    stat(tmp_path, 100, 900)
    use = MachineUse()
    assert use.read()["cpu"] == 0.25, "one look is no span: the load"
    stat(tmp_path, 130, 950, 20)  # what waits for a disk computes nothing
    clock[0] += 0.5
    assert use.read()["cpu"] == 0.25, "at most once a second"
    clock[0] += 0.5
    assert use.read()["cpu"] == 0.3


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/stat")
def test_clock_ticks_of_this_machine_grow() -> None:
    first = cpu_times()
    assert first is not None
    until_s = time.monotonic() + 10.0
    while cpu_times() == first and time.monotonic() < until_s:
        os.getpid()
    last = cpu_times()
    assert last is not None and last[1] > first[1] and last[0] >= first[0]


def test_where_no_time_is_told_the_load_of_the_minute_stands_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "_STAT", tmp_path / "none")
    monkeypatch.setattr(os, "getloadavg", lambda: (1.0, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert MachineUse().read()["cpu"] == 0.25


def test_the_busiest_gpu_of_amdgpu_s_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library() -> None:
        raise OSError

    monkeypatch.setattr(machine, "_Nvml", no_library)
    monkeypatch.setattr(machine, "_DRM", tmp_path)
    assert gpu_reader()() is None
    for card, text in (("card0", "12\n"), ("card1", "87\n"), ("card1-DP-1", "99\n"), ("card2", "")):
        place = tmp_path / card / "device"
        place.mkdir(parents=True)
        (place / "gpu_busy_percent").write_text(text)
    (tmp_path / "card1-DP-1/device/gpu_busy_percent").unlink()
    assert gpu_reader()() == 0.87
