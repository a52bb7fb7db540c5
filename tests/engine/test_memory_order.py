"""What is published by one thread or process is whole for the other, on any processor."""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numba import njit, typeof

from umaserve.engine.native import batch
from umaserve.engine.native.calls import Native
from umaserve.engine.prefill import chunk_stack
from umaserve.engine.prefill.gate import Gate
from umaserve.engine.prefill.orders import Orders, give_orders, grant_chunk
from umaserve.engine.ticks.records import Columns, Work
from umaserve.wire import memory_order
from umaserve.wire import table as t

SECONDS = 1.0
N_CTX, ROWS = 1 << 18, 8


def room(rows: int) -> Work:
    """The engine's work arrays.  A type of our own would get into the engine's cache."""
    loaded: Any = SimpleNamespace(eog_ids=np.zeros(0, np.int32), is_eog=np.zeros(1000, np.uint8))
    return Work.allocate(loaded, np.zeros(rows, np.int32))


@njit(nogil=True, cache=True)
def publish(slot, columns, work):
    """Ticks of one row, which get a token each until the row is full."""
    slots, sampled = np.full(1, slot, np.int32), np.zeros(1, np.int32)
    for i in range(N_CTX - 2):
        sampled[0] = i % 1000
        batch.settle(columns, work, slots, sampled, 1, 7 * (i % 1000) + 1, 0)


def test_a_reader_sees_no_token_before_its_time() -> None:
    table, fd = t.SessionTable.create(t.TableSpec(ROWS, N_CTX))
    os.close(fd)
    table.max_tokens[:] = N_CTX
    others = Columns.of(table), room(ROWS)
    looks, turns = 0, itertools.count()
    while (turn := next(turns)) < ROWS or looks <= ROWS:  # a busy machine shows little in a turn
        slot = turn % ROWS
        table.tokens[slot], table.n_tokens[slot] = -1, 0
        writer = threading.Thread(target=publish, args=(slot, *others))
        writer.start()
        count = 0
        while count < N_CTX - 2:
            count = int(table.n_tokens[slot])
            memory_order.loads_first()
            if count:
                looks += count < N_CTX - 2  # while they are written
                token = int(table.tokens[slot, count - 1])
                assert token == (count - 1) % 1000
                assert int(table.token_ns[slot, count - 1]) == 7 * token + 1
        writer.join()


class NoLibrary:
    """Nothing of it is called."""

    class ffi:
        @staticmethod
        def cast(_: str, value: object) -> int:
            return 0

    class lib:
        @staticmethod
        def llama_get_memory(_: object) -> int:
            return 0

    @staticmethod
    def address(_: str) -> int:
        return 0


@njit(nogil=True, cache=True)
def order(orders, native, stop):
    """Want nothing, or the same slot in every place, in turns."""
    slots = np.zeros(orders.wanted.size, np.int32)
    turns = 0
    while stop[0] == 0:
        slots[:] = turns % 100
        give_orders(orders, native, slots, slots.size if turns % 2 else 0, False)
        turns += 1
    return turns


def test_the_worker_never_reads_half_an_order() -> None:
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)  # a full pipe means that it has been told already
    orders, stop = Orders.allocate(16, wake_write), np.zeros(1, np.int64)

    native = Native.of(NoLibrary, None, None, wake_write, [])
    order(orders, native, np.ones(1, np.int64))
    writer = threading.Thread(target=order, args=(orders, native, stop))
    writer.start()
    end, whole = time.monotonic() + SECONDS, 0
    try:
        while time.monotonic() < end:
            before = int(orders.sequence[0])
            memory_order.loads_first()
            slots = orders.listed()
            memory_order.loads_first()
            if before % 2 == 0 and orders.sequence[0] == before:
                whole += 1
                assert len(slots) in (0, 16) and len(set(slots)) <= 1
    finally:
        stop[0] = 1
        writer.join()
        os.close(wake_read)
        os.close(wake_write)
    assert whole


def fences(function: Any, *arguments: object) -> list[str]:
    """The fences of a function when it is compiled for these arguments, in order."""
    fresh = njit(nogil=True)(function.py_func)
    fresh.compile(tuple(typeof(argument) for argument in arguments))
    (text,) = fresh.inspect_llvm().values()
    return re.findall(r"^\s+fence (\w+)", text, re.M)


def test_news_come_behind_a_fence_in_compiled_code() -> None:
    """x86 keeps stores in order by itself, so only the code can tell what AArch64 would do."""
    i32 = np.zeros(1, np.int32)
    table, fd = t.SessionTable.create(t.TableSpec(1, 8))
    os.close(fd)
    settled = Columns.of(table), room(1), i32, i32, 1, 1, 0
    assert "release" in fences(batch.settle, *settled)
    gate = Gate.zeros()
    assert "release" in fences(chunk_stack.give_up, gate)
    native = Native.of(NoLibrary, None, None, -1, [])
    assert "acquire" in fences(chunk_stack.run_parts, gate, native, 1, 1)
    orders = Orders.allocate(4, -1)
    assert fences(give_orders, orders, native, i32, 1, False).count("release") >= 3
    assert "release" in fences(grant_chunk, orders, native, 1)


@pytest.mark.parametrize("name", ["stores_first", "loads_first", "all_first"])
def test_fences_for_python_can_be_called_anywhere(name: str) -> None:
    fence = getattr(memory_order, name)
    threads = [threading.Thread(target=lambda: [fence() for _ in range(1000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
