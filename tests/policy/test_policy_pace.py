"""The pace of readers: what prompts that somebody waits for may take of streams."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest

from tests.support.policy_states import MACHINES, NOW, N, empty, known, plan_of, put, told
from tests.support.simulated import play, quiet
from tools.sim_loads import BACKGROUND, INTERACTIVE, Load
from tools.sim_run import NS
from umaserve.policy.base import Memory
from umaserve.policy.cost.prediction import predict
from umaserve.policy.pace import worthwhile_chunk
from umaserve.wire.states import AUTO

FAST = ["h200-dense", "h200-moe", "gpu-dense", "gpu-moe"]
GRAPH = 480  # tokens that libllama computes at once, but for those of streams
SLOW = ["cpu-2core-0.5b", "cpu-2core-amx-0.5b"]


def beside_one(
    name: str, *, streams: int = 1, late_ms: float = 0.0, waited_ms: float = 0.0,
    prompt: int = 4000, cost=None, **changes
):  # fmt: skip
    """A plan beside streams of program 1, and a long prompt of program 2."""
    cost = known(name) if cost is None else cost
    state, memory = empty(), Memory.fresh(N)
    for s in range(streams):
        put(state, s, 0, 100, 99)
        state.program[s] = 1
        state.t_last_ns[s] = NOW - int(1e6 * waited_ms)
        memory.late_ms[s], memory.told_ns[s] = late_ms, state.t_last_ns[s]
    put(state, 5, 0, prompt, 0)
    state.program[5] = 2
    knobs = told(name, can_aside=False, **changes)
    plan, entries = plan_of(state, knobs, cost, memory=memory)
    fed = dict(zip(plan.slots[:entries].tolist(), plan.counts[:entries].tolist(), strict=True))
    delay = plan.info.predicted_ms
    if 0 not in fed:
        delay += predict(cost, 0, streams, 0, 500)
    return fed.get(5, 0), delay


def worthwhile(name: str) -> tuple[int, float]:
    """Tokens of the chunk that a prompt should have, and its ms."""
    cost = known(name)
    chunk = worthwhile_chunk(cost, 0.0, 2048)
    ms, whole_ms = predict(cost, 0, 0, chunk, 0.0), predict(cost, 0, 0, GRAPH, 0.0)
    if ms < whole_ms <= 60.0:
        return GRAPH, whole_ms
    return chunk, ms


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_a_prompt_has_the_smallest_chunk_that_is_efficient(name: str) -> None:
    tokens, delay = beside_one(name)
    chunk, chunk_ms = worthwhile(name)
    assert 0.75 * chunk <= tokens <= 1.5 * chunk
    assert delay <= (predict(known(name), 0, 1, 0, 500) + chunk_ms) * 1.01


def test_a_smaller_chunk_is_worthwhile_where_a_reader_would_see_the_pause() -> None:
    chunks = []
    for times, most_ms in zip((1.0, 3.0, 9.0), (125.0, 400.0, 1000.0), strict=True):
        cost = deepcopy(known("cpu-2core-amx-0.5b"))
        cost.mean[:] *= times
        chunks.append(worthwhile_chunk(cost, 0.0, 2048))
        assert predict(cost, 0, 0, chunks[-1], 0.0) <= most_ms
    assert 0 < chunks[2] < chunks[1] < chunks[0]


@pytest.mark.parametrize("graph_ms", [59.0, 64.0])
def test_a_tick_of_sixty_ms_is_filled_where_a_whole_graph_takes_longer(graph_ms: float) -> None:
    cost = deepcopy(known("h200-moe"))
    cost.mean[:] *= graph_ms / predict(cost, 0, 0, GRAPH, 0.0)
    tokens, delay = beside_one("h200-moe", cost=cost)
    assert worthwhile_chunk(cost, 0.0, 2048) < tokens <= GRAPH
    assert 57.0 <= delay <= 60.0


@pytest.mark.parametrize("waited_ms", [0.0, 1.5, 8.0])
def test_a_chunk_beyond_the_cap_is_a_worthwhile_one(waited_ms: float) -> None:
    """A chunk of 48 tokens took as long as one of 64, and a slow stream waited for it as well."""
    for name in SLOW:
        tokens, delay = beside_one(name, waited_ms=waited_ms)
        chunk, _ = worthwhile(name)
        alone = predict(known(name), 0, 1, 0, 500)
        assert tokens >= chunk or delay <= 1.2 * alone * 1.02


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_after_a_long_tick_nothing_is_added_until_the_mean_holds_again(name: str) -> None:
    _, delay = beside_one(name, late_ms=1.0)
    assert delay <= 1.2 * predict(known(name), 0, 1, 0, 500) * 1.02


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_a_short_prompt_is_finished_in_the_next_tick_though_streams_are_late(name: str) -> None:
    chunk, chunk_ms = worthwhile(name)
    prompt = min(chunk, 64)
    tokens, delay = beside_one(name, late_ms=0.3 * chunk_ms, prompt=prompt)
    assert tokens == prompt
    assert delay <= (predict(known(name), 0, 1, 0, 500) + chunk_ms) * 1.01


@pytest.mark.parametrize("name", SLOW)
def test_short_prompts_without_end_leave_a_stream_its_pace(name: str) -> None:
    load = Load()
    load.add(INTERACTIVE, 60, 3000, program=1)
    for _ in range(400):
        load.add(INTERACTIVE, 40, 1, 500.0, program=2)
    result = play(load, quiet(name), n_slots=500, seconds=20.0)
    gaps, alone = gaps_of_the_chat(result), predict(known(name), 0, 1, 0, 500)
    longest = alone + worthwhile(name)[1]
    assert largest_mean(gaps) <= 1.05 * (max(25.0, 2.0 * alone) + 1.5 * longest / 10.0)
    assert (result.jobs.first[1:] > 0).sum() > 40


@pytest.mark.parametrize(("target_ms", "hurried"), [(0.0, False), (1000.0, True), (9000.0, False)])
def test_a_prompt_that_misses_its_first_token_time_is_hurried(target_ms, hurried) -> None:
    """It has waited for a second; the stream's last tokens were late."""
    state, memory, name = empty(), Memory.fresh(N), "h200-moe"
    put(state, 0, 0, 100, 99)
    memory.late_ms[0], memory.told_ns[0] = 40.0, state.t_last_ns[0]
    put(state, 5, 0, 4000, 0)
    state.program[5], state.target_ttft_ms[5] = 2, target_ms
    plan, entries = plan_of(state, told(name), known(name), memory=memory)
    assert (5 in plan.slots[:entries]) == hurried


def test_a_reader_may_ask_for_another_pace() -> None:
    """A slower one leaves prompts more of the time."""
    took = {}
    for reading_ms in (10.0, 25.0, 50.0):
        machine = quiet("h200-moe")
        told_ = machine.knobs(reading_ms=reading_ms)
        result = play(chat_and_prompts(4000, 3), machine, told_, seconds=30.0)
        jobs = result.jobs
        took[reading_ms] = float((jobs.first - jobs.due)[1:].max()) / NS
        pace = max(reading_ms, 2.0 * predict(known("h200-moe"), 0, 1, 0, 500))
        assert largest_mean(gaps_of_the_chat(result)) <= 1.05 * (pace + 57.0 / 10.0)
    assert took[50.0] < took[25.0] < took[10.0]


def chat_and_prompts(prompt: int, count: int, programs: int = 1) -> Load:
    """A chat of program 1, and prompts of other programs that follow one another."""
    load = Load()
    load.add(INTERACTIVE, 60, 2500, auto=AUTO, program=1)
    for i in range(programs):
        before = -1
        for _ in range(count):
            due = 500.0 if before < 0 else 200.0
            before = load.add(INTERACTIVE, prompt + i, 1, due, before, auto=AUTO, program=2 + i)
    return load


def gaps_of_the_chat(result) -> np.ndarray:
    out, n = result.outcome, result.tokens
    gaps = out.token_gap[:n][out.token_job[:n] == 0]
    return gaps[gaps >= 0.0]


def largest_mean(gaps: np.ndarray, n: int = 10) -> float:
    return float(np.convolve(gaps, np.ones(n) / n, "valid").max())


@pytest.mark.parametrize("name", [*FAST, *SLOW])
@pytest.mark.parametrize("programs", [1, 3])
def test_the_mean_of_any_ten_tokens_keeps_the_pace(name: str, programs: int) -> None:
    """Whatever the prompts, and however many programs wait for them."""
    result = play(chat_and_prompts(900, 12, programs), quiet(name), seconds=30.0)
    gaps, alone = gaps_of_the_chat(result), predict(known(name), 0, 1, 0, 500)
    _, chunk_ms = worthwhile(name)
    pace = max(25.0, 1.2 * alone, (1.0 + programs) * alone)
    longest = alone + chunk_ms
    # ten gaps may begin with a long one, and a merged shape is known to some per cent
    assert largest_mean(gaps) <= 1.05 * (pace + longest / 10.0)
    # a chunk may have a tick of its own by a wrong guess, after which the streams' graph is new
    assert np.sort(gaps)[-2] <= 1.1 * longest


@pytest.mark.parametrize(("name", "most"), [(n, 1.6) for n in FAST] + [(n, 2.6) for n in SLOW])
def test_a_prompt_beside_a_chat_takes_little_longer_than_alone(name: str, most: float) -> None:
    prompt = 4000 if name in FAST else 500
    load = Load()
    load.add(INTERACTIVE, prompt, 1, 500.0, auto=AUTO, program=2)
    alone = play(load, quiet(name)).jobs
    beside = play(chat_and_prompts(prompt, 1), quiet(name)).jobs
    assert beside.first[1] - beside.due[1] <= most * (alone.first[0] - alone.due[0])


def test_a_program_that_floods_pays_for_itself() -> None:
    """Its prompts have two fifths of the time in the long run, and those of another wait less."""
    load = Load()
    load.add(INTERACTIVE, 60, 9000, auto=AUTO, program=1)
    for _ in range(300):
        load.add(INTERACTIVE, 4000, 1, 500.0, auto=AUTO, program=2)
    load.add(INTERACTIVE, 4000, 1, 20_000.0, auto=AUTO, program=3)
    result = play(load, quiet("h200-moe"), n_slots=400, seconds=40.0)
    gaps, jobs = gaps_of_the_chat(result), result.jobs
    quick = gaps < 1.2 * np.median(gaps)
    assert 0.3 < gaps[~quick].sum() / gaps.sum() < 0.55
    assert jobs.sunk[1:301].any() and not jobs.sunk[301]
    assert (jobs.first[301] - jobs.due[301]) / NS < 1000.0


@pytest.mark.parametrize("name", ["h200-moe", "h200-dense", *SLOW])
def test_background_keeps_the_95th_percentile_and_gets_on(name: str) -> None:
    load = Load()
    load.add(INTERACTIVE, 60, 4000)
    for _ in range(400):
        load.add(BACKGROUND, 1000 if name in FAST else 150, 1)
    machine = quiet(name)
    result = play(load, machine, machine.knobs(without=["prompt-aside"]), n_slots=512, seconds=20.0)
    gaps, alone = gaps_of_the_chat(result), predict(known(name), 0, 1, 0, 500)
    assert np.percentile(gaps, 95) <= 1.2 * 1.02 * alone
    _, chunk_ms = worthwhile(name)
    assert gaps.max() <= 1.1 * max(25.0, alone + chunk_ms)
    assert (result.jobs.end[1:] > 0).sum() >= (20 if name.startswith("h200") else 1)


def test_a_stream_that_stood_still_is_not_late_for_ever() -> None:
    """After a pause of seconds, say of a suspended machine, prompts wait for a few tokens only."""
    state, memory, name = empty(), Memory.fresh(N), "h200-moe"
    put(state, 0, 0, 100, 99)
    put(state, 5, 0, 4000, 0)
    state.program[5] = 2
    memory.told_ns[0] = NOW - 9 * 10**9
    plan_of(state, told(name), known(name), memory=memory)
    assert 0.0 < memory.late_ms[0] <= 57.0
