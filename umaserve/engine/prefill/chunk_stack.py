"""A chunk of a prompt that the loop computes itself, part by part, on a processor.

There the ticks' threads are all there is.  A second team of threads would have to be woken for
each slice.  Where there are more threads than cores, libgomp lets them hardly wait for each other
(``GOMP_SPINCOUNT``, ``gomp_throttled_spin_count_var``).  That made every tick 1.05 to 2 times as
long.  So the loop's own thread decodes the chunk, with its own team, on a second stack.  At each
part (`gate`) it changes back to the loop's stack (``swapcontext``).

The worker's thread puts the chunk together and hands it over (`hand_over`).  The loop computes
parts of it between two ticks (`run_parts`) or gives it up (`give_up`), and wakes the thread when it
has ended.  Between two slices the chunk is nothing but a stack that waits.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

import numpy as np
from numba import carray, cfunc, types

from umaserve.engine.native.calls import (
    address_in,
    call_i32_ptr_ptr,
    call_i64_i32_ptr_i64,
    loads_first,
    now_ns,
    readable,
    stores_first,
)
from umaserve.engine.native.status import GIVEN_UP
from umaserve.jit.compiled import njit
from umaserve.jit.record import address_of
from umaserve.policy.cost.model import CHUNK_SIZES
from umaserve.wire import memory_order

from .gate import DONE, GATE, HANDED, STARVED_NS, UNDER_WAY, Gate

STACK_BYTES = 8 << 20  # as a thread's; only what is used becomes memory
GUARD_BYTES = max(mmap.PAGESIZE, 64 << 10)  # below it: what grows beyond the stack is a fault
CONTEXT_BYTES = 16 << 10  # a ``ucontext_t`` has 968 bytes on x86-64, 4560 on AArch64 (glibc)
LINK, STACK, SIZE = 1, 2, 4  # words of it: uc_link, uc_stack.ss_sp, uc_stack.ss_size (glibc)
PROT_NONE = 0  # of mprotect: neither read nor written


class ChunkStack:
    """The second stack of ``gate``; must outlive every chunk that is under way on it.

    Raises OSError where the C library has no ``swapcontext`` that we know (anything but glibc on
    x86-64 and AArch64).
    """

    def __init__(self, gate: Gate, library: Any) -> None:
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
            ctypes.c_void_p(address_of(gate)),
        )  # fmt: skip
        gate.here, gate.there = here, there
        gate.swap = address_in(libc, "swapcontext")
        gate.decode = library.address("uma_decode")


def hand_over(gate: Gate, context: Any, batch: Any) -> None:
    """Leave a chunk to the loop, from the worker's thread.

    ``context`` and ``batch`` are addresses of a ``llama_context`` and a ``struct llama_batch``.
    Nobody else may touch the context until ``gate.owner`` is DONE.
    """
    gate.context, gate.batch = context, batch
    memory_order.stores_first()
    gate.owner = HANDED


@cfunc(types.void(types.voidptr), cache=True)
def _enter(data):
    """Compute one chunk after the other, on the second stack."""
    gate = carray(data, 1, GATE)[0]
    while gate.swap:
        gate.status = call_i32_ptr_ptr(gate.decode, gate.context, gate.batch)
        stores_first()
        gate.owner = DONE
        call_i32_ptr_ptr(gate.swap, gate.there, gate.here)


@njit(nogil=True, cache=True)
def waits(gate):
    """Whether there is a chunk whose parts the loop computes."""
    return gate.owner == HANDED or gate.owner == UNDER_WAY


@njit(nogil=True, cache=True)
def next_part_ms(gate):
    """Expected ms of the next part of a chunk that waits for the loop; 0.0 where none waits."""
    return gate.expected / 1e6 if gate.owner == UNDER_WAY else 0.0


@njit(nogil=True, cache=True)
def next_part_tokens(gate):
    """Tokens of the largest chunk of its class.

    0 where the loop does not compute the chunk, or has only its end before it.
    """
    if gate.owner == UNDER_WAY and not gate.ends:
        return CHUNK_SIZES[gate.size_class]
    return 0


@njit(nogil=True, cache=True)
def run_parts(gate, native, until, wake_fd):
    """Compute parts of the chunk as long as the next one ends by then; returns the time after it.

    Stops sooner when somebody has something for the loop.  A part that has waited for a second
    begins all the same.
    """
    now = now_ns(native)
    if gate.owner == HANDED:
        loads_first()
        gate.owner = UNDER_WAY
        gate.expected, gate.since = 0, now
    starved = now - gate.since > STARVED_NS
    while gate.owner == UNDER_WAY and (now + gate.expected <= until or starved):
        starved = False
        call_i32_ptr_ptr(gate.swap, gate.here, gate.there)
        gate.since = now = now_ns(native)
        if readable(native):
            break
    if gate.owner == DONE:
        call_i64_i32_ptr_i64(native.write, wake_fd, native.byte.ctypes.data, 1)
    return now


@njit(nogil=True, cache=True)
def give_up(gate):
    """End the chunk, if there is one (`waits`); nothing of it counts.  The thread is not woken."""
    gate.stop = 1
    if gate.owner == HANDED:
        gate.status = GIVEN_UP
        stores_first()
        gate.owner = DONE
    while gate.owner == UNDER_WAY:
        call_i32_ptr_ptr(gate.swap, gate.here, gate.there)


@njit(nogil=True, cache=True)
def choose_owner(gate, running, listed, by_loop, redo, native, wake_fd):
    """Say who computes the next chunk; one that is under way elsewhere, or not wanted, is given up.

    ``running``: the slot whose chunk is computed now, -1 = none.
    ``listed``: whether any prompt is to be computed beside the ticks.
    ``redo``: whether the chunk under way is to be put together again, of fewer tokens.
    """
    gate.by_loop = by_loop
    if waits(gate):
        if gate.stop or redo or not (listed and by_loop):
            gate.redo = redo
            give_up(gate)
            call_i64_i32_ptr_i64(native.write, wake_fd, native.byte.ctypes.data, 1)
    elif listed and by_loop and running >= 0 and gate.owner != DONE:
        gate.stop = 1  # the thread's own: its abort callback looks at it
