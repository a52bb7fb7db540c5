"""Pages for copies of cells: touched ahead, of the right size, and given back."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

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


def resident_kb(array: np.ndarray) -> int:
    """KB of the mapping that an array lies in that are in memory."""
    address, inside = array.ctypes.data, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        word = line.split()
        if not word[0].endswith(":"):
            low, high = (int(end, 16) for end in word[0].split("-"))
            inside = low <= address < high
        elif inside and word[0] == "Rss:":
            return int(word[1])
    raise AssertionError("no such mapping")


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's list of mappings")
def test_the_second_copy_finds_its_pages_touched() -> None:
    assert resident_kb(own_pages(SIZE)) == 0
    pages = ReadyPages()
    first = pages.take(SIZE)
    wait_for(pages)
    second = pages.take(SIZE)
    assert second.size == first.size == SIZE
    assert SIZE // 1024 <= resident_kb(second) <= SIZE // 1024 + PAGE_BYTES  # not the slack
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
    def threads() -> int:
        return sum(thread.name == "ready pages" for thread in threading.enumerate())

    gc.collect()
    before = threads()
    pages = ReadyPages()
    pages.take(SIZE)
    assert threads() == before + 1
    del pages
    until = time.monotonic() + 30
    while threads() > before:
        assert time.monotonic() < until
        time.sleep(0.01)
