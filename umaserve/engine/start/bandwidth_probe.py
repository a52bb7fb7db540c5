"""How fast the processor reads memory, measured briefly: where ``--bmt-budget auto`` starts."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from umaserve.jit.compiled import njit

_DEFAULT_CACHE = 32 << 20  # where the system does not say how large the last-level cache is
_CACHES = 3  # the buffer is this many times as large, so that little of it is still there
_SMALLEST, _LARGEST = 64 << 20, 512 << 20


def probe_bandwidth(
    seconds: float = 0.1, threads: int = 1, weights_bytes: int = _LARGEST
) -> float | None:
    """Bytes per second that ``threads`` threads read from memory together: the best of all passes.

    ``weights_bytes`` is the size of the model that will be read: one that stays in the last-level
    cache is read as fast as that.  Takes ``seconds`` and what filling the buffer takes, some ten
    to fifty ms for each 64 MiB.  None where the buffer would be more than a sixteenth of the
    memory: then the first ticks have to tell.  The best pass counts because other processes only
    ever make one slower.
    """
    size = buffer_bytes(weights_bytes)
    memory = _sysconf("SC_PHYS_PAGES") * _sysconf("SC_PAGE_SIZE")
    if 0 < memory < 16 * size:
        return None
    threads = max(threads, 1)
    data = np.ones(size // 8, np.int64)
    parts = np.array_split(data, threads)
    _sum(data[:8])  # compiled, or read from the cache, before the clock runs
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        until = time.perf_counter() + seconds
        while True:
            began = time.perf_counter()
            list(pool.map(_sum, parts))
            ended = time.perf_counter()
            best = max(best, data.nbytes / (ended - began))
            if ended >= until:
                return best


def buffer_bytes(weights_bytes: int = _LARGEST) -> int:
    """The size of the buffer that is read: the weights', three times the last-level cache at most,
    64 to 512 MiB."""
    return min(max(min(_CACHES * _last_level_cache(), weights_bytes), _SMALLEST), _LARGEST)


@njit(nogil=True, cache=True)
def _sum(data):
    total = 0
    for value in data:
        total += value
    return total


def _last_level_cache() -> int:
    sizes = [_sysconf(f"SC_LEVEL{level}_CACHE_SIZE") for level in (2, 3, 4)]
    return max(*sizes, 0) or _DEFAULT_CACHE


def _sysconf(name: str) -> int:
    """A number of ``os.sysconf``, 0 where this system does not know it."""
    if name not in getattr(os, "sysconf_names", {}):
        return 0
    try:
        return os.sysconf(name)
    except OSError:
        return 0
