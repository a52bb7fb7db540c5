"""Memory for copies of cells: pages of its own, touched ahead where a copy stops streams.

A page that was never touched is cleared by the system first, and by the host of a virtual machine
before that.  An accelerator's cells then arrive at a fraction of the rate of the copy itself.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import weakref
from collections import deque

import numpy as np

HUGE_BYTES = 2 << 20  # of a page; pages of 4 KiB take three times as long to be had
PAGE_BYTES = 4096
RECENT = 8  # copies, of which the largest says how much is touched ahead
SLACK = 9 / 8  # a conversation's state grows from turn to turn


def own_pages(size: int) -> np.ndarray:
    """uint8[size] in pages of its own, which the system has back as soon as nobody needs it."""
    return _array(_pages(size), size)


class ReadyPages:
    """Pages that a thread has touched before they are asked for.

    One buffer is held, as large as the largest of the last copies.  Arrays belong to the caller.
    """

    def __init__(self) -> None:
        self._ready: deque[mmap.mmap] = deque(maxlen=1)
        self._sizes: deque[int] = deque(maxlen=RECENT)
        self._wanted = threading.Event()
        thread = threading.Thread(
            target=_touch_ahead, args=(weakref.ref(self), self._wanted), daemon=True,
            name="ready pages",
        )  # fmt: skip
        thread.start()
        weakref.finalize(self, self._wanted.set)

    def take(self, size: int) -> np.ndarray:
        """Return uint8[size], its pages touched where the buffer at hand is large enough."""
        self._sizes.append(size)
        pages = self._ready.pop() if self._ready else None
        self._wanted.set()
        if pages is None or not size <= len(pages) <= 4 * size:
            return own_pages(size)
        rest = -(-size // PAGE_BYTES) * PAGE_BYTES
        if rest < len(pages) and hasattr(mmap, "MADV_DONTNEED"):
            pages.madvise(mmap.MADV_DONTNEED, rest)
        return _array(pages, size)

    def touch(self) -> None:
        """Make the next buffer, and touch it.  For the thread."""
        if self._ready or not self._sizes:
            return
        size = int(max(self._sizes) * SLACK)
        pages = _pages(size)
        _array(pages, size)[::PAGE_BYTES] = 0  # numpy lets other threads run meanwhile
        self._ready.append(pages)


def _touch_ahead(ready: weakref.ref[ReadyPages], wanted: threading.Event) -> None:
    while True:
        wanted.wait()
        wanted.clear()
        owner = ready()
        if owner is None:
            return
        owner.touch()
        del owner


def _pages(size: int) -> mmap.mmap:
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def _array(pages: mmap.mmap, size: int) -> np.ndarray:
    return np.frombuffer(pages, np.uint8, size)
