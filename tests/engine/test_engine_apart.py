"""Deterministic requests: no other request changes a bit of their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.support.engine_driver import DrivenEngine
from umaserve.wire import messages as m
from umaserve.wire import table as t

# longer than a chunk, and than the cells in which libllama's attention has one order of its sums
PROMPT = "".join(f"def step_{i}(left, right):\n    return left + right * {i}\n\n" for i in range(8))
OTHERS = ["import os\n\n\ndef walk(top):\n    ", "class Stack:\n", "x = [i * i for i in "]
GREEDY = m.Sampling(temperature=0.0, logprobs=2, ignore_eos=True)
N_TOKENS = 24


class Answer(NamedTuple):
    tokens: list[int]
    logprobs: list[float]
    alternatives: list[list[float]]


@pytest.fixture(scope="module")
def engine() -> Iterator[DrivenEngine]:
    with DrivenEngine(speculate="ngram") as running:
        yield running


def answered(engine: DrivenEngine, serial: int) -> Answer:
    engine.wait(serial)
    slot, tokens = engine.slots[serial], engine.generated(serial)
    table, first = engine.table, int(engine.table.n_prompt[slot])
    assert engine.reason(serial) == t.REASON_LENGTH
    of = slice(first, first + len(tokens))
    answer = Answer(
        tokens, table.logprob[slot, of].tolist(), table.top_logprobs[slot, of, :2].tolist()
    )
    engine.release(serial)
    return answer


def asked(engine: DrivenEngine, **fields: object) -> Answer:
    fields = {"max_tokens": N_TOKENS, "sampling": GREEDY, "deterministic": True, **fields}
    if "tokens" not in fields:
        fields["prompt"] = PROMPT
    return answered(engine, engine.submit(**fields))  # type: ignore[arg-type]


@pytest.fixture
def busy(engine: DrivenEngine) -> Iterator[list[int]]:
    """Three streams of others that go on until the test has ended."""
    endless = m.Sampling(temperature=0.9, ignore_eos=True)
    serials = [
        engine.submit(each, max_tokens=2000, sampling=endless, program=2, domain="d")
        for each in OTHERS
    ]
    for serial in serials:
        engine.wait(serial, n_tokens=2)
    yield serials
    for serial in serials:
        engine.send(m.Cancel(serial))
        engine.wait(serial)
        engine.release(serial)


@pytest.fixture(scope="module")
def alone(engine: DrivenEngine) -> Answer:
    return asked(engine)


def test_beside_streams_it_gets_what_it_gets_alone(
    engine: DrivenEngine, alone: Answer, busy: list[int]
) -> None:
    assert len(alone.tokens) == N_TOKENS
    for _ in range(10):
        assert asked(engine, program=1, domain="d") == alone


def test_others_go_on_meanwhile(engine: DrivenEngine, alone: Answer, busy: list[int]) -> None:
    before = [len(engine.generated(serial)) for serial in busy]
    assert asked(engine) == alone
    after = [len(engine.generated(serial)) for serial in busy]
    # every other tick is theirs, if not of all of them
    assert all(b - a >= N_TOKENS // 4 for a, b in zip(before, after, strict=True)), (before, after)


def test_several_at_once_wait_for_each_other(engine: DrivenEngine, alone: Answer) -> None:
    fields = {"max_tokens": N_TOKENS, "sampling": GREEDY, "deterministic": True}
    serials = engine.submit_together([PROMPT] * 3, **fields)
    for serial in serials:
        assert answered(engine, serial) == alone


def test_it_goes_on_in_another_engine_as_if_nothing_had_happened(
    engine: DrivenEngine, alone: Answer, busy: list[int]
) -> None:
    prompt, cut = engine.ids(PROMPT), 10
    again = asked(engine, tokens=prompt + alone.tokens[:cut], n_prompt=len(prompt))
    assert again.tokens == alone.tokens
    assert again.logprobs[cut:] == alone.logprobs[cut:]


def test_a_longer_one_gets_a_larger_context(engine: DrivenEngine, alone: Answer) -> None:
    longer = asked(engine, max_tokens=1200)
    assert longer.tokens[:N_TOKENS] == alone.tokens
    assert longer.logprobs[:N_TOKENS] == alone.logprobs
    assert asked(engine) == alone


def test_nothing_of_it_is_drafted_or_kept(engine: DrivenEngine, alone: Answer) -> None:
    header = engine.table.header
    before = header.cached_tokens, header.draft_tokens
    assert asked(engine, domain="d", program=7) == alone
    assert (header.cached_tokens, header.draft_tokens) == before


def test_a_background_one_takes_few_ticks_of_streams(
    engine: DrivenEngine, alone: Answer, busy: list[int]
) -> None:
    before = [len(engine.generated(serial)) for serial in busy]
    assert asked(engine, lane=t.LANE_BACKGROUND, max_tokens=4).tokens == alone.tokens[:4]
    after = [len(engine.generated(serial)) for serial in busy]
    assert all(b - a >= 50 for a, b in zip(before, after, strict=True)), (before, after)
