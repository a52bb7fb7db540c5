"""Calls into libllama and libc from compiled code that holds no GIL.

A function is an integer address, passed at run time: compiled code that has no address baked in can
be cached on disk.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from umaserve.jit.compiled import INNER, njit

CLOCK_MONOTONIC = 1 if sys.platform.startswith("linux") else 8
# what time.monotonic_ns reads: CLOCK_MONOTONIC on Linux, and on macOS mach_absolute_time, which is
# CLOCK_UPTIME_RAW (8; read in the headers, not run)
POLLIN = 1


def _caller(result: Any, *arguments: Any) -> Any:
    """An intrinsic ``f(address, *args)`` for C functions of one signature."""
    numba_result: dict[int, Any] = {32: types.int32, 64: types.int64}
    c_types = {32: ir.IntType(32), 64: ir.IntType(64)}

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        function = ir.FunctionType(c_types[result], [c_types[a] for a in arguments])
        pointer = builder.inttoptr(args[0], function.as_pointer())
        cast = [
            builder.trunc(value, c_types[width]) if width == 32 else value
            for value, width in zip(args[1:], arguments, strict=True)
        ]
        return builder.call(pointer, cast)

    made = numba_result[result](types.int64, *[types.int64] * len(arguments)), codegen
    takers: tuple[Any, ...] = (  # numba goes by the names that a function has for its arguments
        lambda typingctx, address: made,
        lambda typingctx, address, a: made,
        lambda typingctx, address, a, b: made,
        lambda typingctx, address, a, b, c: made,
        lambda typingctx, address, a, b, c, d: made,
        lambda typingctx, address, a, b, c, d, e: made,
    )
    return intrinsic(takers[len(arguments)])


call_i32_ptr_ptr = _caller(32, 64, 64)  # llama_decode through its shim
call_i64_ptr_i32 = _caller(64, 64, 32)  # llama_get_logits_ith
call_i64_ptr = _caller(64, 64)  # llama_synchronize (what it "returns" is ignored)
call_i32_i32_ptr = _caller(32, 32, 64)  # clock_gettime
call_i64_i32_ptr_i64 = _caller(64, 32, 64, 64)  # write
call_i32_ptr_i64_i32 = _caller(32, 64, 64, 32)  # poll
call_i64_ptr_i32_i32 = _caller(64, 64, 32, 32)  # llama_set_n_threads (returns nothing)
call_i64_ptr_ptr_i32_i32 = _caller(64, 64, 64, 32, 32)  # GOMP_parallel (returns nothing)
call_i32 = _caller(32)  # omp_get_thread_num
call_i64_ptr_i32_i32_i32 = _caller(64, 64, 32, 32, 32)  # llama_memory_seq_rm (returns a bool)
call_i64_ptr_four_i32 = _caller(64, 64, 32, 32, 32, 32)  # llama_memory_seq_cp (returns nothing)
call_i32_i32_i64_ptr = _caller(32, 32, 64, 64)  # sched_setaffinity


def _fence(order: str) -> Any:
    """An intrinsic ``f()`` that orders loads and stores, for other threads and processes too."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        builder.fence(order)
        return context.get_dummy_value()

    return intrinsic(lambda typingctx: (types.void(), codegen))


stores_first = _fence("release")  # all earlier stores before all later stores
loads_first = _fence("acquire")  # all earlier loads before all that comes after: its other half
all_first = _fence("seq_cst")  # all earlier stores and loads before all that comes after


def address_in(library: ctypes.CDLL, name: str) -> int:
    """Where a function of a library lies in this process."""
    return int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0)


class Native(NamedTuple):
    """Addresses and the few bytes that system calls read and write.

    ``clock_room`` int64[2] is a ``struct timespec``, ``poll_room`` int32[2 * n] the ``struct
    pollfd`` array of ``n_poll`` descriptors, ``byte`` uint8[1] what goes down the wake pipe.
    ``context`` is the ``llama_context``, ``memory`` its cells, ``batch`` the ``struct
    llama_batch``; all are borrowed.
    """

    context: int
    memory: int
    batch: int
    decode: int
    synchronize: int
    logits_ith: int
    set_threads: int
    seq_rm: int
    clock_gettime: int
    write: int
    poll: int
    wake_fd: int
    n_poll: int
    clock_room: np.ndarray
    poll_room: np.ndarray
    byte: np.ndarray

    @classmethod
    def of(
        cls, library: Any, context: Any, batch: Any, wake_fd: int, poll_fds: list[int]
    ) -> Native:
        libc = ctypes.CDLL(None)
        poll_room = np.zeros(2 * len(poll_fds), np.int32)
        poll_room[0::2] = poll_fds
        return cls(
            int(library.ffi.cast("intptr_t", context)),
            int(library.ffi.cast("intptr_t", library.lib.llama_get_memory(context))),
            int(library.ffi.cast("intptr_t", batch)),
            library.address("uma_decode"),
            library.address("llama_synchronize"),
            library.address("llama_get_logits_ith"),
            library.address("llama_set_n_threads"),
            library.address("llama_memory_seq_rm"),
            address_in(libc, "clock_gettime"),
            address_in(libc, "write"),
            address_in(libc, "poll"),
            wake_fd,
            len(poll_fds),
            np.zeros(2, np.int64),
            poll_room,
            np.zeros(1, np.uint8),
        )


@njit(**INNER)
def clock_ns(clock, room):
    """Return what ``time.monotonic_ns`` would; ``clock``: address of ``clock_gettime``."""
    call_i32_i32_ptr(clock, CLOCK_MONOTONIC, room.ctypes.data)
    return room[0] * 1_000_000_000 + room[1]


@njit(**INNER)
def now_ns(native):
    """`clock_ns` by the addresses of the ticks."""
    return clock_ns(native.clock_gettime, native.clock_room)


@njit(**INNER)
def readable(native, wait_ms=0):
    """Whether any of the polled descriptors has something to read, or was closed.

    Waits for it up to ``wait_ms``.
    """
    for i in range(native.n_poll):
        native.poll_room[2 * i + 1] = POLLIN  # events, and revents cleared (little-endian)
    return (
        call_i32_ptr_i64_i32(
            native.poll, native.poll_room.ctypes.data, native.n_poll, wait_ms
        )
        != 0
    )


@njit(nogil=True, cache=True)
def wake(native):
    """Write one byte to the front.  A full pipe means that the front has been told already."""
    call_i64_i32_ptr_i64(native.write, native.wake_fd, native.byte.ctypes.data, 1)


@njit(**INNER)
def cut_end(native, seq, first):
    """Have a sequence forget all positions from ``first`` on (``llama_memory_seq_rm``)."""
    call_i64_ptr_i32_i32_i32(native.seq_rm, native.memory, seq, first, -1)
