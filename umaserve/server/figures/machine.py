"""Use of the whole machine, other programs included: processors, GPU and memory.

Read while somebody looks at a dashboard, and at most once in `EACH_S`.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from umaserve.models.needs import available_bytes, total_bytes
from umaserve.system.processor import CpuTimes, cpu_times

EACH_S = 1.0
_DRM = Path("/sys/class/drm")


class MachineUse:
    """``read()`` gives shares from 0 to 1 and bytes; ``None`` where the system does not tell."""

    def __init__(self) -> None:
        self._at_s = -EACH_S
        self._times: CpuTimes | None = None
        self._gpu: Callable[[], float | None] | None = None
        self._last: dict[str, Any] = {}

    def read(self) -> dict[str, Any]:
        now_s = time.monotonic()
        if now_s - self._at_s >= EACH_S:
            self._at_s = now_s
            self._gpu = self._gpu or gpu_reader()
            total, free = total_bytes(), available_bytes()
            self._last = {
                "cpu": self._cpu(),
                "gpu": self._gpu(),
                "memory_used_bytes": max(total - free, 0) if free else None,
                "memory_total_bytes": total,
            }
        return self._last

    def _cpu(self) -> float:
        """Busy share since the last read; at first, and on macOS, by the load of the minute."""
        before, self._times = self._times, cpu_times()
        now = self._times
        if now is None or before is None or now.whole <= before.whole:
            return round(min(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), 3)
        return round((now.busy - before.busy) / (now.whole - before.whole), 3)


def gpu_reader() -> Callable[[], float | None]:
    """Return a function that tells the share of time in which the busiest GPU computed.

    NVIDIA's library is asked (NVML), else the files of amdgpu; ``None`` where neither tells.
    """
    try:
        return _Nvml().busiest
    except OSError:
        pass
    files = sorted(_DRM.glob("card[0-9]*/device/gpu_busy_percent"))
    return lambda: _busiest_of(files)


def _busiest_of(files: list[Path]) -> float | None:
    shares = []
    for file in files:
        try:
            shares.append(int(file.read_text()) / 100)
        except (OSError, ValueError):
            continue
    return max(shares, default=None)


class _Utilization(ctypes.Structure):
    """``nvmlUtilization_t``: percent of time of a kernel that ran, and of memory traffic."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Nvml:
    """Raises OSError where there is no library, no driver or no GPU."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        count = ctypes.c_uint()
        if self._library.nvmlInit_v2() or self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            raise OSError("NVML tells of no GPU")
        self._handles = []
        for number in range(count.value):
            handle = ctypes.c_void_p()
            if not self._library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)):
                self._handles.append(handle)

    def busiest(self) -> float | None:
        shares, use = [], _Utilization()
        for handle in self._handles:
            if not self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(use)):
                shares.append(use.gpu / 100)
        return max(shares, default=None)
