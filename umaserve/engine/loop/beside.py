"""What a tick has to do with the prompts that are computed beside it.

Three ways, by what was measured (`umaserve.engine.model.ways`).  Between ticks, as chunks of the
loop's own (``knobs.sliced``) or of a thread that stops when told (``knobs.paced``), or on cores of
their own.  Where there is no way (``knobs.can_aside``), all of this does nothing.  The ways are
values, not types: an engine may lose or gain one while it runs, and nothing is compiled for it.
"""

from __future__ import annotations

from umaserve.engine.native.calls import loads_first
from umaserve.engine.prefill.chunk_stack import (
    choose_owner,
    next_part_ms,
    next_part_tokens,
    run_parts,
    waits,
)
from umaserve.engine.prefill.gate import OPEN, let_through, set_gate
from umaserve.engine.prefill.orders import give_orders, grant_chunk
from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER
from umaserve.policy.accelerator.beside import may_land
from umaserve.policy.base import ALL_THE_TIME, BACK_WAIT_MS, KIND_DECODE
from umaserve.policy.cost.model import is_known
from umaserve.policy.processor.slices import learn_longest

# ticks after a landing, or a change of shape: a captured graph has to be made again
UNLIKE = 2


@njit(nogil=True, cache=True)
def note_shape(flight, knobs, cost, memory, rows, facts, info):
    """After a change of shape on an accelerator, ticks of the streams alone are unlike all others
    (``flight.unlike``).  A captured graph has to be made again.

    What they take is the baseline of the guard, which is to be that of ticks that follow one
    another.  Where decoders of the background ride with nearly all ticks, the others come after a
    change.  So it is with those who ride with all of them (``riders_ms``).  With other passengers,
    or where decoders take turns, the change is part of what it costs.
    """
    shape = rows + facts.drafted
    if shape != facts.tokens:
        shape = -1  # with tokens of prompts
    alone = info.passengers == 0 and rows == memory.found[KIND_DECODE]
    steady = info.riders_ms > 0.0 or alone and is_known(cost, 0, rows, 0)
    if knobs.paced and steady and shape not in (-1, flight.last_shape):
        flight.unlike = max(flight.unlike, UNLIKE)
    flight.last_shape = shape


@njit(**INNER)
def note_next_part(knobs, orders, cost, memory, plan):
    """Tell the policy what the next part of a chunk takes that waits for the ticks."""
    memory.kept.next_part_ms = next_part_ms(orders.gate)
    if not knobs.sliced:
        return
    memory.kept.next_part_tokens = next_part_tokens(orders.gate)
    if memory.kept.next_part_tokens > 0.0:
        learn_longest(
            cost, memory.kept.next_part_tokens, orders.gate.longest / 1e6,
            0.0 < plan.info.slice_ms < memory.kept.next_part_ms,
        )  # fmt: skip


@njit(**INNER)
def order_beside(knobs, native, lane, orders, aside, plan, now):
    """Tell the worker, or the loop's own chunk, what the plan wants beside the ticks."""
    if not knobs.can_aside or not (knobs.paced or knobs.sliced):
        return
    tell_worker(native, lane, orders, aside, plan.aside, now)
    if knobs.sliced:
        redo = plan.info.redoes > 0
        if redo:  # what was granted before is not taken then
            orders.grant[0] = plan.info.chunk_beside
        choose_owner(
            orders.gate, orders.running[0], plan.aside[0] >= 0, plan.info.mode == 0.0, redo,
            native, orders.wake_fd,
        )  # fmt: skip
    grant_chunk(orders, native, plan.info.chunk_beside, plan.info.flows > 0)
    if knobs.paced:
        always = plan.info.slice_ms >= ALL_THE_TIME
        set_gate(orders.gate, OPEN if always else 0, native, orders.wake_fd)


@njit(**INNER)
def order_thread(knobs, native, lane, orders, aside, plan, now):
    """The same to a worker whose chunks never wait for ticks, once it is certain that one runs."""
    if knobs.can_aside and not (knobs.paced or knobs.sliced):
        tell_worker(native, lane, orders, aside, plan.aside, now)


@njit(**INNER)
def go_on(knobs, orders, native, since, until):
    """Let the chunk that waits for the ticks go on until then; returns the time when it stopped."""
    if knobs.paced:
        return let_through(orders.gate, orders.turns, since, until, native, orders.wake_fd)
    return run_parts(orders.gate, native, until, orders.wake_fd)


@njit(**INNER)
def stops(knobs, orders):
    """Whether there is a chunk that stops at its parts, for which a slice is."""
    if knobs.sliced:
        return waits(orders.gate)
    computes = orders.turns[0] % 2 == 1
    loads_first()
    return computes and not orders.gate.whole


@njit(**INNER)
def note_begun(knobs, orders, flight, facts):
    """Before a tick, after `note_shape`: what is computed beside it, and whether it is unlike
    others."""
    flight.turns = orders.turns[0]
    flight.usual = flight.unlike == 0
    facts.disturbed = 1 if knobs.paced and computes(orders) else 0
    facts.through = 0
    if knobs.paced and flight.usual and flight.turns % 2 == 1 and orders.gate.whole:
        facts.through = 1 + orders.gate.size_class
    facts.changed = flight.unlike
    if flight.unlike > 0:
        flight.unlike -= 1
        facts.disturbed = 1


@njit(**INNER)
def note_disturbed(knobs, orders, cost, flight, facts, predicted_ms):
    """After a tick: whether a chunk was computed beside it, and went on all through it."""
    if knobs.paced and (orders.turns[0] != flight.turns or computes(orders)):
        facts.disturbed = 1
    if orders.turns[0] == flight.turns:
        return
    facts.through = 0
    # one that is short hardly ever lasts for a whole tick
    is_short = cost.flow[orders.gate.size_class].ms < 2.0 * predicted_ms
    if knobs.paced and flight.usual and orders.gate.whole and is_short:
        facts.through = 1 + orders.gate.size_class


@njit(**INNER)
def can_land(knobs, orders, state, plan, now):
    """Whether a piece of a prompt waits that may be copied by now."""
    if not knobs.paced or orders.pending[0] < 0:
        return False
    # somebody interactive is next, and what lies in front of theirs has to go
    if plan.aside[0] >= 0 and state.lane[plan.aside[0]] == 0:
        return True
    return may_land(state, orders.pending[0], (now - orders.pending_ns[0]) / 1e6)


@njit(**INNER)
def computes(orders):
    """Whether a chunk of a prompt is being computed in the second context, and does not wait."""
    gate = orders.gate
    return orders.turns[0] % 2 == 1 and (gate.until != 0 or gate.parked == 0)


@njit(**INNER)
def tell_worker(native, lane, orders, aside, wanted, now):
    """Tell the prefill worker what to compute; what it shall not, is the ticks' again."""
    n = 0
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
