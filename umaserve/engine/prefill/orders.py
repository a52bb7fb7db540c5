"""Orders and answers between the engine's loop and the prefill worker, through memory."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import NamedTuple

import numpy as np
from numba import carray, cfunc, types

from umaserve.engine.cells.piece import Buffers, Piece
from umaserve.engine.native.calls import call_i64_i32_ptr_i64, stores_first
from umaserve.engine.samplers.first_token import FirstToken
from umaserve.jit.compiled import njit
from umaserve.wire import memory_order
from umaserve.wire import messages as m
from umaserve.wire import table as t

from .gate import Gate

BACKLOG = 4  # finished pieces that may wait to be landed; what comes later stays in its cells


class Orders(NamedTuple):
    """Orders of the loop and answers of the worker, in arrays that compiled code can use.

    Written by the loop:

    - ``wanted`` int32[n_slots]: slots by priority, -1 after the last.
    - ``sequence`` int64[1]: odd while ``wanted`` is being written.
    - ``epoch`` int64[n_slots]: raised when a row's pieces are void.
    - ``life`` int64[n_slots]: raised when its cells are void too.
    - ``grant`` int32[1]: prompt tokens of the next chunk that the loop computes, 0 = none yet.  The
      worker takes them by writing 0.
    - ``wake_fd``: where one byte wakes the worker.

    Written by the worker:

    - ``running`` int32[1]: the slot whose chunk it computes now, or -1.
    - ``started_ns`` int64[1]: when the last chunk began (monotonic).
    - ``alive`` uint8[1]: 0 = it takes nothing any more.

    Written by both:

    - ``refused`` uint8[n_slots]: 1 = the worker failed on this prompt, which is the engine's now.
      ``forget`` clears it.
    - ``gate``: where the chunk stops and goes on.  The worker clears ``gate.stop``, then reads
      ``wanted``.  The loop writes ``wanted`` first, therefore.
    """

    wanted: np.ndarray
    sequence: np.ndarray
    epoch: np.ndarray
    life: np.ndarray
    running: np.ndarray
    started_ns: np.ndarray
    alive: np.ndarray
    refused: np.ndarray
    grant: np.ndarray
    gate: Gate
    wake_fd: int

    @classmethod
    def allocate(cls, n_slots: int, wake_fd: int) -> Orders:
        """Nothing wanted; ``wake_fd`` is borrowed."""
        return cls(
            wanted=np.full(n_slots, -1, np.int32),
            sequence=np.zeros(1, np.int64),
            epoch=np.zeros(n_slots, np.int64),
            life=np.zeros(n_slots, np.int64),
            running=np.full(1, -1, np.int32),
            started_ns=np.zeros(1, np.int64),
            alive=np.ones(1, np.uint8),
            refused=np.zeros(n_slots, np.uint8),
            grant=np.zeros(1, np.int32),
            gate=Gate.zeros(),
            wake_fd=wake_fd,
        )

    def listed(self) -> list[int]:
        """``wanted`` as a list; torn while it is being written."""
        slots: list[int] = self.wanted.tolist()
        return slots[: slots.index(-1)] if -1 in slots else slots

    def settled(self) -> list[int]:
        """Return ``wanted`` as a list, for the worker's thread; waits while it is being written."""
        while True:
            before = int(self.sequence[0])
            memory_order.loads_first()
            slots = self.listed()
            memory_order.loads_first()
            if before % 2 == 0 and self.sequence[0] == before:
                return slots
            time.sleep(0.0001)


@njit(nogil=True, cache=True)
def give_orders(orders, native, slots, n, stop):
    """Want ``slots[:n]``, first the most urgent; True when that is new.

    ``native`` is `engine.native.Native`.  ``stop`` gives the running chunk up if its slot is not
    the first of them.
    """
    wanted = orders.wanted
    same = n == wanted.size or wanted[n] < 0
    for i in range(n):
        same = same and wanted[i] == slots[i]
    if same:
        return False
    orders.sequence[0] += 1
    stores_first()
    for i in range(n):
        wanted[i] = slots[i]
    if n < wanted.size:
        wanted[n] = -1
    stores_first()
    orders.sequence[0] += 1
    stores_first()
    running = orders.running[0]
    if stop and running >= 0 and (n == 0 or slots[0] != running):
        orders.gate.stop = 1
    call_i64_i32_ptr_i64(native.write, orders.wake_fd, native.byte.ctypes.data, 1)
    return True


@njit(nogil=True, cache=True)
def grant_chunk(orders, native, tokens):
    """Grant the next chunk so many tokens; 0 = it waits."""
    stores_first()  # who computes it was said before
    orders.grant[0] = tokens
    if tokens > 0 and orders.running[0] < 0:
        call_i64_i32_ptr_i64(native.write, orders.wake_fd, native.byte.ctypes.data, 1)


@cfunc(types.boolean(types.voidptr), cache=True)
def is_set(data):
    """Whether the byte at ``data`` is set (``ggml_abort_callback``).  Takes no GIL."""
    return carray(data, 1, np.uint8)[0] != 0


class Request(NamedTuple):
    """The worker lacks positions from ``p0`` on of a row that the engine computed itself."""

    slot: int
    serial: int
    epoch: int
    p0: int


class Exchange:
    """Everything that both threads touch.

    The deques have one side that appends and one that pops, so that no lock is needed: ``first``,
    ``finished`` and ``asked`` go from the worker to the loop, ``handed`` the other way, ``log`` to
    the front.  A prompt's first token is told before the piece that has its last cell.  ``clears``
    is set by the loop: the worker is to leave nothing in its memory before it computes again.
    """

    def __init__(self, table: t.SessionTable, orders: Orders) -> None:
        self.table = table
        self.orders = orders
        self.clears = False
        self.first: deque[FirstToken] = deque()
        self.finished: deque[Piece] = deque()
        self.asked: deque[Request] = deque()
        self.handed: deque[Piece] = deque()
        self.log: deque[m.Log] = deque()
        self.buffers = Buffers(BACKLOG + 2)

    def is_current(self, slot: int, serial: int, epoch: int) -> bool:
        """Whether what was made for this request and epoch still counts."""
        return bool(self.orders.epoch[slot] == epoch and self.table.serial[slot] == serial)

    def refuse(self, slot: int, why: str) -> None:
        """Leave a prompt to the engine for good."""
        self.orders.refused[slot] = 1
        self.complain(f"a prompt is computed in the ticks, since beside them {why}")

    def complain(self, text: str) -> None:
        self.log.append(m.Log("warn", text))

    def wake_worker(self) -> None:
        """Make the worker look at its orders."""
        try:
            os.write(self.orders.wake_fd, b"\0")
        except BlockingIOError:
            return  # it has been told already
