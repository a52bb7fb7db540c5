"""The policy in use: interactive streams keep their pace, everything else fills what is free.

`plan_tick` composes the parts of this package; each can be switched off by ``Knobs.features``.
There are three kinds of tick.  Somebody interactive decodes: the latency guard bounds it.  Nobody
does, but an interactive prompt waits: it goes first.  Neither: throughput under the tick budget.
"""

from __future__ import annotations

from umaserve.jit.compiled import INNER, njit

from .base import (
    FLAG_ASIDE,
    KIND_BACK_DECODE,
    KIND_DECODE,
    KIND_ISOLATED,
    KIND_PROMPT,
    SINCE_ANYBODY,
    SWEET_SPOT,
    forget,
)
from .bytes.trim import background_tokens, hold_back
from .cost.model import FADED
from .cost.prediction import predict
from .cost.sweet_spot import HARDLY_KNOWN, WELL_KNOWN, find_rounds, go_on_looking, look_again
from .isolation import isolate, run_isolated
from .processor.offload import offload
from .processor.slices import slices
from .prompts import rank_prompts
from .streams.slack import Bounds
from .streams.tick import plan_streams
from .survey import survey
from .urgency import judge
from .without_streams import can_be_given_up, plan_background, plan_prompts

GIVEN_UP = 0.8  # of the predicted time, or all but one tick budget: after that it is nearly done
TWICE = 2  # chunks on end that interactive prompts lose at most: the next one is computed
LOOK_SOON, LOOK_AGAIN = 4, 64  # ticks after which a split that rests on little is checked


@njit(nogil=True, cache=True)
def plan_tick(state, tick, knobs, cost, memory, traffic, plan):
    """Fill ``plan`` for one tick; returns the number of entries (0 = nothing to do).

    Sessions that nobody has labelled get a lane.  Sessions are sorted by lane, and by whether they
    decode.  A request that may have killed an engine has the tick alone.  Background pauses while
    the budget of bytes is used up.  Decoders are merged or take turns, and prompts are computed in
    the tick or beside it, whichever takes less time.  Then the tick is filled: streams that keep
    their pace, and what rides with them; else an interactive prompt; else background.
    """
    forget(plan.info)
    plan.aside[0] = -1
    judge(state, tick, knobs, memory)
    survey(state, tick, knobs, memory)
    entries = isolate(state, tick, knobs, memory, plan)
    if entries:
        return entries
    hold_back(tick, knobs, memory, plan)
    rank_prompts(state, tick, cost, memory)
    if memory.found[KIND_DECODE] + memory.found[KIND_PROMPT] > 0:
        memory.since_ns[SINCE_ANYBODY] = tick.now_ns
    _choose_groups(tick, knobs, cost, memory)
    bounds = _choose_prompts_beside(state, tick, knobs, cost, memory, traffic, plan)
    if memory.found[KIND_DECODE] > 0:
        entries = plan_streams(state, tick, knobs, cost, memory, plan, bounds)
    elif memory.found[KIND_PROMPT] > 0:
        entries = plan_prompts(state, tick, knobs, cost, memory, plan, bounds)
    else:
        entries = plan_background(state, tick, knobs, cost, memory, plan, bounds)
    if entries == 0 and memory.found[KIND_ISOLATED] > 0:
        # it was the others' tick, and they are computed beside the ticks from now on
        entries = run_isolated(state, tick, knobs, memory, plan)
    _foresee(state, knobs, cost, memory, plan, bounds.mode, entries)
    return entries


@njit(**INNER)
def _most_rows(knobs):
    """Decoding rows that one tick may have."""
    return min(knobs.n_batch, knobs.max_merge) if knobs.max_merge > 0 else knobs.n_batch


@njit(**INNER)
def _choose_groups(tick, knobs, cost, memory):
    """Say for every number of decoders how many of them to merge in a tick."""
    streams, back = memory.found[KIND_DECODE], memory.found[KIND_BACK_DECODE]
    n, most = max(streams, back), _most_rows(knobs)
    past = memory.past[KIND_DECODE if streams else KIND_BACK_DECODE]
    for mode in range(2 if knobs.can_aside else 1):
        find_rounds(memory, cost, mode, n, most, past, knobs.features & SWEET_SPOT != 0)
    if not go_on_looking(memory, n, most) and tick.number % LOOK_SOON == 0:
        doubt = WELL_KNOWN if tick.number % LOOK_AGAIN == 0 else HARDLY_KNOWN
        if streams > 0 or knobs.overlaps:
            # streams pause for it, or it takes several ticks: once after the counts have faded
            doubt = FADED + 1.0
        look_again(memory, cost, n, most, doubt, knobs.overlaps)


@njit(**INNER)
def _choose_prompts_beside(state, tick, knobs, cost, memory, traffic, plan):
    """List the prompts to compute beside the tick in ``plan.aside``; returns the tick's bounds."""
    mode = offload(state, knobs, cost, memory, plan)
    if mode == 0 and knobs.sliced:
        slices(state, tick, knobs, cost, memory, plan)
    memory.kept.last_mode = mode
    plan.info.mode = mode
    if mode:
        plan.info.marks |= FLAG_ASIDE
    # the cells that are left bound what can be fed at all
    room = max(min(knobs.n_batch, tick.free_cells), 1)
    background_room = background_tokens(tick, knobs, memory, traffic, room)
    graph = min(room, int(traffic.n_ubatch))
    return Bounds(mode, min(_most_rows(knobs), room), room, background_room, graph)


@njit(**INNER)
def _foresee(state, knobs, cost, memory, plan, mode, entries):
    """Say in the plan how long the tick should take, and from when on it is not given up."""
    rows, prompt = _shape(state, plan, entries)
    if memory.found[KIND_DECODE]:
        plan.info.passengers = rows + prompt - plan.info.interactive_rows
    past = 0.0
    for e in range(entries):
        past += plan.counts[e] * memory.past[memory.kind[plan.slots[e]]]
    predicted = predict(cost, mode, rows, prompt, past / max(rows + prompt, 1))
    plan.info.predicted_ms = predicted
    if rows == 0 and can_be_given_up(knobs):
        least = 0.5 * knobs.tick_budget_ms
        if memory.found[KIND_PROMPT]:
            least = 2.0 * knobs.tick_budget_ms  # of interactive prompts only a long one gives way
        if predicted > least and memory.found[KIND_PROMPT] and memory.kept.given_up >= TWICE:
            memory.kept.given_up = 0
        elif predicted > least:
            until = max(GIVEN_UP * predicted, predicted - knobs.tick_budget_ms)
            plan.info.abort_ms = until


@njit(**INNER)
def _shape(state, plan, entries):
    """Decoding rows and prompt tokens of the tick."""
    rows = prompt = 0
    for e in range(entries):
        s = plan.slots[e]
        if state.n_tokens[s] - state.n_past[s] == 1:
            rows += 1
        else:
            prompt += plan.counts[e]
    return rows, prompt
