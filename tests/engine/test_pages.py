"""Pages for copies of cells: touched ahead, of the right size, and given back."""

from __future__ import annotations

import ctypes
import sys
import threading
import time

import numpy as np
import pytest

from umaserve.engine.prefixes.pages import PAGE_BYTES, ReadyPages, own_pages

SIZE = 24 << 20


def wait_for(pages: ReadyPages) -> None:
    """Wait until a buffer is ready."""
    until = time.monotonic() + 30
    while not pages._ready:
        assert time.monotonic() < until
        time.sleep(0.005)


def resident(array: np.ndarray) -> int:
    """Pages of an array's mapping that are in memory (``mincore``)."""
    pages = -(-len(array.base) // PAGE_BYTES) if array.base is not None else 0
    room = (ctypes.c_ubyte * pages)()
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    address = ctypes.c_void_p(array.ctypes.data)
    assert mincore(address, ctypes.c_size_t(pages * PAGE_BYTES), room) == 0
    return sum(each & 1 for each in room)


@pytest.mark.skipif(sys.platform != "linux", reason="pages are given back in another way elsewhere")
def test_the_second_copy_finds_its_pages_touched() -> None:
    assert resident(own_pages(SIZE)) == 0
    pages = ReadyPages()
    first = pages.take(SIZE)
    wait_for(pages)
    second = pages.take(SIZE)
    assert second.size == first.size == SIZE
    assert resident(second) == SIZE // PAGE_BYTES  # without the slack
    first[:], second[:] = 1, 2
    assert first.max() == 1
    assert second.min() == 2


def test_other_sizes_get_pages_of_their_own() -> None:
    pages = ReadyPages()
    pages.take(SIZE)
    for size in (1, SIZE // 8, 2 * SIZE):
        wait_for(pages)
        array = pages.take(size)
        assert array.size == size
        array[:] = 3


def test_the_thread_ends_with_its_owner() -> None:
    before = set(threading.enumerate())
    pages = ReadyPages()
    pages.take(SIZE)
    (thread,) = set(threading.enumerate()) - before
    del pages
    thread.join(30)
    assert not thread.is_alive()
