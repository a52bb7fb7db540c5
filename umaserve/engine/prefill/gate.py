"""The gate: where a prompt chunk beside the ticks stops and goes on.

A graph that was submitted to an accelerator cannot be interrupted, so a chunk is submitted in
parts.  Before every operation of a graph libllama asks whether somebody wants to look at its result
(``llama_context_params.cb_eval``, `ggml_backend_sched_set_eval_callback`).  What lies in front of
one that is wanted is computed by itself.  We want matrix products, which is where the time goes,
and look at nothing.  The question is where the chunk waits until the loop has time for the next
part.

The loop says until when (`let_through`).  The second context's thread goes on as long as the next
part, by what it took before, ends in time.  On a processor the loop itself computes the parts
(`chunk_stack`).  None of this takes the GIL.

Long: both sides of one lock are read together.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
from numba import carray, cfunc, types

from umaserve.engine.native.calls import (
    CLOCK_MONOTONIC,
    POLLIN,
    call_i32_i32_ptr,
    call_i32_ptr_i64_i32,
    call_i32_ptr_ptr,
    call_i64_i32_ptr_i64,
    now_ns,
    readable,
)
from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER
from umaserve.jit.record import Record, address_of, ints
from umaserve.policy.cost.model import CHUNK_SIZES, chunk_class

OPEN = 1 << 62  # ``Gate.until``: nobody has to be waited for
EACH = 8  # with the gate open, so many matrix products (about a layer) make one part
PARTS = 1024  # matrix products of one graph whose times are remembered
SOONER, LATER = 2, 8  # one part in so many of a new time goes into the one remembered
WILD = 4  # times what was remembered: more counts as so much
SPIN_NS = 2_000_000  # a short wait is not worth sleeping
# so many times as long after a slice that was too short: waking up takes half of a short one.  A
# part that always came late for that would never begin
AWAKE = 10
SLEEP_MS = 5
STARVED_NS = 1_000_000_000  # what waited so long goes on although it takes too long
ROOM_NS = 2_000_000  # the loop sleeps while more than this is left

# who computes a chunk: ``Gate.owner``
THREAD = 0  # the worker's thread, or nobody
HANDED = 1  # the loop, which has not begun with it
UNDER_WAY = 2  # the loop
DONE = 3  # the loop, and ``Gate.status`` says how it went


class Gate(Record):
    """What both threads see; times are in ns, by the monotonic clock."""

    until: int  # parts that end by then may begin; 0 = none, OPEN = all
    seen: int  # the ``until`` for which the chunk found no part that ends in time
    parked: int  # 1 while the chunk waits
    measure: int  # 1 = stop at every part, but never wait
    stop: int  # 1 = give the chunk up
    gave_up: int  # 1 = that was done
    met: int  # matrix products met in this chunk
    computed: int  # of those, how many are computed
    began: int  # when the part in flight was submitted
    coarse: int  # parts of several matrix products in this chunk
    size_class: int  # of this chunk's tokens
    whole: int  # 1 = this chunk neither stops nor waits
    owner: int  # who computes this chunk: THREAD, HANDED, UNDER_WAY or DONE
    by_loop: int  # 1 = the loop will compute the next one, 0 = the worker's thread
    expected: int  # ns that the next part takes, where the chunk waits for the loop
    since: int  # when the loop last computed a part of it
    slice_began: int  # from when the slice counts that the loop last let through
    late: int  # ns of a slice that are over, as a rule, when a chunk sees it
    longest: int  # ns of the longest part of this chunk so far, as `longest_ms`
    ends: int  # 1 = the next part makes logits, after which a chunk ends
    redo: int  # 1 = it was given up for one of fewer tokens
    spin: int  # ns to wait before sleeping
    op_at: int  # offset of a tensor's operation, and those wanted
    mul_mat: int
    mul_mat_id: int
    ne_at: int  # offset of a tensor's first length, and that of logits
    n_vocab: int
    clock: int  # functions of libc
    poll: int
    read: int
    wake_read: int  # the pipe that wakes the chunk
    clock_room: np.ndarray = ints(2)  # a timespec
    poll_room: np.ndarray = ints(1)  # a pollfd
    read_room: np.ndarray = ints(1)
    here: int  # where the loop and the chunk are while the other one runs (`chunk_stack`)
    there: int
    swap: int  # what is called on the chunk's stack, and its result
    decode: int
    context: int
    batch: int
    status: int
    times: np.ndarray = ints(CHUNK_SIZES.size, PARTS)  # ns of each part, by class of its chunk


GATE = Gate.dtype


def new_gate() -> Gate:
    """An open one."""
    gate = Gate.zeros()
    gate.until = OPEN
    return gate


def hang(gate: Gate, library: Any, wake_read: int, n_vocab: int = 0) -> dict[str, Any]:
    """Fields of ``llama_context_params`` for a context whose chunks stop at ``gate``.

    ``wake_read`` is a pipe that the loop writes to when the gate opens.  Both are borrowed and must
    outlive the context.  ``n_vocab`` is the model's, by which the part that makes logits is known.
    """
    ffi, lib, libc = library.ffi, library.lib, ctypes.CDLL(None)
    gate.clock, gate.poll, gate.read = (
        int(ctypes.cast(function, ctypes.c_void_p).value or 0)
        for function in (libc.clock_gettime, libc.poll, libc.read)
    )
    gate.op_at = ffi.offsetof("struct ggml_tensor", "op")
    gate.ne_at, gate.n_vocab = ffi.offsetof("struct ggml_tensor", "ne"), n_vocab
    gate.mul_mat, gate.mul_mat_id = int(lib.GGML_OP_MUL_MAT), int(lib.GGML_OP_MUL_MAT_ID)
    gate.spin = SPIN_NS if (os.cpu_count() or 1) >= 4 else 0
    gate.wake_read = wake_read
    return {
        "cb_eval": ffi.cast("ggml_backend_sched_eval_callback", int(_at_part.address or 0)),
        "cb_eval_user_data": ffi.cast("void *", address_of(gate)),
    }


def begin_chunk(gate: Gate, tokens: int, whole: bool = False) -> None:
    """Before a chunk is submitted; a ``whole`` one is not submitted in parts."""
    gate.gave_up = gate.met = gate.computed = gate.coarse = gate.parked = 0
    gate.expected = gate.longest = gate.ends = gate.redo = 0
    gate.size_class, gate.whole = chunk_class(tokens), whole


def forget_times(gate: Gate, tokens: int) -> None:
    """What parts of chunks of this class took: the first pays for kernels and buffers."""
    gate.times[chunk_class(tokens)] = 0


def take_times(gate: Gate, other: Gate) -> None:
    """Remember what parts took by another gate, where nothing is known of them."""
    np.copyto(gate.times, other.times, where=gate.times == 0)


def longest_ms(gate: Gate) -> float:
    """What the longest part of a chunk like the one that ended takes, as far as is known.

    0 where not all its parts were as small as can be.  Without the first, which copies what the
    host has, and the last, which makes logits where a prompt ends and is in few chunks.
    """
    times = _known(gate)
    return float(times[1:-1].max()) / 1e6 if times.size > 2 else 0.0


def all_ms(gate: Gate) -> float:
    """What all of its parts take together; 0 as `longest_ms`."""
    times = _known(gate)
    return float(times.sum()) / 1e6 if times.size > 1 else 0.0


def _known(gate: Gate) -> np.ndarray:
    """Times of the parts of the chunk that ended, if each was as small as can be."""
    if gate.coarse:
        return gate.times[0, :0]
    return gate.times[gate.size_class, : min(gate.met, PARTS)]


@njit(**INNER)
def _now(gate):
    call_i32_i32_ptr(gate.clock, CLOCK_MONOTONIC, gate.clock_room.ctypes.data)
    return gate.clock_room[0] * 1_000_000_000 + gate.clock_room[1]


@njit(**INNER)
def _came_late(gate, now, until):
    """Learn what of a slice is over by the time a chunk sees it.

    One that was over altogether counts as well, or a chunk that sees no slice would seem to need no
    longer ones.  It counts as twice as long at most, since a thread may be held up for anything.
    """
    began = gate.slice_began
    late = min(max(now - began, 0), 2 * (until - began))
    gate.late += (late - gate.late) // LATER


@njit(**INNER)
def _wait(gate, expected):
    """Until a part that takes so long may begin; returns the time then.

    Until then ``gate.expected`` says what it takes of a slice.  That includes what of the slice
    will be over by the time it is seen: the loop plans, and a thread wakes up.
    """
    began = now = _now(gate)
    awake = began + gate.spin
    while True:
        until = gate.until
        opened = until != 0 and until != gate.seen
        if opened and gate.parked and until != OPEN:  # it has not had a part of this slice
            _came_late(gate, now, until)
        if until == OPEN or gate.measure or gate.stop or now + expected <= until:
            break
        if until > now and now - began > STARVED_NS:
            break
        if opened:
            awake = now + AWAKE * gate.spin
        gate.expected = expected + gate.late
        gate.seen = until
        gate.parked = 1
        if now > awake:
            gate.poll_room[0] = gate.wake_read | POLLIN << 32  # struct pollfd (little-endian)
            if call_i32_ptr_i64_i32(gate.poll, gate.poll_room.ctypes.data, 1, SLEEP_MS) > 0:
                # meant for something else, it is looked at anyway when the chunk is done
                call_i64_i32_ptr_i64(gate.read, gate.wake_read, gate.read_room.ctypes.data, 8)
        now = _now(gate)
    gate.parked = 0
    return now


@njit(**INNER)
def _expected(gate, part):
    """ns of a part of this chunk, by that of a smaller one if no chunk of this class had one."""
    size = gate.size_class
    for known in range(size, -1, -1):
        ns = gate.times[known, part]
        if ns:
            return ns * CHUNK_SIZES[size] // CHUNK_SIZES[known]
    return 0


@cfunc(types.boolean(types.voidptr, types.boolean, types.voidptr), cache=True)
def _at_part(tensor, ask, data):
    """``ggml_backend_sched_eval_callback``: ``data`` is the gate."""
    gate = carray(data, 1, GATE)[0]
    if ask:
        if gate.whole:
            return False
        op = carray(tensor, 1 << 12, np.uint8)[gate.op_at]
        if op != gate.mul_mat and op != gate.mul_mat_id:
            return False
        i = gate.met
        gate.met = i + 1
        each = gate.until != OPEN or gate.measure or gate.stop or gate.owner == UNDER_WAY
        if not each and i % EACH != EACH - 1:
            return False
        expected = 0
        for part in range(gate.computed, i + 1):
            # most of the first is copying what the host has, which holds up no tick
            if part:
                expected += _expected(gate, min(part, PARTS - 1))
        if gate.owner == UNDER_WAY:
            gate.expected = expected
            length = carray(tensor, 1 << 9, np.int64)[gate.ne_at // 8]
            gate.ends = length == gate.n_vocab
            if not gate.ends:
                gate.longest = max(gate.longest, expected)
            call_i32_ptr_ptr(gate.swap, gate.there, gate.here)  # the loop says when
            gate.began = _now(gate)
        else:
            gate.began = _wait(gate, expected)
        return True
    took = _now(gate) - gate.began
    i = gate.met - 1
    if i == gate.computed:
        part = min(i, PARTS - 1)
        known = gate.times[gate.size_class, part]
        if known:
            # what held it up once is no part of it
            took = min(took, WILD * known)
            took = known + (took - known) // (LATER if took > known else SOONER)
        gate.times[gate.size_class, part] = took
    else:
        gate.coarse += 1
    gate.computed = i + 1
    if gate.stop:
        gate.gave_up = 1
        return False
    return True


@njit(nogil=True, cache=True)
def set_gate(gate, until, native, wake_fd):
    """Open or close the gate: ``until`` is what `Gate.until` is to be."""
    if gate.until == until:
        return
    gate.until = until
    if until and gate.parked:
        call_i64_i32_ptr_i64(native.write, wake_fd, native.byte.ctypes.data, 1)


@njit(nogil=True, cache=True)
def let_through(gate, turns, since, until, native, wake_fd):
    """Let the chunk go on until then, and wait until it has stopped; returns the time after it.

    ``since``: when the slice began, or would have if the loop had nothing to do for it.
    ``turns`` is odd while there is a chunk.  Returns sooner when it ends, has no part that is short
    enough, or somebody has something for the loop.  A part in flight is waited for after that time.
    One whose graph is still put together, or that copies what the host has, is in no tick's way.
    """
    began = now = now_ns(native)
    gate.slice_began = since
    set_gate(gate, until, native, wake_fd)
    latest = until + max(until - began, 1_000_000)
    while turns[0] % 2 and now < latest:
        if gate.parked and gate.seen == until:
            break
        if until - now > ROOM_NS and readable(native, 1):
            break
        if now >= until and gate.computed == 0:
            break
        now = now_ns(native)
    if turns[0] % 2 and gate.parked and gate.seen != until and now >= until:
        _came_late(gate, OPEN, until)  # nobody has seen it: how late that would be is not known
    gate.until = 0
    return now
