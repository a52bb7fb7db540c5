"""In which ticks tokens may be drafted at all."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.policy_states import empty
from umaserve.engine.drafting.phases import may_draft, say_terms
from umaserve.engine.drafting.records import ALWAYS, SHORT_ANSWER, WHERE_IT_PAYS, Drafts
from umaserve.policy.base import KIND_DECODE, Knobs, Memory, Plan
from umaserve.wire.states import RUNNING, WAITING

ROWS, BATCH, FREE = 4, 512, 1000


def room(
    way: int = WHERE_IT_PAYS, *, decoding: int = 2, prompt: int = 0, free: int = FREE,
    others: int = 0, wait: int = 0, queued: int = 0,
) -> int:  # fmt: skip
    """Tokens that may be drafted for so many streams.

    ``others`` run and are not in the tick; ``wait``: as many streams have another turn; ``queued``
    have no row of the tick yet.
    """
    drafts, plan, memory = Drafts.allocate(ROWS, 64, way), Plan.empty(ROWS), Memory.fresh(ROWS)
    drafts.wanted.rows[:decoding] = range(decoding)
    drafts.marks.rows = decoding
    plan.counts[:decoding], plan.counts[decoding] = 1, prompt
    memory.found[KIND_DECODE] = decoding + wait
    knobs = Knobs(BATCH, 0, 50.0, 1.2, 25.0, False, False, 0)
    state = empty(ROWS)
    state.state[: decoding + (prompt > 0) + others + wait] = RUNNING
    state.state[ROWS - queued :] = WAITING
    say_terms(decoding + (prompt > 0), plan, state, knobs, memory, drafts, free)
    return int(drafts.wanted.terms.room)


def test_streams_that_are_alone_may_have_some() -> None:
    assert room() > 16


@pytest.mark.parametrize("others", [{"prompt": 3}, {"others": 1}, {"wait": 1}, {"queued": 1}])
def test_nobody_has_any_beside_others(others: dict[str, int]) -> None:
    assert room(**others) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("others", [{"prompt": 3}, {"others": 1}])
def test_trials_have_some_beside_prompts_too(others: dict[str, int]) -> None:
    assert room(ALWAYS, **others) > 16  # type: ignore[arg-type]


def test_cells_and_the_batch_bound_them() -> None:
    assert room(free=7) == 5
    assert room(ALWAYS, prompt=BATCH - 6) == 4


@pytest.mark.parametrize(("way", "drafted"), [(WHERE_IT_PAYS, False), (ALWAYS, True)])
def test_a_short_answer_has_none_but_for_trials(way: int, drafted: bool) -> None:
    """An editor's completion is over before drafts have shown whether they are right."""

    def may(most: int, speculate: int = 1, isolate: int = 0) -> bool:
        columns = SimpleNamespace(
            max_tokens=[most], speculate=[speculate], isolate=[isolate]
        )  # fmt: skip
        return bool(may_draft.py_func(columns, 0, way))

    assert may(SHORT_ANSWER) == may(1) == drafted
    assert may(SHORT_ANSWER + 1)
    assert not may(500, speculate=0) and not may(500, isolate=1)
