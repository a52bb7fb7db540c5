"""The ticks' end of masks: asking for the next ones, and waiting for those that are not there yet.

A row's next mask is made by a thread of its request (`umaserve.engine.constraints`) while the next
decode runs.  Ordinary rows have no mask.
"""

from __future__ import annotations

from umaserve.engine.native.calls import (
    call_i32_ptr_ptr,
    call_i64_i32_ptr_i64,
    loads_first,
    now_ns,
)
from umaserve.jit.compiled import INNER, njit
from umaserve.sampling import params as p
from umaserve.sampling.mask import LATE
from umaserve.wire.states import RUNNING

CONSTRAINT, MASK, MASK_AT, NEXT_MASK = p.CONSTRAINT, p.MASK, p.MASK_AT, p.NEXT_MASK
NO_MORE_MASKS = p.NO_MORE_MASKS
SPIN_NS = 20_000  # so long a mask is looked for without a nap: most need less
NAP_NS = 20_000
PATIENCE_NS = 2_000_000  # so long a mask may keep others; then its row is computed again
ALONE_NS = 300_000_000  # the same where nobody else has a row


@njit(nogil=True, cache=True)
def ask_for_masks(slots, whole, native):
    """Wake whoever makes the masks of the rows in ``slots`` int32.

    ``whole`` int64[n_slots, N_WHOLE] is of their settings.
    """
    for i in range(slots.size):
        wakes = whole[slots[i], CONSTRAINT]
        if wakes:
            call_i64_i32_ptr_i64(native.write, wakes - 1, native.byte.ctypes.data, 1)


@njit(nogil=True, cache=True)
def await_masks(slots, states, n_tokens, whole, native, pool):
    """Say with which mask each of the rows in ``slots`` int32 is sampled.

    ``n_tokens`` int32[n_slots]: each row's tokens, which its mask has to be for.  All masks
    together are waited for up to PATIENCE_NS, or ALONE_NS where no other of the ``states`` int32
    runs.  A row that is alone in its tick may have taken turns with others.
    """
    began, patience = 0, ALONE_NS
    for i in range(slots.size):
        slot = slots[i]
        if whole[slot, CONSTRAINT] == 0:
            continue
        while whole[slot, MASK_AT] != n_tokens[slot]:
            now = now_ns(native)
            if began == 0:
                began, patience = now, ALONE_NS if _running(states) == 1 else PATIENCE_NS
            if now - began > patience or whole[slot, MASK_AT] == NO_MORE_MASKS:
                break
            if now - began > SPIN_NS:
                room = pool.rooms[pool.n_workers]
                room[0], room[1] = 0, NAP_NS
                call_i32_ptr_ptr(pool.nap, room.ctypes.data, 0)
        loads_first()
        if whole[slot, MASK_AT] == n_tokens[slot]:
            whole[slot, MASK] = whole[slot, NEXT_MASK]
        else:
            whole[slot, MASK] = LATE


@njit(**INNER)
def _running(states):
    n = 0
    for s in range(states.shape[0]):
        if states[s] == RUNNING:
            n += 1
    return n
