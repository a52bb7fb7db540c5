"""A request gets what it would have got without drafts, whatever becomes of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.engine_driver import DrivenEngine
from tests.support.oracle import Oracle
from tests.support.patches.scripted import (
    draft_model_scripted,
    scripted,
    scripted_and_disturbed,
)
from tests.support.waiting import until
from umaserve.assets import demo_model_path
from umaserve.wire import messages as m
from umaserve.wire import table as t

SEED = 7
PHASES = [Phase.explicit, Phase.generate]  # an engine that is gone answers nothing simpler
STEADY = m.Sampling(temperature=0.0, ignore_eos=True)
UNBOUND = ("latency-guard", "sweet-spot")  # so that rows have drafts beside each other
REPEATED = [300, 301, 302] * 5
CONSTRAINTS = [
    None,
    m.Constraint(m.REGEX, "(red, |green, |blue, ){3,30}end"),
    m.Constraint(m.SCHEMA, '{"type": "array", "items": {"enum": [1, 22, 333]}, "minItems": 3}'),
    m.Constraint(m.GRAMMAR, 'root ::= ("ab" | "cd"){4,40}'),
]
SAMPLING = st.builds(
    m.Sampling,
    temperature=st.sampled_from([0.0, 0.3, 0.8, 1.5]),
    top_k=st.sampled_from([0, 40]),
    min_p=st.sampled_from([0.0, 0.05]),
    typical_p=st.sampled_from([1.0, 0.9]),
    repeat_penalty=st.sampled_from([1.0, 1.0, 1.1]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.5]),
    dry_multiplier=st.sampled_from([0.0, 0.0, 0.8]),
    xtc_probability=st.sampled_from([0.0, 0.5]),
    mirostat=st.sampled_from([0, 0, 2]),
    logprobs=st.sampled_from([-1, 0, 4]),
    ignore_eos=st.booleans(),
    seed=st.integers(0, 1 << 40),
)
PROMPT = st.lists(st.integers(300, 340), min_size=1, max_size=90)


def an_engine(speculate: str, **start: Any) -> DrivenEngine:
    patch = start.pop("patch", partial(scripted, seed=SEED))
    return DrivenEngine(
        patch=patch, speculate=speculate, probe=False, prefill_threads=0, n_seq=6,
        without=UNBOUND, **start,
    )  # fmt: skip


@pytest.fixture(scope="module")
def without() -> Iterator[DrivenEngine]:
    with an_engine("off") as engine:
        yield engine


@pytest.fixture(scope="module", params=["ngram", "draft"])
def drafting(request: pytest.FixtureRequest) -> Iterator[DrivenEngine]:
    """Texts that repeat, or a draft model that is right most of the time."""
    way, patch, model = request.param, scripted_and_disturbed, ""
    if way == "draft":
        patch, model = draft_model_scripted, str(demo_model_path())
    with an_engine(way, patch=partial(patch, seed=SEED), draft_model=model) as engine:
        yield engine


def outcome(engine: DrivenEngine, serial: int, logprobs: int = -1) -> dict[str, Any]:
    """All that a client may see of a request that has ended; ``logprobs``: how many it wants."""
    table, slot = engine.table, engine.slots[serial]
    n_prompt, n = int(table.n_prompt[slot]), int(table.n_tokens[slot])
    part = slice(n_prompt, n)
    seen = {
        "tokens": table.tokens[slot, part].tolist(), "reason": int(table.reason[slot]),
    }  # fmt: skip
    if logprobs >= 0:
        seen["logprobs"] = table.logprob[slot, part].tolist()
        seen["top"] = table.top_ids[slot, part, :logprobs].tolist()
    engine.release(serial)
    return seen


def ask(engine: DrivenEngine, prompt: list[int], **fields: Any) -> int:
    return engine.submit(tokens=prompt, n_prompt=len(prompt), **fields)


def answer(engine: DrivenEngine, prompt: list[int], **fields: Any) -> dict[str, Any]:
    serial = ask(engine, prompt, **fields)
    engine.wait(serial)
    return outcome(engine, serial, fields["sampling"].logprobs)


def drafts(engine: DrivenEngine) -> tuple[int, int]:
    return int(engine.table.header.draft_tokens), int(engine.table.header.draft_accepted)


@settings(
    max_examples=15, suppress_health_check=list(HealthCheck),
    phases=PHASES,
)  # fmt: skip
@given(
    prompts=st.lists(PROMPT, min_size=1, max_size=3), sampling=SAMPLING,
    constraint=st.sampled_from(CONSTRAINTS), max_tokens=st.integers(1, 90),
    lane=st.integers(0, 1),
)  # fmt: skip
def test_answers_are_those_without_drafts(
    without: DrivenEngine, drafting: DrivenEngine, prompts: list[list[int]],
    sampling: m.Sampling, constraint: m.Constraint | None, max_tokens: int, lane: int,
) -> None:  # fmt: skip
    """Beside each other, parked, evicted and computed again: rows of an engine that is disturbed
    and whose cells are counted after each tick."""
    fields = {
        "sampling": sampling, "max_tokens": max_tokens, "constraint": constraint, "lane": lane
    }  # fmt: skip
    serials = [ask(drafting, prompt, **fields) for prompt in prompts]
    for serial, prompt in zip(serials, prompts, strict=True):
        drafting.wait(serial)
        assert outcome(drafting, serial, sampling.logprobs) == answer(without, prompt, **fields)


def test_drafts_were_given_and_taken(drafting: DrivenEngine, without: DrivenEngine) -> None:
    """Or nothing was compared above."""
    given_, taken = drafts(drafting)
    ticks = int(drafting.table.header.ticks)
    serial = ask(drafting, REPEATED, max_tokens=200, sampling=STEADY)
    drafting.wait(serial)
    slot, table = drafting.slots[serial], drafting.table
    of_row = int(table.drafted[slot]), int(table.accepted[slot])
    assert len(outcome(drafting, serial)["tokens"]) == 200
    now = drafts(drafting)
    assert of_row == (now[0] - given_, now[1] - taken)
    assert of_row[0] > of_row[1] > 50
    assert int(table.header.ticks) - ticks < 200 - 50
    assert drafts(without) == (0, 0)


def test_rows_beside_each_other_are_verified_in_one_tick(
    drafting: DrivenEngine, without: DrivenEngine
) -> None:
    prompts = [[300 + i, 301, 302 + i] * 5 for i in range(3)]
    begun = int(drafting.table.header.tick_ring_at)
    serials = [ask(drafting, prompt, max_tokens=200, sampling=STEADY) for prompt in prompts]
    for serial, prompt in zip(serials, prompts, strict=True):
        drafting.wait(serial)
        seen = outcome(drafting, serial)
        assert seen == answer(without, prompt, max_tokens=200, sampling=STEADY)
    end, ticks = int(drafting.table.header.tick_ring_at), drafting.table.ticks
    rows = [ticks[at % t.TICK_RING] for at in range(begun, end)]
    assert any(row.decode_rows > 1 and row.accepted > 4 for row in rows)  # of more than one


@settings(max_examples=25, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(
    prompt=PROMPT, sampling=SAMPLING, constraint=st.sampled_from(CONSTRAINTS),
    kept=st.floats(0.0, 1.0),
)  # fmt: skip
def test_a_request_of_an_engine_that_died_goes_on_in_the_next(
    without: DrivenEngine, drafting: DrivenEngine, prompt: list[int], sampling: m.Sampling,
    constraint: m.Constraint | None, kept: float,
) -> None:  # fmt: skip
    """It has the tokens that were published, and no others: no draft is among them."""
    sampling = msgspec.structs.replace(sampling, mirostat=0)  # whose state is not kept
    fields = {"sampling": sampling, "constraint": constraint, "max_tokens": 60}
    whole = answer(without, prompt, **fields)
    begun = whole["tokens"][: int(kept * len(whole["tokens"]))]
    serial = drafting.submit(tokens=prompt + begun, n_prompt=len(prompt), **fields)
    drafting.wait(serial)
    seen = outcome(drafting, serial)
    assert (seen["tokens"], seen["reason"]) == (whole["tokens"], whole["reason"])


@settings(max_examples=25, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(prompt=PROMPT, sampling=SAMPLING, at=st.integers(1, 60))
def test_what_a_cancelled_request_has_is_the_beginning_of_its_answer(
    without: DrivenEngine, drafting: DrivenEngine, prompt: list[int], sampling: m.Sampling, at: int
) -> None:
    fields = {"sampling": sampling, "max_tokens": 80}
    whole = answer(without, prompt, **fields)["tokens"]
    serial = ask(drafting, prompt, **fields)
    drafting.wait(serial, n_tokens=at)
    drafting.send(m.Cancel(serial))
    drafting.wait(serial)
    part = outcome(drafting, serial)["tokens"]
    assert part == whole[: len(part)] and len(part) >= min(at, len(whole))


def test_who_wants_no_drafts_gets_none(drafting: DrivenEngine) -> None:
    serial = ask(drafting, REPEATED, max_tokens=60, sampling=STEADY, speculate=False)
    drafting.wait(serial)
    slot = drafting.slots[serial]
    assert (drafting.table.drafted[slot], drafting.table.accepted[slot]) == (0, 0)
    drafting.release(serial)


def shifted(
    engine: DrivenEngine, prompt: list[int], wanted: int, constraint: m.Constraint | None
) -> list[int]:
    """An answer that is longer than its context, of which half is dropped when it is full."""
    serial = engine.submit(
        tokens=prompt, n_prompt=len(prompt), max_tokens=wanted, shifts=True, sampling=STEADY,
        constraint=constraint,
    )  # fmt: skip
    table, slot, tokens, dropped = engine.table, engine.slots[serial], list[int](), 0
    shifts = 0
    while True:
        until(lambda: table.serial[slot] == serial and table.state[slot] in (t.DONE, t.FULL))
        n = int(table.n_tokens[slot])
        tokens += table.tokens[slot, len(prompt) + len(tokens) - dropped : n].tolist()
        if len(tokens) >= wanted or table.reason[slot] != t.REASON_LENGTH:
            engine.release(serial)
            return tokens
        engine.send(m.Shift(serial, 4, (n - 4) // 2, wanted))
        dropped, shifts = dropped + (n - 4) // 2, shifts + 1
        until(lambda: table.shifts[slot] == shifts)  # noqa: B023


@pytest.mark.parametrize(
    "constraint", [None, m.Constraint(m.REGEX, "(red, |green, |blue, ){400,}end")]
)
def test_a_context_that_is_shifted_goes_on_as_without(constraint: m.Constraint | None) -> None:
    answers = []
    for way in ("off", "ngram"):
        with an_engine(way, n_positions=128, n_ctx=512) as engine:
            answers.append(shifted(engine, REPEATED, 400, constraint))
            assert (drafts(engine)[1] > 50) == (way == "ngram")
            assert engine.table.header.cells_used == 0
    assert answers[0] == answers[1] and len(answers[0]) == 400


@pytest.mark.parametrize("broken", [40, 41, 42, 43, 44])
def test_logits_that_are_no_numbers_end_a_row_where_they_would(broken: int) -> None:
    """Whichever of the drafted tokens they are at; the cells of the rest are free again."""
    patch = partial(scripted_and_disturbed, seed=SEED, broken=broken)
    with an_engine("ngram", patch=patch) as engine:
        seen = answer(engine, REPEATED, max_tokens=100, sampling=STEADY)
        assert seen["reason"] == t.REASON_ERROR
        assert len(REPEATED) + len(seen["tokens"]) == broken + 1
        assert answer(engine, REPEATED[:9], max_tokens=20, sampling=STEADY)["tokens"]
        assert drafts(engine)[1] > 0
        until(lambda: engine.table.header.cells_used == 0)


def test_what_others_of_a_domain_have_said_is_drafted() -> None:
    """And nothing of those of another domain, or of nobody's."""
    text = [300 + (i * i * 7) % 500 for i in range(60)]
    with an_engine("ngram") as engine:
        first = answer(engine, text, max_tokens=60, sampling=STEADY, domain="a")["tokens"]
        found = []
        for domain in ("a", "b", None):
            before = drafts(engine)
            again = answer(engine, text[1:], max_tokens=20, sampling=STEADY, domain=domain)
            found.append(drafts(engine)[1] - before[1])
            del again
        assert len(first) == 60
    assert found[0] > found[1] and found[1] == found[2]


def test_a_real_model_says_what_a_fresh_context_says(oracle: Oracle) -> None:
    """Up to near-ties: a batch of another size computes with other kernels."""
    prompt = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n\n\ndef add("
    with DrivenEngine(speculate="ngram", probe=False, without=UNBOUND) as engine:
        serials = [engine.submit(prompt, max_tokens=150, sampling=STEADY) for _ in range(3)]
        for serial in serials:
            engine.wait(serial)
            oracle.assert_followed(prompt, engine.generated(serial))
        assert drafts(engine)[1] > 20
