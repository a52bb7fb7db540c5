"""Prompts beside the ticks in a real engine, chunk by granted chunk: nothing is lost by it."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.patches.engine_faults import small_chunks_only
from tests.support.prompts_beside import (
    BACK,
    FRONT,
    GREEDY,
    LONG,
    SHORT,
    STREAM_TOKENS,
    Asked,
    text,
)
from tests.support.waiting import until
from umaserve.wire import messages as m
from umaserve.wire import table as t

pytestmark = pytest.mark.slow

RANDOM_S = 4.0


@pytest.fixture
def start(start_anew):
    """Starts engines that know nothing of what ticks cost; ends them."""

    def make(**options) -> DrivenEngine:
        usual = {
            "n_threads": 1, "prefill_threads": 1, "paced": True, "probe": False,
            # a processor's ticks suffer more from a chunk than an accelerator's
            "latency_cap": 3.0, "patch": small_chunks_only,
        }  # fmt: skip
        return start_anew(**{**usual, **options})

    return make


@pytest.fixture
def asked(start, oracle) -> Asked:
    return Asked(start(), oracle)


def test_background_prompts_alone_are_computed_aside_with_their_first_token(asked):
    expected = 0
    for prompt in (LONG, text(20, 200), SHORT):
        serial = asked.put(prompt, BACK, 8)
        asked.engine.wait(serial)
        expected += asked.n_prompt(serial)
        assert asked.aside() == expected
        assert asked.engine.table.header.prefill_tokens == expected
    asked.all_right()


def test_an_interactive_prompt_alone_is_the_ticks_own(asked):
    asked.put(LONG, FRONT, 8)
    asked.all_right()
    assert asked.aside() == 0


@pytest.mark.parametrize("lane", [BACK, FRONT])
def test_a_prompt_beside_a_stream(asked, lane):
    asked.stream()
    serial = asked.put(LONG, lane, 8)
    asked.engine.wait(serial)
    assert 0 < asked.aside() <= asked.n_prompt(serial) - (lane == FRONT)
    asked.all_right()


def test_a_background_request_for_one_token_needs_no_cells_of_the_engine(asked):
    asked.stream()
    before, state = asked.engine.table.header.rows_sampled, asked.engine.table.state
    serials = [asked.put(text(10 + i, 50 * i), BACK, 1) for i in range(4)]
    slots: list[int] = []

    def ended() -> bool:
        assert not asked.engine.table.n_past[slots].any()
        return bool((state[slots] == t.DONE).all())

    for serial in serials:
        asked.engine.wait(serial, n_tokens=0)  # its row is known
        slots.append(asked.engine.slots[serial])
    until(ended)
    assert asked.aside() == sum(asked.n_prompt(serial) for serial in serials)
    assert asked.engine.table.header.rows_sampled - before >= len(serials)
    asked.all_right()


@pytest.mark.parametrize("streams", [False, True])
def test_few_tokens_more_than_the_first(asked, streams):
    if streams:
        asked.stream()
    for i, max_tokens in enumerate((2, 3, 1, 2)):
        asked.put(text(6 + i, 50 * i), BACK, max_tokens)
    asked.all_right()


def test_a_first_token_from_there_has_its_logprobs(asked):
    """And is the same as from the ticks, whatever the settings change in the row."""
    settings = m.Sampling(
        temperature=0.0, ignore_eos=True, logprobs=3, repeat_penalty=1.3, penalty_last_n=64,
        logit_bias=((5, -2.0),),
    )  # fmt: skip
    table, found = asked.engine.table, {}
    for lane in (FRONT, BACK):
        before = asked.aside()
        serial = asked.engine.submit(LONG, lane=lane, max_tokens=3, sampling=settings)
        asked.engine.wait(serial)
        slot, n = asked.engine.slots[serial], asked.n_prompt(serial)
        found[lane] = [
            asked.engine.generated(serial)[0], table.top_ids[slot, n, :3].tolist(),
            [table.logprob[slot, n], *table.top_logprobs[slot, n, :3]],
        ]  # fmt: skip
        assert asked.aside() - before == (n if lane == BACK else 0)
        asked.engine.release(serial)
    assert found[BACK][:2] == found[FRONT][:2]
    # other batch shapes move a logit by about one
    assert found[BACK][2] == pytest.approx(found[FRONT][2], abs=1.5)


def test_an_end_at_once_ends_it(asked):
    eog = int(np.flatnonzero(asked.oracle.eog)[0])
    sampling = m.Sampling(temperature=0.0, logit_bias=((eog, 1e6),))
    asked.stream()
    serial = asked.engine.submit(text(10), lane=BACK, max_tokens=8, sampling=sampling)
    asked.engine.wait(serial)
    assert asked.engine.reason(serial) == t.REASON_STOP
    assert asked.engine.generated(serial) == []
    assert asked.aside() == asked.n_prompt(serial)
    asked.engine.release(serial)
    asked.all_right()


def test_mirostat_draws_in_the_ticks_alone(asked):
    """Its state moves with every draw, so no draw may be thrown away."""
    sampling = m.Sampling(mirostat=2, seed=7, ignore_eos=True)
    serial = asked.engine.submit(LONG, lane=BACK, max_tokens=4, sampling=sampling)
    asked.engine.wait(serial)
    assert asked.aside() == asked.n_prompt(serial) - 1
    assert len(asked.engine.generated(serial)) == 4
    asked.engine.release(serial)


@pytest.mark.slow
def test_prompts_of_both_lanes_get_slices_between_the_ticks_of_a_stream(start, oracle):
    asked = Asked(start(without=["flow"]), oracle)
    table = asked.engine.table
    for lane in (BACK, FRONT):
        asked.stream()
        before = table.header.tick_ring_at
        serials = [asked.put(text(20, 100 * i), lane, 8) for i in range(2)]
        for serial in serials:
            asked.engine.wait(serial)
        after = table.header.tick_ring_at
        assert after - before < t.TICK_RING
        slices = table.ticks["slice_ms"][np.arange(before, after) % t.TICK_RING]
        assert slices.any() and (slices >= 0.0).all()
        asked.all_right()
    assert asked.aside() > 0


def test_background_prompts_flow_through_the_ticks_of_a_stream(asked, tmp_path):
    """In small chunks; what their prompts are followed by is right.

    What they do to the ticks is learned, and how long they take.  Slices may come between: beside
    decoders of the background, or where this machine's times say that more is computed by them.
    """
    asked.stream()
    serials = [asked.put(text(20, 100 * i), BACK, 8) for i in range(2)]
    for serial in serials:
        asked.engine.wait(serial)
    assert asked.aside() > 0
    asked.all_right()
    assert asked.engine.close() == 0
    (kept,) = (tmp_path / "costs").glob("*.npz")
    with np.load(kept) as costs:
        times, seen, took_ms, _ = costs["flow"][0]
    assert times >= 1.0 and seen > 0.0 and took_ms > 0.0


def test_an_interactive_request_meets_a_long_background_prompt(asked):
    back = asked.put(text(80), BACK, 40)
    until(lambda: asked.aside() > 0)
    assert asked.n_past(back) < asked.n_prompt(back) - 1
    front = asked.put(text(15, 300), FRONT, 40)
    asked.engine.wait(front)
    # it had the ticks for itself, and went first
    assert asked.n_past(back) < asked.n_prompt(back) - 1
    asked.engine.wait(back)
    assert asked.aside() == asked.n_prompt(back)
    asked.all_right()


def test_a_prompt_that_the_ticks_began_goes_on_beside_the_stream_that_came(asked):
    """The second context gets what the first has computed of it."""
    waits = asked.put(text(80), FRONT, 8)
    until(lambda: asked.n_past(waits) > 0)
    asked.put(SHORT, FRONT, STREAM_TOKENS)
    asked.engine.wait(waits)
    asked.all_right()


@pytest.mark.slow
@pytest.mark.parametrize("streams", [False, True])
def test_eight_prompts_at_once_with_few_cells(start, oracle, streams):
    asked = Asked(start(n_ctx=1024, n_seq=8), oracle)
    if streams:
        asked.stream()
    for i in range(8):
        asked.put(text(8 + i, 10 * i), FRONT if i % 4 == 3 else BACK, 24)
    asked.all_right()
    assert asked.aside() > 0


def test_cancelled_in_the_middle(asked):
    for lane in (BACK, FRONT):
        before = asked.aside()
        asked.stream()
        gone = asked.put(LONG, lane, 8)
        stays = asked.put(text(30, 100), BACK, 8)
        until(lambda before=before: asked.aside() > before)
        asked.engine.send(m.Cancel(gone))
        asked.engine.wait(stays)
        asked.all_right(gone)


@pytest.mark.slow
def test_promoted_and_demoted_in_the_middle(asked):
    asked.stream()
    serials = [asked.put(text(40, 100 * i), i % 2, 8) for i in range(3)]
    lane = asked.engine.table.lane
    for turn in range(6):
        before = asked.aside()
        serial = serials[turn % 3]
        slot = asked.engine.slots[serial]
        to = 1 - int(lane[slot])
        asked.engine.send(m.SetLane(serial, to))
        until(lambda slot=slot, to=to: lane[slot] == to)
        ended = [asked.engine.slots[other] for other in serials]
        until(
            lambda before=before, ended=ended: asked.aside() > before
            or (asked.engine.table.state[ended] == t.DONE).all()
        )
    asked.all_right()


@pytest.mark.slow
@pytest.mark.parametrize("without", ["prompt-aside", "latency-guard", "lanes", "error-budget"])
def test_parts_of_the_policy_switched_off(start, oracle, without):
    asked = Asked(start(without=(without,)), oracle)
    asked.stream()
    asked.put(text(20), BACK, 8)
    asked.put(text(20, 100), FRONT, 8)
    asked.all_right()
    assert bool(asked.aside()) == (without != "prompt-aside")


def test_a_session_that_decodes_alone_shares_nothing_and_hinders_nobody(asked):
    """A suspect of a crash is fed by the ticks; the others go on beside them between."""
    asked.put(text(40), BACK, 8)
    prompt = text(5, 300)
    asked.prompts[asked.engine.submit(prompt, lane=BACK, max_tokens=8, sampling=GREEDY,
                                      isolate=True)] = prompt  # fmt: skip
    asked.all_right()
    assert asked.aside() > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_nobody_hangs_whatever_comes(start, oracle, seed):
    """Requests of both lanes come, go, change lanes and are parked, for some seconds."""
    rng = random.Random(seed)
    asked = Asked(start(n_ctx=2048, n_seq=6), oracle)
    engine, cancelled, alive = asked.engine, set(), []
    end = time.monotonic() + RANDOM_S
    while time.monotonic() < end:
        alive = [s for s in asked.prompts if engine.table.state[engine.slots[s]] != t.DONE
                 or engine.table.serial[engine.slots[s]] != s]  # fmt: skip
        step = rng.random()
        if step < 0.6 and len(asked.prompts) < engine.start.n_slots - 1:
            steps = rng.choice([0, 1, 4, 20, 40])
            prompt = text(steps, rng.randrange(500)) + SHORT
            asked.put(prompt, rng.choice([FRONT, BACK, BACK]), rng.choice([1, 8, 60]))
        elif step < 0.7 and alive:
            serial = rng.choice(alive)
            cancelled.add(serial)
            engine.send(m.Cancel(serial))
        elif step < 0.9 and alive:
            engine.send(m.SetLane(rng.choice(alive), rng.choice([FRONT, BACK])))
        elif len(asked.prompts) >= engine.start.n_slots - 1:
            asked.all_right(*cancelled)
        time.sleep(rng.choice([0.0, 0.01, 0.1]))
    asked.all_right(*cancelled)
    assert asked.aside() > 0
    assert engine.run(SHORT, lane=FRONT, max_tokens=5, sampling=GREEDY)
    assert np.isfinite(engine.table.credit).all()
