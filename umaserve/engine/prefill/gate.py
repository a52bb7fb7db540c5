"""The gate: where a prompt chunk beside the ticks stops and goes on.

A graph that was submitted to an accelerator cannot be interrupted, so a chunk is submitted in
parts.  libllama asks before every operation of a graph whether somebody wants to look at its result
(``llama_context_params.cb_eval``, `ggml_backend_sched_set_eval_callback`) and computes what lies in
front of one that is wanted by itself.  We want matrix products, which is where the time goes, and
look at nothing: the question is where the chunk waits until the loop has time for the next part.

The loop says until when (`let_through`); the second context's thread goes on as long as the next
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
from umaserve.policy.cost.model import BESIDE_SIZES, beside_class

OPEN = 1 << 62  # UNTIL: nobody has to be waited for
EACH = 8  # with the gate open, so many matrix products (about a layer) make one part
PARTS = 1024  # matrix products of one graph whose times are remembered
SOONER, LATER = 2, 8  # one part in so many of a new time goes into the one remembered
WILD = 4  # times what was remembered: more counts as so much
SPIN_NS = 2_000_000  # a short wait is not worth sleeping
# so many times as long after a slice that was too short: waking up takes half of a short one, and
# a part that always came late for that would never begin
AWAKE = 10
SLEEP_MS = 5
STARVED_NS = 1_000_000_000  # what waited so long goes on although it takes too long
ROOM_NS = 2_000_000  # the loop sleeps while more than this is left

# words of the block that both threads see
(
    UNTIL,  # ns, monotonic: parts that end by then may begin; 0 = none
    SEEN,  # the UNTIL for which the chunk found no part that ends in time
    PARKED,  # 1 while the chunk waits
    MEASURE,  # 1 = stop at every part, but never wait
    STOP,  # 1 = give the chunk up
    GAVE_UP,  # 1 = that was done
    AT,  # matrix products met in this chunk
    LAST,  # of those, how many are computed
    BEGAN,  # ns when the part in flight was submitted
    COARSE,  # parts of several matrix products in this chunk
    SIZE,  # class of this chunk's tokens
    WHOLE,  # 1 = this chunk neither stops nor waits
    SPIN,  # ns to wait before sleeping
    OP_AT, MUL_MAT, MUL_MAT_ID,  # offset of a tensor's operation, and those wanted
    CLOCK, POLL, READ,  # functions of libc
    WAKE_READ,  # the pipe that wakes the chunk
    CLOCK_ROOM, _CLOCK_ROOM_2, POLL_ROOM, READ_ROOM,
    OWNER,  # who computes this chunk: see below
    BY_LOOP,  # 1 = the loop will compute the next one, 0 = the worker's thread
    EXPECTED,  # ns that the next part takes, where the chunk waits for the loop
    SINCE,  # ns when the loop last computed a part of it
    HERE, THERE,  # where the loop and the chunk are while the other one runs (`chunk_stack`)
    SWAP, DECODE, CONTEXT, BATCH, STATUS,  # what is called on the chunk's stack, and its result
    SLICE_BEGAN,  # ns from which the slice counts that the loop last let through
    LATE,  # ns of a slice that are over, as a rule, when a chunk sees it
    NE_AT, N_VOCAB,  # offset of a tensor's first length, and that of logits
    LONGEST,  # ns of the longest part of this chunk so far, as `longest_ms`
    ENDS,  # 1 = the next part makes logits, after which a chunk ends
    REDO,  # 1 = it was given up for one of fewer tokens
) = range(42)  # fmt: skip
TIMES = 42  # from here on: ns of each part, PARTS for each of BESIDE_SIZES
WORDS = TIMES + BESIDE_SIZES.size * PARTS

# words of OWNER
THREAD = 0  # the worker's thread, or nobody
HANDED = 1  # the loop, which has not begun with it
UNDER_WAY = 2  # the loop
DONE = 3  # the loop, and STATUS says how it went


def new_gate() -> np.ndarray:
    """An open gate: int64[WORDS]."""
    gate = np.zeros(WORDS, np.int64)
    gate[UNTIL] = OPEN
    return gate


def hang(gate: np.ndarray, library: Any, wake_read: int, n_vocab: int = 0) -> dict[str, Any]:
    """Fields of ``llama_context_params`` for a context whose chunks stop at ``gate``.

    ``wake_read`` is a pipe that the loop writes to when the gate opens.  Both are borrowed and must
    outlive the context.  ``n_vocab`` is the model's, by which the part that makes logits is known.
    """
    ffi, lib, libc = library.ffi, library.lib, ctypes.CDLL(None)
    for word, name in ((CLOCK, "clock_gettime"), (POLL, "poll"), (READ, "read")):
        gate[word] = int(ctypes.cast(getattr(libc, name), ctypes.c_void_p).value or 0)
    gate[OP_AT] = ffi.offsetof("struct ggml_tensor", "op")
    gate[NE_AT], gate[N_VOCAB] = ffi.offsetof("struct ggml_tensor", "ne"), n_vocab
    gate[MUL_MAT], gate[MUL_MAT_ID] = int(lib.GGML_OP_MUL_MAT), int(lib.GGML_OP_MUL_MAT_ID)
    gate[SPIN] = SPIN_NS if (os.cpu_count() or 1) >= 4 else 0
    gate[WAKE_READ] = wake_read
    return {
        "cb_eval": ffi.cast("ggml_backend_sched_eval_callback", int(_at_part.address or 0)),
        "cb_eval_user_data": ffi.cast("void *", gate.ctypes.data),
    }


def begin_chunk(gate: np.ndarray, tokens: int, whole: bool = False) -> None:
    """Before a chunk is submitted; a ``whole`` one is not submitted in parts."""
    gate[[GAVE_UP, AT, LAST, COARSE, PARKED, EXPECTED, LONGEST, ENDS, REDO]] = 0
    gate[SIZE], gate[WHOLE] = beside_class(tokens), whole


def forget_times(gate: np.ndarray, tokens: int) -> None:
    """What parts of chunks of this class took: the first pays for kernels and buffers."""
    first = TIMES + beside_class(tokens) * PARTS
    gate[first : first + PARTS] = 0


def take_times(gate: np.ndarray, other: np.ndarray) -> None:
    """Remember what parts took by another gate, where nothing is known of them."""
    mine = gate[TIMES:]
    np.copyto(mine, other[TIMES:], where=mine == 0)


def longest_ms(gate: np.ndarray) -> float:
    """What the longest part of a chunk like the one that ended takes, as far as is known.

    0 where not all its parts were as small as can be.  Without the first, which copies what the
    host has, and the last, which makes logits where a prompt ends and is in few chunks.
    """
    times = _known(gate)
    return float(times[1:-1].max()) / 1e6 if times.size > 2 else 0.0


def all_ms(gate: np.ndarray) -> float:
    """What all of its parts take together; 0 as `longest_ms`."""
    times = _known(gate)
    return float(times.sum()) / 1e6 if times.size > 1 else 0.0


def _known(gate: np.ndarray) -> np.ndarray:
    """Times of the parts of the chunk that ended, if each was as small as can be."""
    if gate[COARSE]:
        return gate[:0]
    first = TIMES + int(gate[SIZE]) * PARTS
    return gate[first : first + min(int(gate[AT]), PARTS)]


@njit(nogil=True, cache=True)
def _now(gate):
    call_i32_i32_ptr(gate[CLOCK], CLOCK_MONOTONIC, gate[CLOCK_ROOM:].ctypes.data)
    return gate[CLOCK_ROOM] * 1_000_000_000 + gate[CLOCK_ROOM + 1]


@njit(nogil=True, cache=True)
def _came_late(gate, now, until):
    """Learn what of a slice is over by the time a chunk sees it.

    One that was over altogether counts as well, or a chunk that sees no slice would seem to need no
    longer ones; not for more than twice as long, since a thread may be held up for anything.
    """
    began = gate[SLICE_BEGAN]
    late = min(max(now - began, 0), 2 * (until - began))
    gate[LATE] += (late - gate[LATE]) // LATER


@njit(nogil=True, cache=True)
def _wait(gate, expected):
    """Until a part that takes so long may begin; returns the time then.

    Until then EXPECTED says what it takes of a slice, with what of that will be over by the time
    this is seen: the loop plans, and a thread wakes up.
    """
    began = now = _now(gate)
    awake = began + gate[SPIN]
    while True:
        until = gate[UNTIL]
        opened = until != 0 and until != gate[SEEN]
        if opened and gate[PARKED] and until != OPEN:  # it has not had a part of this slice
            _came_late(gate, now, until)
        if until == OPEN or gate[MEASURE] or gate[STOP] or now + expected <= until:
            break
        if until > now and now - began > STARVED_NS:
            break
        if opened:
            awake = now + AWAKE * gate[SPIN]
        gate[EXPECTED] = expected + gate[LATE]
        gate[SEEN] = until
        gate[PARKED] = 1
        if now > awake:
            gate[POLL_ROOM] = gate[WAKE_READ] | POLLIN << 32  # struct pollfd (little-endian)
            if call_i32_ptr_i64_i32(gate[POLL], gate[POLL_ROOM:].ctypes.data, 1, SLEEP_MS) > 0:
                # meant for something else, it is looked at anyway when the chunk is done
                call_i64_i32_ptr_i64(gate[READ], gate[WAKE_READ], gate[READ_ROOM:].ctypes.data, 8)
        now = _now(gate)
    gate[PARKED] = 0
    return now


@njit(nogil=True, cache=True)
def _expected(gate, part):
    """ns of a part of this chunk, by that of a smaller one if no chunk of this class had one."""
    size = gate[SIZE]
    for known in range(size, -1, -1):
        ns = gate[TIMES + known * PARTS + part]
        if ns:
            return ns * BESIDE_SIZES[size] // BESIDE_SIZES[known]
    return 0


@cfunc(types.boolean(types.voidptr, types.boolean, types.voidptr), cache=True)
def _at_part(tensor, ask, data):
    """``ggml_backend_sched_eval_callback``: ``data`` is the gate."""
    gate = carray(data, WORDS, np.int64)
    if ask:
        if gate[WHOLE]:
            return False
        op = carray(tensor, 1 << 12, np.uint8)[gate[OP_AT]]
        if op != gate[MUL_MAT] and op != gate[MUL_MAT_ID]:
            return False
        i = gate[AT]
        gate[AT] = i + 1
        each = gate[UNTIL] != OPEN or gate[MEASURE] or gate[STOP] or gate[OWNER] == UNDER_WAY
        if not each and i % EACH != EACH - 1:
            return False
        expected = 0
        for part in range(gate[LAST], i + 1):
            # most of the first is copying what the host has, beside which ticks run as always
            if part:
                expected += _expected(gate, min(part, PARTS - 1))
        if gate[OWNER] == UNDER_WAY:
            gate[EXPECTED] = expected
            length = carray(tensor, 1 << 9, np.int64)[gate[NE_AT] // 8]
            gate[ENDS] = length == gate[N_VOCAB]
            if not gate[ENDS]:
                gate[LONGEST] = max(gate[LONGEST], expected)
            call_i32_ptr_ptr(gate[SWAP], gate[THERE], gate[HERE])  # the loop says when
            gate[BEGAN] = _now(gate)
        else:
            gate[BEGAN] = _wait(gate, expected)
        return True
    took = _now(gate) - gate[BEGAN]
    i = gate[AT] - 1
    if i == gate[LAST]:
        at = TIMES + gate[SIZE] * PARTS + min(i, PARTS - 1)
        known = gate[at]
        if known:
            # what held it up once is no part of it
            took = min(took, WILD * known)
            took = known + (took - known) // (LATER if took > known else SOONER)
        gate[at] = took
    else:
        gate[COARSE] += 1
    gate[LAST] = i + 1
    if gate[STOP]:
        gate[GAVE_UP] = 1
        return False
    return True


@njit(nogil=True, cache=True)
def set_gate(gate, until, native, wake_fd):
    """Open or close it."""
    if gate[UNTIL] == until:
        return
    gate[UNTIL] = until
    if until and gate[PARKED]:
        call_i64_i32_ptr_i64(native.write, wake_fd, native.byte.ctypes.data, 1)


@njit(nogil=True, cache=True)
def let_through(gate, turns, since, until, native, wake_fd):
    """Let the chunk go on until then, and wait until it has stopped; returns the time after it.

    ``since``: when the slice began, or would have if the loop had nothing to do for it.
    ``turns`` is odd while there is a chunk.  Returns sooner when it ends, has no part that is short
    enough, or somebody has something for the loop.  A part in flight is waited for after that time;
    one whose graph is still put together, or that copies what the host has, is in no tick's way.
    """
    began = now = now_ns(native)
    gate[SLICE_BEGAN] = since
    set_gate(gate, until, native, wake_fd)
    latest = until + max(until - began, 1_000_000)
    while turns[0] % 2 and now < latest:
        if gate[PARKED] and gate[SEEN] == until:
            break
        if until - now > ROOM_NS and readable(native, 1):
            break
        if now >= until and gate[LAST] == 0:
            break
        now = now_ns(native)
    if turns[0] % 2 and gate[PARKED] and gate[SEEN] != until and now >= until:
        _came_late(gate, OPEN, until)  # nobody has seen it: how late that would be is not known
    gate[UNTIL] = 0
    return now
