"""Contexts that are full and go on: what is dropped, what stays, and that answers are right.

What an answer should be is judged by libllama itself, in a context that is shifted by the same
calls (`Oracle.shifted_gaps`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.oracle import Oracle
from tests.support.shifted_rows import GREEDY, SIZE, Row
from tests.support.small_models import write_model
from tests.support.waiting import until
from umaserve.wire import messages as m
from umaserve.wire import table as t

PROMPT = "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, "
OTHER = "import os\n\n\ndef walk(top):\n    for name in sorted("
SAMPLED = m.Sampling(
    temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=3, logprobs=0, ignore_eos=True
)


@pytest.fixture(scope="module")
def engine() -> Iterator[DrivenEngine]:
    with DrivenEngine(n_ctx=1024, n_positions=SIZE) as engine:
        yield engine


def cells(engine: DrivenEngine) -> int:
    return int(engine.table.header.cells_used)


@pytest.mark.parametrize("kept", [0, 20])
def test_a_full_context_goes_on_as_in_libllama(engine, oracle: Oracle, kept):
    """Alone, each log-probability is libllama's, and that of no context that was shifted otherwise.

    They differ by 1e-7 at most; with a size of 2 tokens more, some by a tenth and more.
    """
    row = Row(engine, PROMPT, 500, kept, sampling=SAMPLED)
    tokens = row.finish()
    assert len(tokens) == 500 and row.shifts >= 3
    assert engine.reason(row.serial) == t.REASON_LENGTH
    judge = oracle.shifted_logprobs
    assert np.abs(judge(row.prompt, tokens, SIZE, kept) - row.logprobs).max() < 0.01
    for size, other in ((SIZE + 2, kept), (SIZE, kept + 4)):
        assert np.abs(judge(row.prompt, tokens, size, other) - row.logprobs).max() > 0.05
    row.release()
    until(lambda: cells(engine) == 0)


def test_a_greedy_answer_goes_on_as_in_libllama(engine, oracle: Oracle):
    row = Row(engine, PROMPT, 600, 1)
    tokens = row.finish()
    oracle.assert_near(oracle.shifted_gaps(row.prompt, tokens, SIZE, 1))
    row.release()


def test_several_are_shifted_while_others_decode(engine, oracle: Oracle):
    rows = [Row(engine, text, 400, 4) for text in (PROMPT, OTHER, PROMPT + "item")]
    plain = engine.submit(OTHER + "top", max_tokens=600, sampling=GREEDY)
    left = list(rows)
    while left:
        for row in list(left):
            if not row.has_ended():
                continue
            row.read()
            if len(row.tokens) < 400:
                row.shift()
            else:
                left.remove(row)
    engine.wait(plain)
    assert engine.reason(plain) == t.REASON_LENGTH
    assert len(engine.prompt_tokens(plain)) + len(engine.generated(plain)) == SIZE
    for row in rows:
        assert len(row.tokens) == 400
        oracle.assert_near(oracle.shifted_gaps(row.prompt, row.tokens, SIZE, 4))
        row.release()
    oracle.assert_followed(engine.prompt_tokens(plain), engine.generated(plain))
    engine.release(plain)
    until(lambda: cells(engine) == 0)


def test_a_full_row_keeps_its_cells_and_others_go_on(engine, oracle: Oracle):
    row = Row(engine, PROMPT, 400)
    row.until_full()
    until(lambda: engine.table.state[row.slot] == t.FULL)
    until(lambda: cells(engine) == SIZE - 1)
    other = engine.run(OTHER, max_tokens=30, sampling=GREEDY)
    assert len(other) == 30
    assert engine.table.state[row.slot] == t.FULL and cells(engine) == SIZE - 1
    tokens = row.finish()
    oracle.assert_near(oracle.shifted_gaps(row.prompt, tokens, SIZE, 0))
    row.release()
    until(lambda: cells(engine) == 0)


def test_a_full_row_that_is_released_gives_its_cells_back(engine):
    row = Row(engine, PROMPT, 400)
    row.until_full()
    engine.send(m.Cancel(row.serial))  # too late: it has ended
    row.release()
    until(lambda: engine.table.state[row.slot] == t.FREE)
    until(lambda: cells(engine) == 0)
    assert len(engine.run(OTHER, max_tokens=10, sampling=GREEDY)) == 10


def test_a_shifted_row_is_cancelled_like_any_other(engine):
    row = Row(engine, PROMPT, 4000)
    row.until_full()
    row.shift()
    engine.send(m.Cancel(row.serial))
    engine.wait(row.serial)
    assert engine.reason(row.serial) == t.REASON_CANCEL
    row.release()
    until(lambda: cells(engine) == 0)


def test_a_row_that_is_full_after_its_first_token_goes_on(engine, oracle: Oracle):
    """Its cells may be in the second context, so that all that is left is computed again."""
    ids = engine.ids((PROMPT + OTHER) * 20)[: SIZE - 1]
    row = Row(engine, None, 40, tokens=ids, n_prompt=len(ids))
    tokens = row.finish()
    left = (ids + tokens)[row.dropped : len(ids) + 1]
    assert len(tokens) == 40 and row.shifts == 1 and len(left) == SIZE // 2
    oracle.assert_near(oracle.greedy_gaps(left, tokens[1:]))
    row.release()


def test_a_shifted_row_that_was_parked_goes_on(oracle: Oracle):
    """Its cells are moved to memory and back; nothing of them gets into the prefix cache."""
    size = 768
    with DrivenEngine(n_ctx=1024, n_positions=size, n_seq=1) as engine:
        row = Row(engine, PROMPT, 1000, 4, lane=m.LANE_BACKGROUND, domain="everybody")
        row.until_full()
        row.shift()
        until(lambda: engine.table.n_tokens[row.slot] > size // 2 + 20)
        quick = engine.submit(OTHER, max_tokens=5, sampling=GREEDY)
        engine.wait(quick)
        assert engine.table.header.preemptions == 1
        engine.release(quick)
        tokens = row.finish()
        assert len(tokens) == 1000 and row.shifts == 1
        oracle.assert_near(oracle.shifted_gaps(row.prompt, tokens, size, 4))
        row.release()
        everything = row.prompt + tokens
        left = everything[:4] + everything[4 + row.dropped :]
        assert known(engine, left) == 0


def test_a_row_of_another_engine_goes_on_with_what_is_left(engine, oracle: Oracle):
    """As the front resumes it: more tokens were generated than its context holds."""
    first = Row(engine, PROMPT, 1000, 4)
    while first.shifts < 3:
        first.until_full()
        first.shift()
    until(lambda: engine.table.n_tokens[first.slot] > SIZE // 2 + 20)
    engine.send(m.Cancel(first.serial))
    engine.wait(first.serial)
    first.read()
    first.release()
    everything = first.prompt + first.tokens
    context = everything[:4] + everything[4 + first.dropped :]
    n_prompt = len(context) - len(first.tokens)
    assert n_prompt < 0
    serial = engine.submit(
        None, tokens=context, n_prompt=n_prompt, max_tokens=len(first.tokens) + 50,
        sampling=GREEDY, shifts=True,
    )  # fmt: skip
    engine.wait(serial)
    slot = engine.slots[serial]
    new = engine.table.tokens[slot, len(context) : int(engine.table.n_tokens[slot])].tolist()
    assert len(new) == 50 and engine.reason(serial) == t.REASON_LENGTH
    oracle.assert_near(oracle.greedy_gaps(context, new))
    engine.release(serial)


def test_random_numbers_are_not_used_twice(engine):
    """A token's number goes by its place in the answer, also behind a shift."""
    flat = m.Sampling(temperature=10.0, top_k=0, top_p=1.0, min_p=0.0, ignore_eos=True, seed=7,
                      logit_bias=tuple((i, 500.0) for i in range(500, 564)))  # fmt: skip
    row = Row(engine, PROMPT, 600, sampling=flat)
    tokens = row.finish()
    row.release()
    half = SIZE // 2
    assert tokens[SIZE : SIZE + half] != tokens[SIZE - half : SIZE]
    same = sum(a == b for a, b in zip(tokens[half:], tokens, strict=False))
    assert same < len(tokens) // 8


def test_nothing_of_a_shifted_row_is_kept(engine):
    """What was computed before the shift is; its beginning is that of a text."""
    row = Row(engine, "# kept or not\n" + PROMPT, 400, domain="everybody")
    tokens = row.finish()
    everything = row.prompt + tokens
    row.release()
    cached = []
    for text in (everything[: SIZE + 40], everything[row.dropped :]):
        cached.append(known(engine, text[: SIZE - 5]))
    assert cached == [SIZE - 6, 0]


def known(engine: DrivenEngine, text: list[int]) -> int:
    """How many tokens of a prompt the engine finds in its prefix cache."""
    serial = engine.submit(
        None, tokens=text, n_prompt=len(text), max_tokens=1, domain="everybody", sampling=GREEDY
    )
    engine.wait(serial)
    found = int(engine.table.cached[engine.slots[serial]])
    engine.release(serial)
    return found


@pytest.mark.parametrize("shape", ["gemma3-micro", "jamba-micro", "mamba2-micro", "lfm2-micro"])
def test_a_model_whose_memory_cannot_be_cut_says_so(tmp_path, shape):
    model = write_model(tmp_path / f"{shape}.gguf", shape)
    with DrivenEngine(model=model, n_ctx=512, probe=False) as engine:
        assert "the model " in engine.ready.why_no_shift
        # the end of a window can be cut, as far as one tick goes, and earlier states are kept
        goes_back = shape in ("gemma3-micro", "lfm2-micro")
        expected = "" if goes_back else engine.ready.why_no_shift
        assert engine.ready.why_no_drafts == expected
        assert ("drafts" in engine.ready.off) == bool(expected)


def test_the_bundled_model_can_be_shifted(engine):
    assert engine.ready.why_no_shift == engine.ready.why_no_drafts == ""


def test_a_front_that_takes_its_time_costs_nothing(engine):
    """While a row is full and nobody else is there, the engine sleeps."""
    row = Row(engine, PROMPT, 400)
    row.until_full()
    until(lambda: engine.table.state[row.slot] == t.FULL)
    time.sleep(0.1)
    awake = int(engine.table.header.heartbeat_ns)
    time.sleep(0.2)
    assert engine.table.state[row.slot] == t.FULL
    assert int(engine.table.header.heartbeat_ns) == awake
    row.release()
    until(lambda: cells(engine) == 0)
