"""Background decoders that ride with streams on an accelerator: who, when, and what it is worth."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.planned_beside import Planned, cost_of, fresh, knobs_of, streaming
from tests.support.policy_states import NOW, put
from tests.support.simulated import MACHINES, Beside
from tools.sim_machine import Machine
from umaserve.policy.accelerator.riders import AGAIN, IN_DEBT, START_CREDIT, TURN_NS
from umaserve.policy.base import (
    ALL_FEATURES,
    FLAG_SPENT,
    FLOW,
)
from umaserve.policy.cost.model import CHUNK_SIZES

pytestmark = pytest.mark.slow

LATER = 20_000  # a tick long after those that are remembered
DECODERS_TURN = NOW - NOW % (2 * TURN_NS)
PROMPTS_TURN = DECODERS_TURN + TURN_NS


def planned(
    *, credit=START_CREDIT, decoders=2, prompt=False, cap=1.5, row=0.1, riding=0, changed=0,
    paid=LATER, features=ALL_FEATURES, now=NOW, ago_ms=0.0,
    burst=False,
):  # fmt: skip
    """One stream; each decoder makes its ticks longer by ``row`` of them."""
    cost = cost_of(parts=[0.01] * 10)
    for n in range(1, 9):
        cost.mean[0, n, 0], cost.count[0, n, 0] = 1.0 + row * (n - 1), 32.0
        cost.kv[0, n, 0] = cost.spread[0, n, 0] = 0.0
    cost.slope[2] = 0.0
    cost.parts[:] = 1000.0
    state, memory = streaming([(credit, 0.0)], ago_ms), fresh()
    memory.since_ns[:] = now
    kept = memory.kept
    kept.riders, kept.riders_changed, kept.riders_paid = riding, changed, paid
    for s in range(decoders):
        put(state, 1 + s, 1, 100, 99)
    if prompt:
        put(state, 8, 1, 3000, 0)
    for s in (6, 7) if burst else ():
        put(state, s, 0, 20, 0)
        state.t_first_ns[0] = state.t_submit_ns[s] = now - 1_000_000
    knobs = knobs_of(features=features, latency_cap=cap)
    return Planned(state, knobs, cost, number=LATER, memory=memory, now=now)


def test_as_many_ride_as_fit_into_the_cap():
    assert planned(decoders=2).slots == [0, 1, 2]
    assert planned(decoders=8).slots == [0, 1, 2, 3, 4]  # 1.4 times; at most 1.45
    assert planned(decoders=8, cap=1.2).slots == [0, 1]
    assert planned(decoders=8, cap=1.1).info.riders_ms < 0.0
    got = planned(decoders=8)
    assert got.memory.kept.riders == 4
    assert got.info.riders_ms == pytest.approx(0.4, abs=1e-3)


def test_to_begin_takes_credit_and_to_go_on_does_not():
    got = planned(credit=START_CREDIT - 0.1)
    assert got.slots == [0] and got.info.riders_ms < 0.0
    for credit in (START_CREDIT - 0.1, -1.0):
        assert planned(credit=credit, riding=2).slots == [0, 1, 2]
    assert planned(credit=1.0, riding=1).slots == [0, 1]
    assert planned(riding=1).slots == [0, 1, 2]


def test_more_do_not_get_on_soon_after_others():
    for since, rode in ((AGAIN, 1), (AGAIN + 1, 2)):
        got = planned(riding=1, changed=LATER - since)
        assert got.memory.kept.riders == rode
        got = planned(riding=0, changed=LATER - since)
        assert got.memory.kept.riders == (0 if rode == 1 else 2)


def test_they_are_put_off_where_a_stream_stays_in_debt():
    assert planned(credit=-0.1, riding=2, paid=LATER - IN_DEBT).slots == [0, 1, 2]
    got = planned(credit=-0.1, riding=2, paid=LATER - IN_DEBT - 1)
    assert got.slots == [0]
    assert (got.memory.kept.riders, got.memory.kept.riders_changed) == (0, LATER)


def test_beside_prompts_half_of_what_the_cap_leaves_is_theirs():
    got = planned(decoders=8, prompt=True)
    assert got.slots == [0, 1, 2] and got.listed == [8]
    # a slice has the rest
    without = planned(decoders=8, prompt=True, features=ALL_FEATURES - FLOW)
    assert not without.info.riders_ms and not without.info.flows


@pytest.mark.parametrize("now", [DECODERS_TURN, PROMPTS_TURN])
def test_those_that_fit_but_not_beside_prompts_take_turns_with_them(now):
    got = planned(decoders=1, row=0.3, prompt=True, now=now)
    assert got.listed == [8]
    if now == DECODERS_TURN:
        assert got.slots == [0, 1]
        assert not got.info.chunk_beside and not got.info.slice_ms and not got.info.flows
    else:
        assert got.slots == [0]
        assert got.info.chunk_beside and got.info.slice_ms > 0.0
    # who does not fit at all has no turns
    assert planned(decoders=1, row=0.5, prompt=True, now=now).info.chunk_beside


def test_those_who_fit_nowhere_have_ticks_of_their_own_on_credit():
    """Of the streams' shape, so that no graph is made anew."""
    got = planned(decoders=3, row=0.6)
    assert got.slots == [1] and got.flags & FLAG_SPENT
    assert planned(decoders=3, row=0.6, credit=START_CREDIT - 0.1).slots == [0]
    # not one after the other: the stream is late by then
    assert planned(decoders=3, row=0.6, ago_ms=1.0).slots == [0]


def test_nobody_rides_while_interactive_prompts_that_came_together_are_in_the_ticks():
    for credit in (0.0, START_CREDIT):
        got = planned(burst=True, credit=credit, row=0.6)
        assert not got.info.riders_ms and {6, 7} & set(got.slots)


# --- simulated: what the times of an H200 make of it -----------------------------------------


NAMES = ("h200-dense", "h200-moe")


def alone_of(machine: Machine, streams: int = 1) -> float:
    quiet = Beside.of(machine, 1.2, streams=streams, ticks=1500, warm=200)
    return max(quiet.p95(s) for s in range(streams))


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, int], float]:
    return {(name, n): alone_of(MACHINES[name], n) for name in NAMES for n in (1, 3)}


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("cap", [1.1, 1.2, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("name", NAMES)
def test_the_cap_is_held_and_nobody_starves(name, cap, streams, alone):
    for decoders, prompts in ((0, 2), (2, 0), (2, 2), (8, 2)):
        got = Beside.of(
            MACHINES[name], cap, streams=streams, decoders=decoders, prompts=prompts
        )  # fmt: skip
        late = max(got.p95(s) for s in range(streams)) / alone[name, streams]
        assert late <= cap, (decoders, prompts)
        if decoders:
            # one has a token every second at the least, whoever it is
            assert got.rate(*range(streams, streams + decoders)) > 0.6, (decoders, prompts)
        if prompts:
            assert got.prompt_rate > 20.0, (decoders, prompts)


def test_shapes_do_not_change_from_tick_to_tick():
    """On an H200 a stream had a 95th percentile of 6.2 times that alone at a cap of 3: two decoders
    rode with every other tick, and each change took 5.6 ms."""
    got = Beside.of(MACHINES["h200-moe"], 3.0, decoders=2, prompts=2)
    assert got.changes < 0.01 * 4000


@pytest.mark.parametrize("name", NAMES)
def test_a_wide_cap_costs_no_throughput(name, alone):
    """The larger the cap, the more is done; as ticks that it takes for one thing at a time."""
    machine, work = MACHINES[name], []
    for cap in (1.2, 1.5, 2.0, 3.0, 100.0):
        got = Beside.of(machine, cap, decoders=2, prompts=2)
        tokens = got.rate(0, 1, 2) * machine.alone[1]
        work.append(tokens + got.prompt_rate * machine.chunk_ms[-1] / CHUNK_SIZES[-1])
    assert (np.diff(work) > -0.05 * np.array(work[:-1])).all(), work


def test_a_part_that_is_as_long_as_a_slice_holds_nothing_up():
    """On an H200 prompts stood still at caps of 1.1 and 1.2: one part never found the time."""
    dense = MACHINES["h200-dense"]
    for longer in (1.0, 1.5, 2.0, 3.0, 4.0):
        machine = dense._replace(
            n_parts=int(dense.n_parts / longer), part_ms=longer * dense.part_ms
        )  # fmt: skip
        for decoders in (0, 2):
            got = Beside.of(machine, 1.2, decoders=decoders, prompts=2)
            assert got.prompt_rate > 300.0, (longer, decoders)
