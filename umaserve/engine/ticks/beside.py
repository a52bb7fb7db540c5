"""Steps of a tick that concern the prompts computed beside it.

There are two ways, both on a processor: between ticks, as chunks of the loop's own
(``knobs.sliced``), or on cores of their own.  Where there is no way (``knobs.can_aside``), all of
this does nothing.  The ways are values, not types: an engine may lose or gain one while it runs,
and nothing is compiled for it.
"""

from __future__ import annotations

from umaserve.engine.prefill.chunk_stack import choose_owner, next_part_ms, next_part_tokens
from umaserve.engine.prefill.orders import give_orders, grant_chunk
from umaserve.jit.compiled import INNER, njit
from umaserve.policy.base import BACK_WAIT_MS, KIND_DECODE
from umaserve.policy.cost.prediction import is_known
from umaserve.policy.processor.slices import learn_longest

UNLIKE = 2  # ticks after a change of shape: a captured graph has to be made again


@njit(nogil=True, cache=True)
def note_shape(flight, knobs, cost, memory, rows, facts, info):
    """Note whether a tick tells the cost of others.

    It does not after a change of shape on an accelerator (``flight.unlike``), where a captured
    graph has to be made again.

    What they take is the baseline of the guard, which is to be that of ticks that follow one
    another.  With passengers, or where decoders take turns, the change is part of what it costs.
    """
    shape = rows + facts.drafted
    if shape != facts.tokens:
        shape = -1  # with tokens of prompts
    alone = info.passengers == 0 and rows == memory.found[KIND_DECODE]
    steady = knobs.overlaps and alone and is_known(cost, 0, rows, 0)
    if steady and shape not in (-1, flight.last_shape):
        flight.unlike = max(flight.unlike, UNLIKE)
    flight.last_shape = shape
    facts.changed, facts.disturbed = flight.unlike, flight.unlike > 0
    flight.unlike = max(flight.unlike - 1, 0)


@njit(**INNER)
def note_next_part(knobs, orders, cost, memory, plan):
    """Tell the policy what the next part of a chunk takes that waits for the ticks."""
    if not knobs.sliced:
        return
    memory.kept.next_part_ms = next_part_ms(orders.gate)
    memory.kept.next_part_tokens = next_part_tokens(orders.gate)
    if memory.kept.next_part_tokens > 0.0:
        learn_longest(
            cost, memory.kept.next_part_tokens, orders.gate.longest / 1e6,
            0.0 < plan.info.slice_ms < memory.kept.next_part_ms,
        )  # fmt: skip


@njit(**INNER)
def order_beside(knobs, native, state, orders, plan, now):
    """Tell the worker, or the loop's own chunk, what the plan wants between the ticks."""
    if not knobs.sliced:
        return
    tell_worker(native, state, orders, plan.aside, now)
    redo = plan.info.redoes > 0
    if redo:  # what was granted before is not taken then
        orders.grant[0] = plan.info.chunk_beside
    choose_owner(
        orders.gate, orders.running[0], plan.aside[0] >= 0, plan.info.mode == 0.0, redo,
        native, orders.wake_fd,
    )  # fmt: skip
    grant_chunk(orders, native, plan.info.chunk_beside)


@njit(**INNER)
def order_thread(knobs, native, state, orders, plan, now):
    """Tell the worker whose chunks never wait for ticks, once it is certain that a tick runs."""
    if knobs.can_aside and not knobs.sliced:
        tell_worker(native, state, orders, plan.aside, now)


@njit(**INNER)
def tell_worker(native, state, orders, wanted, now):
    """Tell the prefill worker what to compute; what it shall not, is the ticks' again."""
    n, aside, lane = 0, state.aside, state.lane
    while n < aside.shape[0] and wanted[n] >= 0:
        n += 1
    changed = False
    for s in range(aside.shape[0]):
        listed = False
        for i in range(n):
            if wanted[i] == s:
                listed = True
                break
        if aside[s] == 1 and not listed:
            orders.epoch[s] += 1  # nothing more of it lands
            aside[s] = 0
            changed = True
        elif listed and aside[s] == 0:
            aside[s] = 1
            changed = True
    if not changed and n == 0:
        return
    running = orders.running[0]
    stop = n == 0
    if n and running >= 0 and wanted[0] != running:
        # a background prompt in flight gives way to an interactive one, though not for ever
        late = (now - orders.started_ns[0]) / 1e6 > BACK_WAIT_MS
        stop = lane[wanted[0]] < lane[running] and not late or aside[running] != 1
    give_orders(orders, native, wanted, n, stop)
