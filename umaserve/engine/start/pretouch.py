"""Touching memory at start, on request, so that no request is the first to touch it.

A page that a process has never touched costs a page fault where it is first used.  A page of
the weights that was never read comes from disk then.  The cost of ``--pretouch`` is a later start,
and memory for tables that few requests would have filled.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from umaserve.models.identity import model_files
from umaserve.sampling.sampler import Scratch
from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.control import Control

STAGE = "pretouch"
MOST_TABLE_BYTES = 1 << 30  # of tables whose size grows with sessions times context
PIECE = 16 << 20  # bytes of the weights between two looks at the front
REPORT_S = 0.1

Report = Callable[[int], bool]  # bytes done; False ends the touching


def pretouch(
    start: m.Start,
    table: t.SessionTable,
    records: Iterable[Any],
    scratches: list[Scratch],
    control: Control,
) -> None:
    """Touch the session table, the arrays of the loop's ``records``, and the weights, once.

    Values stay as they are; no request runs yet.  Ends early when the front is gone
    (``control.closed`` says so then).  Tables are left out, the largest first, beyond
    MOST_TABLE_BYTES; the weights where libllama has read or locked them into memory itself.
    """
    held: list[np.ndarray] = [v for v in vars(table).values() if isinstance(v, np.ndarray)]
    held += _arrays((*records, *scratches))
    unique = {(a.ctypes.data, a.nbytes): a for a in held if a.size and a.flags.writeable}
    arrays = within(unique.values(), MOST_TABLE_BYTES)
    mapped = start.use_mmap and not start.use_mlock
    files = [path for path in model_files(start.model_path) if mapped and path.exists()]
    total = sum(array.nbytes for array in arrays) + sum(file.stat().st_size for file in files)
    done, last = 0, 0.0

    def report(n_bytes: int) -> bool:
        nonlocal done, last
        done += n_bytes
        now = time.monotonic()
        if now - last >= REPORT_S or done == total:
            last = now
            control.send(m.LoadProgress(min(done / max(total, 1), 1.0), STAGE))
        return not control.closed

    report(0)
    for array in arrays:
        touch_array(array)
        if not report(array.nbytes):
            return
    for file in files:
        if not touch_file(file, report):
            return


def _arrays(record: Any) -> list[np.ndarray]:
    """The arrays of what the compiled loop is given: records of arrays, numbers and records."""
    if isinstance(record, np.ndarray):
        return [record]
    if isinstance(record, tuple):
        return [array for value in record for array in _arrays(value)]
    return []


def within(arrays: Iterable[np.ndarray], most_bytes: int) -> list[np.ndarray]:
    """The smallest of ``arrays`` that together take no more than ``most_bytes``."""
    chosen, used = [], 0
    for array in sorted(arrays, key=lambda a: a.nbytes):
        used += array.nbytes
        if used > most_bytes:
            break
        chosen.append(array)
    return chosen


def touch_array(array: np.ndarray) -> None:
    """Write a byte of every page of a C-contiguous array, the one that is there."""
    flat = array.reshape(-1).view(np.uint8)
    pages = flat[:: mmap.PAGESIZE]
    np.bitwise_or(pages, 0, out=pages)
    flat[-1:] |= 0


def touch_file(path: Path, report: Report) -> bool:
    """Read a byte of every page through a mapping; False when ``report`` ended it.

    That puts the file into the page cache, which libllama's mapping of it shares.
    """
    size = path.stat().st_size
    if size == 0:
        return True
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        for start in range(0, size, PIECE):
            stop = min(start + PIECE, size)
            if hasattr(mmap, "MADV_WILLNEED"):
                pages.madvise(mmap.MADV_WILLNEED, start, stop - start)
            pages[start : stop : mmap.PAGESIZE]  # the bytes themselves are of no interest
            if not report(stop - start):
                return False
    return True
