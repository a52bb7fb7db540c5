"""Pretouch: what it touches, what it leaves alone, and when it stops."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys

import numpy as np
import pytest

from tests.support.engine_driver import DrivenEngine
from umaserve.assets import demo_model_path
from umaserve.engine.start import pretouch as p
from umaserve.wire import messages as m
from umaserve.wire import table as t

SPEC = t.TableSpec(8, 512)


def blocks(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def test_a_touched_table_has_all_its_pages_and_its_values():
    table, fd = t.SessionTable.create(SPEC)
    _, size = SPEC.layout()
    table.tokens[:] = np.arange(table.tokens.size).reshape(table.tokens.shape)
    table.header.cells_total = 99
    assert blocks(fd) < size // 2
    # (reading takes memory for the pages too)
    before = {k: v.copy() for k, v in vars(table).items() if isinstance(v, np.ndarray)}
    for name in before:
        p.touch_array(getattr(table, name))
    assert blocks(fd) >= size - mmap.PAGESIZE
    for name, value in before.items():
        assert (getattr(table, name) == value).all(), name
    os.close(fd)


def test_the_smallest_arrays_come_first_and_the_rest_is_left_out():
    arrays = [np.zeros(n, np.uint8) for n in (700, 10, 200, 90)]
    assert [a.size for a in p.within(arrays, 1000)] == [10, 90, 200, 700]
    assert [a.size for a in p.within(arrays, 999)] == [10, 90, 200]
    assert p.within(arrays, 9) == []


def test_a_file_is_read_in_pieces_until_it_is_told_to_stop(tmp_path):
    path = tmp_path / "weights"
    size = 2 * p.PIECE + 5
    with path.open("wb") as file:
        file.truncate(size)
    seen: list[int] = []
    assert p.touch_file(path, lambda n: seen.append(n) or True)
    assert seen == [p.PIECE, p.PIECE, 5]
    seen.clear()
    assert not p.touch_file(path, lambda n: seen.append(n) or False)
    assert seen == [p.PIECE]
    path.write_bytes(b"")
    assert p.touch_file(path, lambda n: False)


def table_bytes(engine: DrivenEngine) -> int:
    """Memory of the engine's session table: files without a name are found by their size."""
    _, size = engine.table.spec.layout()
    folder = f"/proc/{engine.process.pid}/fd"
    found = []
    for fd in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # the engine closed it meanwhile
            found.append(os.stat(f"{folder}/{fd}"))
    return max(s.st_blocks * 512 for s in found if s.st_size == size)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("pretouch", [False, True])
def test_an_engine_touches_when_asked_and_says_so(pretouch):
    prompt, settings = "def fibonacci(n):", m.Sampling(temperature=0.0, logprobs=3)
    with DrivenEngine(pretouch=pretouch, sampling_threads=1, probe=False) as engine:
        stages = [message.stage for message in engine.progress]
        said = [x.fraction for x in engine.progress if x.stage == p.STAGE]
        assert (p.STAGE in stages) is pretouch
        assert said == sorted(said) and (said[-1:] == [1.0]) is pretouch
        _, size = engine.table.spec.layout()
        taken = table_bytes(engine)  # before the first request
        assert taken >= size - mmap.PAGESIZE if pretouch else taken < size // 4
        assert len(engine.run(prompt, max_tokens=8, sampling=settings)) == 8
        assert engine.close() == 0


def test_it_ends_with_the_front():
    class Gone:
        closed = True

        def send(self, message):
            assert message.stage == p.STAGE

    start = m.Start(str(demo_model_path()), n_slots=8, n_ctx=511, n_seq=1)
    table, fd = t.SessionTable.create(SPEC)
    p.pretouch(start, table, ((np.zeros(100_000, np.int32),),), [], Gone())
    assert blocks(fd) < SPEC.layout()[1] // 2  # the first array was enough
    os.close(fd)
