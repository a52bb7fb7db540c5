"""A chunk of a prompt that the loop computes itself, part by part, on a processor.

There the ticks' threads are all there is: a second team of threads for the chunk would have to be
woken for each slice, and libgomp lets its threads hardly wait for each other where there are more
of them than cores (``GOMP_SPINCOUNT``, ``gomp_throttled_spin_count_var``), which made every tick
1.05 to 2 times as long.  So the loop's own thread decodes the chunk, with its own team, on a stack
of its own, and at each part (`gate`) changes back to the loop's stack (``swapcontext``).

The worker's thread puts the chunk together and hands it over (`hand_over`); the loop computes parts
of it between two ticks (`run_parts`) or gives it up (`give_up`), and wakes the thread when it has
ended.  Between two slices the chunk is nothing but a stack that waits.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

import numpy as np
from numba import carray, cfunc, types

from umaserve.engine.native.calls import (
    call_i32_ptr_ptr,
    call_i64_i32_ptr_i64,
    loads_first,
    now_ns,
    readable,
    stores_first,
)
from umaserve.jit.compiled import njit
from umaserve.policy.cost.model import BESIDE_SIZES
from umaserve.wire import memory_order

from .gate import (
    BATCH,
    BY_LOOP,
    CONTEXT,
    DECODE,
    DONE,
    ENDS,
    EXPECTED,
    HANDED,
    HERE,
    OWNER,
    PARKED,
    REDO,
    SINCE,
    STARVED_NS,
    STATUS,
    STOP,
    SWAP,
    THERE,
    UNDER_WAY,
    WORDS,
)
from .gate import SIZE as SIZE_CLASS

STACK_BYTES = 8 << 20  # as a thread's; only what is used becomes memory
GUARD_BYTES = max(mmap.PAGESIZE, 64 << 10)  # below it: what grows beyond the stack is a fault
CONTEXT_BYTES = 16 << 10  # a ``ucontext_t`` has 968 bytes on x86-64, 4560 on AArch64 (glibc)
LINK, STACK, SIZE = 1, 2, 4  # words of it: uc_link, uc_stack.ss_sp, uc_stack.ss_size (glibc)
PROT_NONE = 0  # of mprotect: neither read nor written
GIVEN_UP = 2  # what llama_decode returns when it was aborted


class ChunkStack:
    """The second stack of ``gate``; must outlive every chunk that is under way on it.

    Raises OSError where the C library has no ``swapcontext`` that we know (anything but glibc on
    x86-64 and AArch64).
    """

    def __init__(self, gate: np.ndarray, library: Any) -> None:
        libc = ctypes.CDLL(None)
        if not sys.platform.startswith("linux") or not hasattr(libc, "gnu_get_libc_version"):
            raise OSError("swapcontext is used with the GNU C library only")
        self._stack = mmap.mmap(
            -1, GUARD_BYTES + STACK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        self._rooms = np.zeros((2, CONTEXT_BYTES // 8 + 2), np.int64)
        here, there = (room.ctypes.data + 15 & ~15 for room in self._rooms)
        view = (ctypes.c_char * (GUARD_BYTES + STACK_BYTES)).from_buffer(self._stack)
        guard = ctypes.addressof(view)
        del view
        if libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(GUARD_BYTES), PROT_NONE):
            raise OSError("the stack's guard cannot be protected")
        bottom = guard + GUARD_BYTES
        libc.getcontext(ctypes.c_void_p(there))
        words = np.ctypeslib.as_array((ctypes.c_int64 * 8).from_address(there))
        words[LINK], words[STACK], words[SIZE] = 0, bottom, STACK_BYTES
        libc.makecontext(
            ctypes.c_void_p(there), ctypes.c_void_p(int(_enter.address or 0)), 1,
            ctypes.c_void_p(gate.ctypes.data),
        )  # fmt: skip
        gate[HERE], gate[THERE] = here, there
        gate[SWAP] = int(ctypes.cast(libc.swapcontext, ctypes.c_void_p).value or 0)
        gate[DECODE] = library.address("uma_decode")


def hand_over(gate: np.ndarray, context: Any, batch: Any) -> None:
    """Leave a chunk to the loop, from the worker's thread: addresses of a ``llama_context``, which
    nobody else may touch until OWNER is DONE, and of its ``struct llama_batch``."""
    gate[CONTEXT], gate[BATCH] = context, batch
    memory_order.stores_first()
    gate[OWNER] = HANDED


@cfunc(types.void(types.voidptr), cache=True)
def _enter(data):
    """What runs on the second stack: one chunk after the other."""
    gate = carray(data, WORDS, np.int64)
    while gate[SWAP]:
        gate[STATUS] = call_i32_ptr_ptr(gate[DECODE], gate[CONTEXT], gate[BATCH])
        stores_first()
        gate[OWNER] = DONE
        call_i32_ptr_ptr(gate[SWAP], gate[THERE], gate[HERE])


@njit(nogil=True, cache=True)
def waits(gate):
    """Whether there is a chunk whose parts the loop computes."""
    return gate[OWNER] == HANDED or gate[OWNER] == UNDER_WAY


@njit(nogil=True, cache=True)
def next_part_ms(gate):
    """What the next part of a chunk takes that waits for the loop; 0.0 where none does."""
    return gate[EXPECTED] / 1e6 if gate[OWNER] == UNDER_WAY or gate[PARKED] else 0.0


@njit(nogil=True, cache=True)
def next_part_tokens(gate):
    """Tokens of that chunk, or of the largest of its class, where the loop computes it and has more
    than its end before it; else 0."""
    if gate[OWNER] == UNDER_WAY and not gate[ENDS]:
        return BESIDE_SIZES[gate[SIZE_CLASS]]
    return 0


@njit(nogil=True, cache=True)
def run_parts(gate, native, until, wake_fd):
    """Compute parts of the chunk as long as the next one ends by then; returns the time after it.

    Stops sooner when somebody has something for the loop.  A part that has waited for a second
    begins all the same.
    """
    now = now_ns(native)
    if gate[OWNER] == HANDED:
        loads_first()
        gate[OWNER] = UNDER_WAY
        gate[EXPECTED], gate[SINCE] = 0, now
    starved = now - gate[SINCE] > STARVED_NS
    while gate[OWNER] == UNDER_WAY and (now + gate[EXPECTED] <= until or starved):
        starved = False
        call_i32_ptr_ptr(gate[SWAP], gate[HERE], gate[THERE])
        gate[SINCE] = now = now_ns(native)
        if readable(native):
            break
    if gate[OWNER] == DONE:
        call_i64_i32_ptr_i64(native.write, wake_fd, native.byte.ctypes.data, 1)
    return now


@njit(nogil=True, cache=True)
def give_up(gate):
    """End the chunk, if there is one (`waits`); nothing of it counts.  The thread is not woken."""
    gate[STOP] = 1
    if gate[OWNER] == HANDED:
        gate[STATUS] = GIVEN_UP
        stores_first()
        gate[OWNER] = DONE
    while gate[OWNER] == UNDER_WAY:
        call_i32_ptr_ptr(gate[SWAP], gate[HERE], gate[THERE])


@njit(nogil=True, cache=True)
def choose_owner(gate, running, listed, by_loop, redo, native, wake_fd):
    """Say who computes the next chunk; one that is under way elsewhere, or not wanted, is given up.

    ``running``: the slot whose chunk is computed now, -1 = none; ``listed``: whether any prompt is
    to be computed beside the ticks; ``redo``: whether the chunk that is under way is to be put
    together again, of fewer tokens.
    """
    gate[BY_LOOP] = by_loop
    if waits(gate):
        if gate[STOP] or redo or not (listed and by_loop):
            gate[REDO] = redo
            give_up(gate)
            call_i64_i32_ptr_i64(native.write, wake_fd, native.byte.ctypes.data, 1)
    elif listed and by_loop and running >= 0 and gate[OWNER] != DONE:
        gate[STOP] = 1  # the thread's own: its abort callback looks at it
