"""The scheduler in a real engine: who gives way to whom, and that nothing is lost by it."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.oracle import Oracle
from tests.support.waiting import until
from umaserve.config.kinds import POLICY_PARTS
from umaserve.engine.model.loaded import usable_cores
from umaserve.policy.base import FEATURES
from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.states import AGED_NS

BACK, FRONT = m.LANE_BACKGROUND, m.LANE_INTERACTIVE
GREEDY = m.Sampling(temperature=0.0, ignore_eos=True)
PROMPTS = [
    "class Stack:\n    def __init__(self):\n",
    "import os\n\n\ndef walk(top):\n    ",
    "def fibonacci(n):",
]
_STEP = "def step_{0}(value):\n    if value > {0}:\n        return value * {0}\n"
LONG = "".join(_STEP.format(i) for i in range(1, 61))
N_CTX = 4096


@pytest.fixture
def start():
    """Starts engines with one thread for ticks and one for prompts aside; ends them."""
    running: list[DrivenEngine] = []

    def make(**options) -> DrivenEngine:
        options = {"n_ctx": N_CTX, "n_threads": 1, "prefill_threads": 1, **options}
        running.append(DrivenEngine(**options))
        return running[-1]

    yield make
    for engine in running:
        engine.close()


def interactive(engine: DrivenEngine, prompt: str, **fields) -> int:
    """Submit as the front does, which says first that somebody interactive is coming."""
    engine.table.abort.urgent += 1
    return engine.submit(prompt, lane=FRONT, sampling=GREEDY, **fields)


def background(engine: DrivenEngine, prompt: str, **fields) -> int:
    return engine.submit(prompt, lane=BACK, sampling=GREEDY, **fields)


def assert_right(engine: DrivenEngine, oracle: Oracle, serial: int, prompt: str) -> None:
    """The answer leaves llama.cpp's own path at near-ties at most (as in test_engine)."""
    tokens = engine.generated(serial)
    assert tokens
    oracle.assert_followed(prompt, tokens)


def ticks(engine: DrivenEngine) -> np.ndarray:
    """The tick ring, oldest first."""
    at = engine.table.header.tick_ring_at
    if at <= t.TICK_RING:
        return engine.table.ticks[:at].copy()
    return np.roll(engine.table.ticks, -at, axis=0)


def test_the_parts_in_the_configuration_are_the_policys():
    assert tuple(FEATURES) == POLICY_PARTS


def test_somebody_interactive_takes_the_place_of_somebody_in_the_background(start, oracle):
    engine = start(n_seq=2)
    header = engine.table.header
    hogs = [background(engine, prompt, max_tokens=700) for prompt in PROMPTS[:2]]
    for serial in hogs:
        engine.wait(serial, n_tokens=3)
    quick = interactive(engine, PROMPTS[2], max_tokens=12)
    engine.wait(quick)
    assert len(engine.generated(quick)) == 12
    # one of the two had to go for it, and neither was finished
    assert header.preemptions == header.kv_evictions == 1
    assert all(len(engine.generated(serial)) < 700 for serial in hogs)
    for serial in hogs:
        engine.wait(serial)
        assert engine.reason(serial) == t.REASON_LENGTH
        assert len(engine.generated(serial)) == 700
    assert engine.table.parked() == []
    for serial, prompt in zip([*hogs, quick], PROMPTS, strict=True):
        assert_right(engine, oracle, serial, prompt)


def test_a_program_with_more_than_its_share_gives_a_place_to_another(start, oracle):
    engine = start(n_seq=2)
    hogs = [interactive(engine, prompt, max_tokens=500, program=1) for prompt in PROMPTS[:2]]
    for serial in hogs:
        engine.wait(serial, n_tokens=3)
    quick = interactive(engine, PROMPTS[2], max_tokens=12, program=2)
    engine.wait(quick)
    assert engine.table.header.preemptions == 1
    ended = {s: engine.slots[s] for s in (quick, *hogs)}
    for serial in hogs:
        engine.wait(serial)
        assert len(engine.generated(serial)) == 500
    waited, came = engine.table.t_wait_ns, engine.table.t_submit_ns
    parked = [serial for serial, slot in ended.items() if waited[slot] > came[slot]]
    assert parked == hogs[1:], "its newest gives way"
    assert engine.table.header.preemptions == 1, "and took nothing back"
    for serial, prompt in zip([*hogs, quick], PROMPTS, strict=True):
        assert_right(engine, oracle, serial, prompt)


def test_streams_of_programs_get_equal_shares_of_the_ticks(start):
    """Where rows are merged by twos at most, one stream is in every tick beside three."""
    engine = start(n_seq=4, max_merge=2)
    many = [interactive(engine, PROMPTS[0], max_tokens=300, program=1) for _ in range(3)]
    one = interactive(engine, PROMPTS[1], max_tokens=300, program=2)
    engine.wait(one)
    made = [len(engine.generated(serial)) for serial in many]
    assert sum(made) < 2 * 300, "each had as much as the other program at most, and some before"
    assert min(made) > 0
    assert engine.table.rounds[engine.slots[one]] == 1.0
    for serial in many:
        engine.wait(serial)
        assert len(engine.generated(serial)) == 300


def test_a_request_that_is_promoted_while_it_runs_is_interactive_from_then_on(start, oracle):
    engine = start()
    serial = background(engine, PROMPTS[0], max_tokens=600)
    engine.wait(serial, n_tokens=10)
    engine.table.abort.urgent += 1
    engine.send(m.SetLane(serial, FRONT))
    until(lambda: engine.table.abort.urgent_seen == engine.table.abort.urgent)
    until(lambda: engine.table.lane[engine.slots[serial]] == FRONT)
    engine.wait(serial)
    assert len(engine.generated(serial)) == 600
    rows = ticks(engine)["interactive_rows"]
    changes = np.flatnonzero(np.diff(rows))
    assert changes.size == 1
    assert rows[0] == 0 and rows[-1] == 1
    assert_right(engine, oracle, serial, PROMPTS[0])


def test_a_waiting_request_that_is_promoted_takes_a_place(start):
    engine = start(n_seq=1)
    first = background(engine, PROMPTS[0], max_tokens=1200)
    engine.wait(first, n_tokens=3)
    second = background(engine, PROMPTS[1], max_tokens=20)
    until(lambda: engine.table.serial[engine.slots[second]] == second)
    until(lambda: engine.table.state[engine.slots[second]] == t.WAITING)
    engine.send(m.SetLane(second, FRONT))
    engine.wait(second)
    assert len(engine.generated(first)) < 1200
    engine.wait(first)
    assert len(engine.generated(first)) == 1200
    assert (
        engine.table.t_last_ns[engine.slots[second]] < engine.table.t_last_ns[engine.slots[first]]
    )


def test_sequences_are_given_by_turn_and_then_by_arrival(start):
    engine = start(n_seq=1)
    running = interactive(engine, PROMPTS[0], max_tokens=200, turn=1)
    engine.wait(running, n_tokens=3)
    flood = [interactive(engine, PROMPTS[1], max_tokens=4, turn=2 + i) for i in range(3)]
    late = interactive(engine, PROMPTS[2], max_tokens=4, turn=2)
    for serial in (*flood, late):
        engine.wait(serial)
    began = {s: int(engine.table.t_admit_ns[engine.slots[s]]) for s in (*flood, late)}
    assert sorted(began, key=began.__getitem__) == [flood[0], late, flood[1], flood[2]]


def test_a_request_has_come_when_it_reached_the_front(start):
    """Engines read between two ticks only, and who came together must count as together."""
    engine = start()
    came_ns, sent_ns = 123_456_789, time.monotonic_ns()
    told = interactive(engine, PROMPTS[0], max_tokens=2, came_ns=came_ns)
    untold = interactive(engine, PROMPTS[1], max_tokens=2)
    for serial in (told, untold):
        engine.wait(serial)
    assert engine.table.t_submit_ns[engine.slots[told]] == came_ns
    assert sent_ns < engine.table.t_submit_ns[engine.slots[untold]] < time.monotonic_ns()


def test_background_gets_a_place_although_interactive_requests_always_wait(start, oracle):
    engine = start(n_seq=1)
    front = [interactive(engine, PROMPTS[0], max_tokens=150) for _ in range(2)]
    engine.wait(front[0], n_tokens=3)
    old = background(engine, PROMPTS[1], max_tokens=30)
    until(lambda: engine.table.state[engine.slots[old]] == t.WAITING)
    engine.table.t_wait_ns[engine.slots[old]] -= AGED_NS
    front += [interactive(engine, PROMPTS[0], max_tokens=150) for _ in range(4)]
    for serial in [old, *front]:
        engine.wait(serial)
    began = [int(engine.table.t_admit_ns[engine.slots[serial]]) for serial in [old, *front]]
    assert began[0] < sorted(began[1:])[2]  # after the one that ran and at most one more
    assert_right(engine, oracle, old, PROMPTS[1])


def test_a_background_chunk_is_given_up_for_somebody_interactive(start, oracle):
    # a small tick budget makes every chunk of some milliseconds one that may be given up
    engine = start(tick_budget_ms=4.0, prefill_threads=0)
    header = engine.table.header
    aborted = 0
    for _ in range(20):
        slow = background(engine, LONG, max_tokens=8)
        until(lambda at=slow: engine.table.abort.armed or engine.generated(at))
        quick = interactive(engine, PROMPTS[2], max_tokens=8)
        for serial, prompt in ((quick, PROMPTS[2]), (slow, LONG)):
            engine.wait(serial)
            assert engine.reason(serial) == t.REASON_LENGTH
            assert len(engine.generated(serial)) == 8
            assert_right(engine, oracle, serial, prompt)
            engine.release(serial)
        aborted = header.aborted_chunks
        if aborted:
            break
    assert aborted > 0
    assert engine.table.abort.urgent_seen == engine.table.abort.urgent


def test_a_lone_prompt_is_one_chunk_that_is_given_up_when_nobody_waits_for_it(start):
    engine = start(tick_budget_ms=4.0, prefill_threads=0)
    header, left = engine.table.header, interactive(engine, LONG, max_tokens=2)
    engine.wait(left)  # what it costs is known from now on
    assert engine.table.n_prompt[engine.slots[left]] > 512
    engine.release(left)
    for _ in range(20):
        given_up, ticks = header.aborted_chunks, header.ticks
        gone = interactive(engine, LONG, max_tokens=8)
        slot = engine.slots[gone]
        until(lambda at=slot: engine.table.abort.armed or engine.table.state[at] == t.DONE)
        engine.table.abort.urgent += 1  # as the front, where the prompt is in a tick
        engine.send(m.Cancel(gone, is_urgent=True))
        engine.wait(gone)
        engine.release(gone)
        if header.aborted_chunks > given_up:
            break
    assert engine.table.header.aborted_chunks > given_up
    assert header.ticks - ticks <= 2  # what came before was no small piece
    assert engine.table.abort.urgent_seen == engine.table.abort.urgent


@pytest.mark.skipif(usable_cores() < 2, reason="prompts beside the ticks need a second core")
def test_prompts_land_from_beside_the_ticks_while_somebody_decodes(start, oracle):
    # a generous cap: whether the machine keeps a tight one beside a prompt is not the question
    engine = start(latency_cap=6.0)
    header, long = engine.table.header, PROMPTS[1] * 12  # computed before the stream ends
    stream = interactive(engine, PROMPTS[0], max_tokens=2000)
    engine.wait(stream, n_tokens=20)
    assert header.aside_tokens == 0
    slow = background(engine, long, max_tokens=4)
    engine.wait(slow)
    assert engine.table.state[engine.slots[stream]] == t.RUNNING
    n_prompt = len(engine.prompt_tokens(slow))
    # on a busy machine the rest is computed in the ticks
    assert n_prompt // 2 < header.aside_tokens <= n_prompt
    assert header.prefill_tokens >= n_prompt
    assert_right(engine, oracle, slow, long)
    engine.send(m.Cancel(stream))
    engine.wait(stream)
    assert_right(engine, oracle, stream, PROMPTS[0])
    assert (ticks(engine)["flags"].astype(int) & 4).any()


def test_prompts_stay_in_the_ticks_where_no_core_is_for_them(start, oracle):
    engine = start(prefill_threads=0, latency_cap=6.0)
    stream = interactive(engine, PROMPTS[0], max_tokens=2000)
    engine.wait(stream, n_tokens=5)
    slow = background(engine, PROMPTS[1] * 20, max_tokens=4)
    engine.wait(slow)
    assert engine.table.header.aside_tokens == 0
    assert_right(engine, oracle, slow, PROMPTS[1] * 20)


def test_the_greedy_policy_answers_right(start, oracle):
    engine = start(policy="greedy")
    stream = interactive(engine, PROMPTS[0], max_tokens=400)
    engine.wait(stream, n_tokens=5)
    others = [
        background(engine, LONG, max_tokens=20),
        background(engine, PROMPTS[1], max_tokens=50),
    ]
    for serial, prompt in zip([stream, *others], [PROMPTS[0], LONG, PROMPTS[1]], strict=True):
        engine.wait(serial)
        assert_right(engine, oracle, serial, prompt)
    # a decoder and as much of a prompt as fits, in one tick
    seen = ticks(engine)
    merged = seen[(seen["decode_rows"] > 0) & (seen["prefill_tokens"] > 0)]
    assert merged["prefill_tokens"].max() > 500


_ONE_BY_ONE = """
from umaserve.policy.base import RUNNING


def plan(state, tick, knobs, cost, memory, traffic, plan):
    running = [s for s, what in enumerate(state.state.tolist()) if what == RUNNING]
    if not running:
        return 0
    first = min(running, key=lambda s: state.arrival[s])
    left = int(state.n_tokens[first] - state.n_past[first])
    plan.slots[0], plan.counts[0] = first, min(left, knobs.n_batch, max(tick.free_cells, 1), 50)
    return 1


answer = 42
"""


def test_a_policy_of_ones_own_plans_the_ticks(start, oracle, tmp_path, monkeypatch):
    (tmp_path / "one_by_one.py").write_text(_ONE_BY_ONE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    engine = start(policy="one_by_one:plan")
    serials = [engine.submit(p, sampling=GREEDY, max_tokens=60) for p in PROMPTS]
    for serial, prompt in zip(serials, PROMPTS, strict=True):
        engine.wait(serial)
        assert_right(engine, oracle, serial, prompt)
    # one after the other, in the order in which they came
    slots = [engine.slots[serial] for serial in serials]
    first, last = engine.table.t_first_ns[slots], engine.table.t_last_ns[slots]
    assert (last[:-1] < first[1:]).all()
    seen = ticks(engine)
    assert seen["decode_rows"].max() == 1
    assert seen["prefill_tokens"].max() <= 50


_CARELESS = """
from umaserve.policy.guarded import plan_tick
N = 0
def plan(state, tick, knobs, cost, memory, traffic, plan):
    global N
    N += 1
    if N % 2:
        return plan_tick(state, tick, knobs, cost, memory, traffic, plan)
    {fault}
"""


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("plan.aside[:] = 3; return 0", "made a plan that cannot be computed"),  # no end mark
        ("plan.aside[:2] = 1 << 20, -1; return 0", "made a plan that cannot be computed"),
        ("plan.info.predicted_ms = float('nan'); return 0", "made a plan that cannot be computed"),
        ("return None", "made a plan that cannot be computed"),
        ("return 1 << 40", "made a plan that cannot be computed"),
        ("plan.counts[0] = 1 << 30; return 1", "made a plan that cannot be computed"),
        ("raise KeyError('mine')", "raised KeyError('mine')"),
    ],
)
def test_a_policy_of_ones_own_that_is_careless_costs_nobody_an_answer(
    start, oracle, tmp_path, monkeypatch, fault, words
):
    (tmp_path / "careless.py").write_text(_CARELESS.format(fault=fault))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    engine = start(policy="careless:plan")
    serials = [engine.submit(p, sampling=GREEDY, max_tokens=20) for p in PROMPTS]
    for serial, prompt in zip(serials, PROMPTS, strict=True):
        engine.wait(serial)
        assert_right(engine, oracle, serial, prompt)
    assert words in engine.expect(m.Log).text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent_policy_module:plan", "absent_policy_module"),
        ("one_by_one:absent", "absent"),
        ("one_by_one:answer", "no function"),
        ("broken:plan", "broken:plan"),
    ],
)
def test_a_policy_that_cannot_be_had_is_said_so(tmp_path, monkeypatch, name, words):
    (tmp_path / "one_by_one.py").write_text(_ONE_BY_ONE)
    (tmp_path / "broken.py").write_text("def plan(:\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    engine = DrivenEngine(policy=name, expect_failure=True)
    assert words in engine.failure
    assert engine.close() == 3


def test_a_small_bandwidth_budget_slows_the_background_and_nobody_else(start):
    # a token of the bundled model moves 15 MB: at this budget the background gets one in a second
    engine = start(bmt_budget="0.015GBps", prefill_threads=0)
    header = engine.table.header
    slow = background(engine, PROMPTS[0], max_tokens=400)
    until(lambda: engine.table.n_past[engine.slots[slow]] > 0)
    stream = interactive(engine, PROMPTS[1], max_tokens=300)
    engine.wait(stream)
    assert header.bmt_trimmed >= 200
    assert len(engine.generated(slow)) < 60
    seen = ticks(engine)
    alone = (seen["decode_rows"] == 1) & (seen["interactive_rows"] == 1)
    assert alone.sum() >= 200
    # whoever waits for bytes can be cancelled, and let go
    assert engine.table.state[engine.slots[slow]] == t.RUNNING
    engine.send(m.Cancel(slow))
    engine.wait(slow)
    assert engine.reason(slow) == t.REASON_CANCEL


def test_without_the_part_a_bandwidth_budget_trims_nothing(start):
    engine = start(bmt_budget="0.002GBps", without=("bandwidth",), prefill_threads=0)
    slow = background(engine, PROMPTS[0], max_tokens=100)
    stream = interactive(engine, PROMPTS[1], max_tokens=100)
    for serial in (slow, stream):
        engine.wait(serial)
        assert len(engine.generated(serial)) == 100
    assert engine.table.header.bmt_trimmed == 0
