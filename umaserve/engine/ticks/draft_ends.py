"""Phases of a tick behind its sampling that drafts need."""

from __future__ import annotations

from umaserve.engine.drafting.heads import take_states
from umaserve.engine.drafting.phases import settle_drafts
from umaserve.engine.drafting.records import NEVER
from umaserve.engine.drafting.speaker import KEPT
from umaserve.engine.native.calls import now_ns, wake
from umaserve.jit.compiled import PHASE, njit
from umaserve.wire import table as t

BUSY_DECODE, BUSY_IDLE = t.BUSY_DECODE, t.BUSY_IDLE


@njit(**PHASE)
def hear(loop):
    """Take the hidden states of the tick, where the model's own heads draft."""
    speaker, flight = loop.speaker, loop.work.flight
    facts = loop.work.facts[flight.parity]
    facts.heard_ns = 0
    if speaker.states_of == 0 or loop.drafts.marks.way == NEVER:
        return
    if flight.context != loop.native.context:
        return  # which keeps none
    if flight.outputs_sent and facts.tokens > KEPT:
        wake(loop.native)  # nobody's token waits until a prompt is read
    header = loop.columns.header
    # it can hang as a tick can
    header.tick_start_ns = header.heartbeat_ns = facts.sampled_ns
    header.busy = BUSY_DECODE
    take_states(
        speaker, loop.columns, loop.state, loop.drafts, loop.plan, flight.entries, loop.batch,
        loop.native,
    )  # fmt: skip
    header.busy = BUSY_IDLE
    header.tick_start_ns = 0
    facts.heard_ns = now_ns(loop.native) - facts.sampled_ns


@njit(**PHASE)
def end_drafts(loop):
    """Free what drafted tokens have of the cells, but for those that rows got."""
    flight, drafts = loop.work.flight, loop.drafts
    if drafts.marks.way == NEVER:
        return
    facts = loop.work.facts[flight.parity]
    facts.outputs, facts.taken = flight.outputs_sent, drafts.marks.taken
    prompt = facts.tokens - drafts.marks.rows - facts.drafted
    wall_ms = (facts.sampled_ns - facts.began_ns) / 1e6
    settle_drafts(
        loop.columns, drafts, loop.native, prompt, wall_ms, facts.rounds_ns / 1e6,
        facts.speech_ns / 1e6,
    )  # fmt: skip
