"""A request gets what it would have got without drafts, whatever becomes of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.engine_driver import DrivenEngine
from tests.support.patches.scripted import scripted, scripted_and_disturbed
from tests.support.waiting import until
from umaserve.wire import messages as m
from umaserve.wire import table as t

SEED = 7
WORDS = "(one|two|three) (four|five) "
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
        patch=patch, speculate=speculate, probe=False, prefill_threads=0, n_seq=6, **start
    )


@pytest.fixture(scope="module")
def without() -> Iterator[DrivenEngine]:
    with an_engine("off") as engine:
        yield engine


@pytest.fixture(scope="module")
def drafting() -> Iterator[DrivenEngine]:
    with an_engine("ngram", patch=partial(scripted_and_disturbed, seed=SEED)) as engine:
        yield engine


def outcome(engine: DrivenEngine, serial: int) -> dict[str, Any]:
    """All that a client may see of a request that has ended."""
    table, slot = engine.table, engine.slots[serial]
    n_prompt, n = int(table.n_prompt[slot]), int(table.n_tokens[slot])
    part = slice(n_prompt, n)
    seen = {
        "tokens": table.tokens[slot, part].tolist(), "reason": int(table.reason[slot]),
        "logprobs": table.logprob[slot, part].tolist(),
        "top": table.top_ids[slot, part].tolist(),
    }  # fmt: skip
    engine.release(serial)
    return seen


def ask(engine: DrivenEngine, prompt: list[int], **fields: Any) -> int:
    return engine.submit(tokens=prompt, n_prompt=len(prompt), **fields)


def answer(engine: DrivenEngine, prompt: list[int], **fields: Any) -> dict[str, Any]:
    serial = ask(engine, prompt, **fields)
    engine.wait(serial)
    return outcome(engine, serial)


def drafts(engine: DrivenEngine) -> tuple[int, int]:
    return int(engine.table.header.draft_tokens), int(engine.table.header.draft_accepted)


@settings(
    max_examples=60, deadline=None, suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # an engine that is gone answers nothing simpler
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
        assert outcome(drafting, serial) == answer(without, prompt, **fields)


def test_drafts_were_given_and_taken(drafting: DrivenEngine, without: DrivenEngine) -> None:
    """Or nothing was compared above."""
    before = drafts(drafting)
    ticks = int(drafting.table.header.ticks)
    seen = answer(drafting, [300, 301, 302] * 5, max_tokens=200, sampling=m.Sampling(
        temperature=0.0, ignore_eos=True))  # fmt: skip
    given_, taken = (now - then for now, then in zip(drafts(drafting), before, strict=True))
    assert given_ > taken > 50
    assert len(seen["tokens"]) == 200
    assert int(drafting.table.header.ticks) - ticks < 200 - 50
    assert drafts(without) == (0, 0)
