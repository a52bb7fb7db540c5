"""Memory that holds nothing: what is given back, what is left alone, and that nobody can tell."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine_driver import DrivenEngine
from tests.support.oracle import Oracle
from umaserve.assets import demo_model_path
from umaserve.engine.model import unused_memory as u
from umaserve.llama import memory_needed

PAGE = mmap.PAGESIZE
MIB = 1 << 20
SHORT, LONG = "def fibonacci(n):", "x = 1\n" * 400
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux promises zeros")


def own_memory(n_pages: int) -> tuple[mmap.mmap, np.ndarray, int]:
    """Private anonymous pages that nobody touched yet, and their address."""
    pages = mmap.mmap(-1, n_pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = np.frombuffer(pages, dtype=np.uint8)
    return pages, memory.reshape(n_pages, PAGE), memory.ctypes.data


def resident(address: int, n_pages: int) -> np.ndarray:
    return u._notes(address, address + n_pages * PAGE) & u._PRESENT != 0


@linux
@pytest.mark.parametrize("n_pages", [u.LEAST // PAGE, (u.PIECE + 3 * MIB) // PAGE])
def test_pages_of_zeros_go_and_nothing_changes(n_pages: int) -> None:
    _, memory, address = own_memory(n_pages)
    random = np.random.default_rng(n_pages)
    touched = random.random(n_pages) < 0.7
    written = touched & (random.random(n_pages) < 0.3)
    memory[touched] = 0
    for page in np.flatnonzero(written):
        memory[page, random.integers(PAGE)] = 1 + random.integers(255)
    before = memory[written].copy()
    assert (resident(address, n_pages) == touched).all()

    bytes_given = u.give_back_zeros([(address, address + n_pages * PAGE)])

    assert bytes_given == int((touched & ~written).sum()) * PAGE
    assert (resident(address, n_pages) == written).all()
    assert (memory[written] == before).all()
    assert not memory[~written].any()
    memory[:] = 7  # and they come again
    assert resident(address, n_pages).all() and (memory == 7).all()


@linux
def test_small_ranges_and_locked_ones_stay() -> None:
    n_pages = u.LEAST // PAGE
    _, memory, address = own_memory(n_pages)
    memory[:] = 0
    assert u.give_back_zeros([(address, address + u.LEAST - PAGE)]) == 0
    size = ctypes.c_size_t(u.LEAST)
    if ctypes.CDLL(None).mlock(ctypes.c_void_p(address), size) != 0:
        pytest.skip("this user may not lock a MiB of memory (ulimit -l)")
    assert u.give_back_zeros([(address, address + u.LEAST)]) == 0
    assert resident(address, n_pages).all()


@linux
def test_memory_made_in_between_is_found() -> None:
    before = u.private_memory()
    _, memory, address = own_memory(2 * u.LEAST // PAGE)
    memory[:] = 0
    found = u.new_ranges(before, u.private_memory())
    assert any(start <= address and address + 2 * u.LEAST <= stop for start, stop in found)


BOUNDS = st.lists(st.integers(0, 40), unique=True, max_size=16).map(sorted)


def as_ranges(bounds: list[int]) -> u.Ranges:
    return list(zip(bounds[::2], bounds[1::2], strict=False))


@given(BOUNDS, BOUNDS)
def test_new_ranges_are_what_was_not_there(before: list[int], after: list[int]) -> None:
    def members(ranges: u.Ranges) -> list[int]:
        return [x for start, stop in ranges for x in range(start, stop)]

    found = u.new_ranges(as_ranges(before), as_ranges(after))
    assert all(start < stop for start, stop in found)
    old = set(members(as_ranges(before)))
    assert members(found) == [x for x in members(as_ranges(after)) if x not in old]


_COMPILE_TWICE = """
import numba, psutil
from umaserve.engine.model import unused_memory as u
from umaserve.heap import trim_heap
first = numba.njit(lambda x: x + 1)
assert first(1) == 2
before = psutil.Process().memory_info().rss
given = u.give_back_code(u.COMPILER)
trim_heap()
after = psutil.Process().memory_info().rss
second = numba.njit(lambda x: first(x) * 2.5)
assert (first(2), first(2.5), second(3)) == (3, 3.5, 10.0)
print(given, before - after)
"""


@linux
def test_the_compiler_goes_and_works_all_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", _COMPILE_TWICE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    bytes_given, less = map(int, done.stdout.split())
    assert bytes_given > 20 * MIB and less > 0.9 * bytes_given


@linux
@pytest.mark.slow
def test_an_engine_takes_memory_for_the_cells_that_are_used() -> None:
    """Beside one that keeps all (``--pretouch``): right answers, the KV cache as it fills up."""
    n_ctx = 4096
    cells = memory_needed(str(demo_model_path()), n_ctx=n_ctx).kv_bytes
    anonymous, answers = {}, {}
    for pretouch in (False, True):
        with DrivenEngine(fresh=True, pretouch=pretouch, n_ctx=n_ctx, probe=False) as engine:
            anonymous[pretouch] = [own(engine)]
            answers[pretouch] = [engine.run(SHORT, max_tokens=16)]
            anonymous[pretouch].append(own(engine))
            answers[pretouch].append(engine.run(LONG, max_tokens=64))
            anonymous[pretouch].append(own(engine))
            assert engine.close() == 0
    oracle = Oracle(n_ctx=n_ctx)
    for short, long in answers.values():
        oracle.assert_followed(SHORT, short)
        oracle.assert_followed(LONG, long)
    oracle.close()
    at_start, few, many = (a - b for a, b in zip(anonymous[True], anonymous[False], strict=True))
    assert at_start > 0.75 * cells
    assert few > 0.75 * cells
    assert many < few - 0.3 * cells


def own(engine: DrivenEngine) -> int:
    """Bytes of the engine's anonymous memory."""
    with open(f"/proc/{engine.process.pid}/smaps_rollup") as file:
        lines = dict(line.split(":", 1) for line in list(file)[1:])
    return int(lines["Anonymous"].split()[0]) * 1024
