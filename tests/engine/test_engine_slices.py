"""Prompts between a processor's ticks in a real engine: the loop computes chunks part by part."""

from __future__ import annotations

import json
import random
import sys
import time
from functools import partial

import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.patches.engine_faults import faulty_chunks, slow_chunks
from tests.support.prompts_beside import BACK, FRONT, LONG, Asked, text
from tests.support.waiting import until
from umaserve.wire import messages as m
from umaserve.wire import table as t

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not sys.platform.startswith("linux"),
        reason="swapcontext is used with the GNU C library only",
    ),
]
RANDOM_S, TRIES = 4.0, 6


@pytest.fixture
def start(start_anew):
    """Starts engines whose prompts are never computed on cores of their own; ends them."""

    def make(**options) -> DrivenEngine:
        # a model of a millisecond a tick: parts are hardly shorter than what the cap leaves
        # late ticks would compute these short prompts at once
        without = ["prompt-aside", "error-budget"]
        usual = {"prefill_threads": 1, "without": without, "latency_cap": 1.6}
        return start_anew(**{**usual, **options})

    return make


@pytest.fixture
def asked(start, oracle) -> Asked:
    return Asked(start(), oracle)


def sliced_ms(asked: Asked) -> float:
    """Time that slices took in the ticks that the ring still has."""
    return float(asked.engine.table.ticks["slice_ms"].sum())


def sliced(asked: Asked) -> tuple[int, int]:
    """A stream, and a background prompt of which chunks are computed between its ticks.

    A stream of this small model lasts half a second.  On a busy machine it may end before the first
    chunk does, so several are tried.
    """
    table = asked.engine.table
    for _ in range(TRIES):
        stream, back = asked.stream(), asked.put(LONG, BACK, 8)
        slot = asked.engine.slots[back]
        until(lambda slot=slot: asked.aside() > 0 or table.state[slot] == t.DONE)
        if asked.aside() > 0:
            return stream, back
        asked.all_right()
    raise AssertionError(f"none of {TRIES} prompts was computed between ticks")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_prompt_beside_a_stream_is_computed_between_the_ticks(start, oracle, threads):
    asked = Asked(start(n_threads=threads), oracle)
    _, back = sliced(asked)
    assert sliced_ms(asked) > 0.0
    asked.engine.wait(back)
    asked.all_right()


def test_without_slices_all_is_merged(start, oracle):
    asked = Asked(start(without=["prompt-aside", "slices", "error-budget"]), oracle)
    asked.stream()
    asked.engine.wait(asked.put(text(10, 500), BACK, 4))
    asked.all_right()
    assert asked.aside() == 0
    assert sliced_ms(asked) == 0.0


def test_what_is_left_when_the_stream_ends_is_the_ticks(asked):
    stream, back = sliced(asked)
    asked.engine.send(m.Cancel(stream))
    asked.engine.wait(back)
    assert asked.aside() < asked.n_prompt(back)
    asked.all_right(stream)


def test_a_cancelled_prompt_is_given_up_in_the_middle_of_a_chunk(asked):
    asked.stream()
    for i in range(4):
        back = asked.put(text(60, 100 * i + 1), BACK, 8)
        before = sliced_ms(asked)
        until(lambda before=before: sliced_ms(asked) > before)
        asked.engine.send(m.Cancel(back))
        asked.engine.wait(back)
    last = asked.put(text(8, 700), BACK, 8)  # another one is computed all the same
    asked.engine.wait(last)
    asked.all_right(*asked.prompts)


def test_an_engine_ends_in_the_middle_of_a_chunk(start, oracle):
    for _ in range(3):
        asked = Asked(start(), oracle)
        asked.stream()
        asked.put(LONG, BACK, 8)
        until(lambda asked=asked: sliced_ms(asked) > 0.0)
        assert asked.engine.close() == 0


@pytest.mark.slow
def test_a_chunk_that_would_wait_for_ever_is_put_together_again(start, oracle, tmp_path):
    most, path = 32, tmp_path / "sizes"
    slow = partial(slow_chunks, most=most, path=str(path))
    # what chunks take is known from the start, so that the first is no small one
    asked = Asked(start(patch=slow, latency_cap=8.0, probe_first=True), oracle)
    asked.stream()
    back = asked.put(LONG, BACK, 8)
    until(lambda: asked.aside() > 0)
    sizes = [json.loads(line)[0] for line in path.read_text().splitlines()]
    assert sizes[0] > most >= min(sizes)
    asked.engine.wait(back)
    asked.all_right()


def test_what_is_cancelled_is_given_up_though_no_tick_follows(asked):
    """A slot that counts as in a tick would be looked at if the engine died."""
    for _ in range(4):
        stream, back = asked.stream(), asked.put(LONG, BACK, 8)
        before = sliced_ms(asked)
        until(lambda before=before: sliced_ms(asked) > before)
        for serial in (stream, back):
            asked.engine.send(m.Cancel(serial))
        until(lambda: not asked.engine.table.in_tick.any())
        asked.all_right(stream, back)


@pytest.mark.parametrize("fault", ["pause", "abort"])
def test_a_chunk_that_hangs_or_kills_is_told_from_an_idle_engine(start, oracle, fault):
    """The front looks at these words: to replace an engine that hangs, and for whom to suspect."""
    asked = Asked(start(patch=partial(faulty_chunks, function=fault)), oracle)
    stream, engine = asked.stream(), asked.engine
    back = asked.put(LONG, BACK, 8)
    until(lambda: engine.table.in_tick[engine.slots[back]])
    if fault == "pause":
        until(lambda: engine.table.header.busy == t.BUSY_DECODE
              and time.monotonic_ns() - engine.table.header.tick_start_ns > 10**9
              and engine.table.header.tick_start_ns)  # fmt: skip
        engine.process.kill()
    assert engine.process.wait(60) == (-9 if fault == "pause" else -6)
    assert engine.table.in_tick[engine.slots[back]]
    assert not engine.table.in_tick[engine.slots[stream]]


def test_an_interactive_request_meets_a_slice(asked):
    asked.stream()
    back = asked.put(LONG, BACK, 8)
    until(lambda: sliced_ms(asked) > 0.0)
    second = asked.put(text(4, 300), FRONT, 8)
    asked.engine.wait(second)
    asked.engine.wait(back)
    asked.all_right()


def test_lanes_change_meanwhile(asked):
    asked.stream()
    back = asked.put(LONG, BACK, 8)
    until(lambda: asked.aside() > 0)
    asked.engine.send(m.SetLane(back, FRONT))
    asked.engine.wait(back)
    asked.all_right()


@pytest.mark.slow
def test_whatever_comes_and_goes_everybody_gets_the_right_tokens(start, oracle):
    """Streams, prompts, cancels and changes of lane, at random, prompts on a core of their own
    now and then."""
    asked, rng = Asked(start(without=[], latency_cap=2.0), oracle), random.Random(11)
    end = time.monotonic() + RANDOM_S
    alive: list[int] = []
    cancelled: list[int] = []
    while time.monotonic() < end:
        alive = [s for s in alive if asked.engine.table.state[asked.engine.slots[s]] != t.DONE]
        if len(alive) < 6 and len(asked.prompts) < 14:
            lane = rng.choice([BACK, BACK, FRONT])
            prompt = text(rng.choice([1, 3, 12, 40]), rng.randrange(10**6))
            alive.append(asked.put(prompt, lane, rng.choice([1, 8, 60])))
        elif alive and rng.random() < 0.3:
            cancelled.append(alive.pop(rng.randrange(len(alive))))
            asked.engine.send(m.Cancel(cancelled[-1]))
        elif alive:
            asked.engine.send(m.SetLane(rng.choice(alive), rng.choice([BACK, FRONT])))
        time.sleep(rng.random() * 0.05)
    asked.all_right(*cancelled)
