"""The gate: where a prompt chunk beside the ticks stops and goes on.

Before every operation of a graph libllama asks whether somebody wants to look at its result
(``llama_context_params.cb_eval``, `ggml_backend_sched_set_eval_callback`).  An operation that is
wanted ends a part, which is computed by itself.  Wanted are matrix products, which take most of the
time.  At the question the loop goes back to its ticks, and computes the next part in a later slice
(`chunk_stack`).  None of this takes the GIL.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numba import carray, cfunc, types

from umaserve.engine.native.calls import address_in, call_i32_ptr_ptr, clock_ns
from umaserve.jit.compiled import INNER, njit
from umaserve.jit.record import Record, address_of, ints
from umaserve.policy.cost.model import CHUNK_SIZES, chunk_class

PARTS = 1024  # matrix products of one graph whose times are remembered
SOONER, LATER = 2, 8  # one part in so many of a new time goes into the one remembered
WILD = 4  # times what was remembered: more counts as so much
STARVED_NS = 1_000_000_000  # what waited so long goes on although it takes too long

# who computes a chunk: ``Gate.owner``
THREAD = 0  # the worker's thread, or nobody
HANDED = 1  # the loop, which has not begun with it
UNDER_WAY = 2  # the loop
DONE = 3  # the loop, and ``Gate.status`` says how it went


class Gate(Record):
    """State that both threads see; times are in ns, by the monotonic clock."""

    stop: int  # 1 = give the chunk up
    gave_up: int  # 1 = that was done
    met: int  # matrix products met in this chunk
    began: int  # when the part in flight was submitted
    size_class: int  # of this chunk's tokens
    whole: int  # 1 = this chunk neither stops nor waits
    owner: int  # who computes this chunk: THREAD, HANDED, UNDER_WAY or DONE
    by_loop: int  # 1 = the loop will compute the next one, 0 = the worker's thread
    expected: int  # ns that the next part takes, where the chunk waits for the loop
    since: int  # when the loop last computed a part of it
    longest: int  # ns of the longest part of this chunk so far, as `longest_ms`
    ends: int  # 1 = the next part makes logits, after which a chunk ends
    redo: int  # 1 = it was given up for one of fewer tokens
    op_at: int  # offset of a tensor's operation, and those wanted
    mul_mat: int
    mul_mat_id: int
    ne_at: int  # offset of a tensor's first length, and that of logits
    n_vocab: int
    clock: int  # functions of libc
    clock_room: np.ndarray = ints(2)  # a timespec
    here: int  # where the loop and the chunk are while the other one runs (`chunk_stack`)
    there: int
    swap: int  # what is called on the chunk's stack, and its result
    decode: int
    context: int
    batch: int
    status: int
    times: np.ndarray = ints(CHUNK_SIZES.size, PARTS)  # ns of each part, by class of its chunk


GATE = Gate.dtype


def hang(gate: Gate, library: Any, n_vocab: int = 0) -> dict[str, Any]:
    """Fields of ``llama_context_params`` for a context whose chunks stop at ``gate``.

    The gate is borrowed and must outlive the context.  ``n_vocab`` is the model's, by which the
    part that makes logits is known.
    """
    ffi, lib = library.ffi, library.lib
    gate.clock = address_in(ctypes.CDLL(None), "clock_gettime")
    gate.op_at = ffi.offsetof("struct ggml_tensor", "op")
    gate.ne_at, gate.n_vocab = ffi.offsetof("struct ggml_tensor", "ne"), n_vocab
    gate.mul_mat, gate.mul_mat_id = int(lib.GGML_OP_MUL_MAT), int(lib.GGML_OP_MUL_MAT_ID)
    return {
        "cb_eval": ffi.cast("ggml_backend_sched_eval_callback", int(_at_part.address or 0)),
        "cb_eval_user_data": ffi.cast("void *", address_of(gate)),
    }


def begin_chunk(gate: Gate, tokens: int, whole: bool = False) -> None:
    """Before a chunk is submitted; a ``whole`` one is not submitted in parts."""
    gate.gave_up = gate.met = 0
    gate.expected = gate.longest = gate.ends = gate.redo = 0
    gate.size_class, gate.whole = chunk_class(tokens), whole


def forget_times(gate: Gate, tokens: int) -> None:
    """Forget part times of chunks of this class: the first chunk pays for kernels and buffers."""
    gate.times[chunk_class(tokens)] = 0


def take_times(gate: Gate, other: Gate) -> None:
    """Remember what parts took by another gate, where nothing is known of them."""
    np.copyto(gate.times, other.times, where=gate.times == 0)


def longest_ms(gate: Gate) -> float:
    """Ms of the longest part of a chunk like the last chunk that ended; 0 where it is not known.

    The first part, which copies data of the host, does not count.  The last part, which makes
    logits where a prompt ends and is in few chunks, does not count either.
    """
    times = _known(gate)
    return float(times[1:-1].max()) / 1e6 if times.size > 2 else 0.0


def all_ms(gate: Gate) -> float:
    """Ms of all parts of such a chunk together; 0 as `longest_ms`."""
    times = _known(gate)
    return float(times.sum()) / 1e6 if times.size > 1 else 0.0


def _known(gate: Gate) -> np.ndarray:
    """Times of the parts of the chunk that ended."""
    return gate.times[gate.size_class, : min(gate.met, PARTS)]


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
        if gate.owner == UNDER_WAY:
            # most of the first part is copying what the host has, which holds up no tick
            expected = _expected(gate, min(i, PARTS - 1)) if i else 0
            gate.expected = expected
            length = carray(tensor, 1 << 9, np.int64)[gate.ne_at // 8]
            gate.ends = length == gate.n_vocab
            if not gate.ends:
                gate.longest = max(gate.longest, expected)
            call_i32_ptr_ptr(gate.swap, gate.there, gate.here)  # the loop says when
        gate.began = clock_ns(gate.clock, gate.clock_room)
        return True
    took = clock_ns(gate.clock, gate.clock_room) - gate.began
    part = min(gate.met - 1, PARTS - 1)
    known = gate.times[gate.size_class, part]
    if known:
        # what held it up once is no part of it
        took = min(took, WILD * known)
        took = known + (took - known) // (LATER if took > known else SOONER)
    gate.times[gate.size_class, part] = took
    if gate.stop:
        gate.gave_up = 1
        return False
    return True
