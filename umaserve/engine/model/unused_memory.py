"""Memory that holds nothing goes back to the system at start (Linux; ``--pretouch`` keeps it).

libllama clears its whole KV cache when it makes it, so every page of it is resident before the
first token.  A private anonymous page that is given back reads as zeros (madvise(2),
MADV_DONTNEED), which is what a cleared one holds.  Nobody can tell the difference, and the page
comes again when a cell in it is first written.  So the cache takes the memory of the cells that
were ever used.

Samplers, policy and loop are compiled when the engine is ready.  The compiler's own code, read to
load them, is not looked at again unless something new has to be compiled.  Pages of a file that
nobody wrote to are read again from it, so they can go as well.  So can what malloc keeps for later.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from umaserve.engine.native.calls import address_in, call_i32_ptr_i64_i32
from umaserve.jit.compiled import njit

COMPILER = "libllvmlite"
LEAST = 1 << 20  # bytes of a range worth looking at
PIECE = 64 << 20  # bytes looked at between two calls of madvise
_WORDS = mmap.PAGESIZE // 8
# bits of a page's note in /proc/self/pagemap (the kernel's admin-guide/mm/pagemap)
_PRESENT = np.uint64(1 << 63)
_OF_A_FILE = np.uint64(1 << 61)
_DO_NOT_NEED = getattr(mmap, "MADV_DONTNEED", 4)

Ranges = list[tuple[int, int]]  # first address, one past the last; multiples of the page size


class Mapping(NamedTuple):
    """A line of ``/proc/self/maps``; the addresses are multiples of the page size."""

    start: int
    stop: int
    permissions: str
    name: str


def mappings() -> list[Mapping]:
    """This process's mappings (proc(5)); none where the system does not list them."""
    try:
        lines = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        words = line.split(maxsplit=5)
        start, stop = (int(part, 16) for part in words[0].split("-"))
        found.append(Mapping(start, stop, words[1], words[5] if len(words) == 6 else ""))
    return found


def private_memory() -> Ranges:
    """Anonymous memory of this process alone, the heap with it; not the first thread's stack."""
    found = [m for m in mappings() if m.permissions == "rw-p" and m.name in ("", "[heap]")]
    return [(m.start, m.stop) for m in found]


def new_ranges(before: Ranges, after: Ranges) -> Ranges:
    """Ranges of ``after`` that ``before`` has not; both ascending, as the kernel lists them.

    Neighbours are one mapping to the kernel, so a new range may be a part of a mapping.
    """
    found: Ranges = []
    for start, stop in after:
        for first, last in before:
            if last <= start or first >= stop:
                continue
            if first > start:
                found.append((start, first))
            start = max(start, last)
        if start < stop:
            found.append((start, stop))
    return found


def give_back_since(before: Ranges) -> int:
    """`give_back_zeros` of the `private_memory` that was not there ``before``."""
    return give_back_zeros(new_ranges(before, private_memory()))


def give_back_zeros(ranges: Iterable[tuple[int, int]]) -> int:
    """Give back the resident pages of ``ranges`` that hold zeros only; returns their bytes.

    The ranges must be private anonymous memory that no other thread writes to meanwhile.  Small
    ones are left alone.
    """
    given = 0
    for start, stop in ranges:
        if stop - start < LEAST:
            continue
        for piece in range(start, stop, PIECE):
            given += _give_back_zeros(piece, min(piece + PIECE, stop))
    return given


def _give_back_zeros(start: int, stop: int) -> int:
    if sys.platform != "linux":
        return 0  # elsewhere the same name does not promise zeros
    resident = _notes(start, stop) & _PRESENT != 0
    memory = np.ctypeslib.as_array((ctypes.c_uint64 * ((stop - start) // 8)).from_address(start))
    madvise = address_in(ctypes.CDLL(None), "madvise")
    return int(
        _drop_zeros(memory.reshape(-1, _WORDS), resident, madvise, mmap.PAGESIZE, _DO_NOT_NEED)
    )


# it keeps the GIL: nobody takes memory between the look at it and the call; compiled when imported
@njit("int64(uint64[:, ::1], boolean[::1], int64, int64, int64)", cache=True)
def _drop_zeros(memory, resident, madvise, page_bytes, advice):
    n_pages, given, first = len(resident), 0, 0
    for page in range(n_pages + 1):
        unused = False
        if page < n_pages and resident[page]:  # to read one that is not there would make it
            bits = np.uint64(0)
            for word in memory[page]:
                bits |= word
            unused = bits == 0
        if not unused:
            if first < page:
                size = (page - first) * page_bytes
                begin = memory.ctypes.data + first * page_bytes
                if call_i32_ptr_i64_i32(madvise, begin, size, advice) == 0:
                    given += size
            first = page + 1
    return given


def _notes(start: int, stop: int) -> np.ndarray:
    """uint64[pages]: what ``/proc/self/pagemap`` says of each; zeros where it cannot be read."""
    notes = np.zeros((stop - start) // mmap.PAGESIZE, dtype=np.uint64)
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek(start // mmap.PAGESIZE * 8)
            file.readinto(notes.data)  # type: ignore[attr-defined]
    except OSError:
        pass
    return notes


def _runs(flags: np.ndarray) -> list[tuple[int, int]]:
    """First and one past the last index of every run of True."""
    edges = np.flatnonzero(np.diff(flags, prepend=False, append=False))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def give_back_code(library: str) -> int:
    """Give back the pages of a loaded library that are as its file has them; returns their bytes.

    ``library`` is how the file's name begins.
    """
    given = 0
    for mapping in mappings():
        if "w" not in mapping.permissions and Path(mapping.name).name.startswith(library):
            notes = _notes(mapping.start, mapping.stop)
            # a page that the loader wrote to (relocations) is not the file's any more
            given += _give_back(mapping.start, (notes & _OF_A_FILE != 0) & (notes & _PRESENT != 0))
    return given


def _give_back(start: int, unused: np.ndarray) -> int:
    """madvise(2) for the pages from ``start`` on whose flag is set; returns their bytes.

    Where the system refuses, as for memory that is locked, they stay.
    """
    if sys.platform != "linux":
        return 0
    madvise, given = ctypes.CDLL(None).madvise, 0
    for first, last in _runs(unused):
        size = (last - first) * mmap.PAGESIZE
        address = ctypes.c_void_p(start + first * mmap.PAGESIZE)
        if madvise(address, ctypes.c_size_t(size), ctypes.c_int(_DO_NOT_NEED)) == 0:
            given += size
    return given
