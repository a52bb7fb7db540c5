"""Drafts of models with a recurrent state, which goes back to the last token that was right."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.draft_chats import (
    LONG,
    NEAR,
    WRONG,
    Chats,
    answer,
    ask,
    drafts,
    said_otherwise,
    words,
)
from tests.support.engine_driver import DrivenEngine
from tests.support.made_models import written
from tests.support.oracle import Oracle
from tests.support.patches.engine_faults import disturbed_and_checked
from tests.support.waiting import until
from umaserve import llama
from umaserve.models.states import SNAPSHOTS
from umaserve.wire import messages as m
from umaserve.wire import table as t

SHAPES = ["lfm2-micro", "qwen35-micro", "nemotron-h-micro"]
UNBOUND = ("latency-guard", "sweet-spot")  # so that rows have drafts beside each other


@pytest.fixture(scope="module", params=SHAPES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("model") / "model.gguf"
    return str(written(request.param, out, "--quant", "f16"))


@pytest.fixture(scope="module")
def engine(path: str) -> Iterator[DrivenEngine]:
    with an_engine(path) as engine:
        yield engine


@pytest.fixture(scope="module")
def judge(path: str) -> Iterator[Oracle]:
    oracle = Oracle(2048, path)
    yield oracle
    oracle.close()


def an_engine(path: str, speculate: str = "ngram", **fields) -> DrivenEngine:
    return DrivenEngine(
        model=path, n_ctx=2048, n_seq=4, speculate=speculate, probe=False, without=UNBOUND, **fields
    )


@pytest.mark.parametrize("rows", [1, 3])
def test_answers_are_right_where_some_drafts_are_wrong(
    engine: DrivenEngine, judge: Oracle, rows: int
) -> None:
    prompts = [words(10 * rows + row, 60) for row in range(rows)]
    for prompt in prompts:  # a text that others of the domain go on as
        known = said_otherwise(answer(engine, prompt, speculate=False))
        answer(engine, [*prompt[-20:], *known], max_tokens=1)
    before, begun = drafts(engine), int(engine.table.header.tick_ring_at)
    serials = [ask(engine, prompt) for prompt in prompts]
    for serial, prompt in zip(serials, prompts, strict=True):
        engine.wait(serial)
        said = engine.generated(serial)
        assert len(said) == LONG
        assert judge.greedy_gaps(prompt, said).max() < NEAR
        engine.release(serial)
    given, taken = drafts(engine) - before
    assert given > taken > LONG // 3
    ring, end = engine.table.ticks, int(engine.table.header.tick_ring_at)
    ticks = [ring[at % t.TICK_RING] for at in range(begun, end)]
    assert any(tick.decode_rows == rows and tick.accepted for tick in ticks)


def test_the_next_turn_goes_on_behind_drafts_that_were_wrong(
    engine: DrivenEngine, judge: Oracle
) -> None:
    """In the cells of the turn before, from its saved state, and from a mark."""
    prompt = words(1, 200)
    known = answer(engine, prompt, speculate=False)
    answer(engine, [*prompt[-20:], *said_otherwise(known)], max_tokens=1)
    for n in range(WRONG - 3, WRONG + 4):  # ends before, at and behind a wrong draft
        said = answer(engine, prompt, max_tokens=n)
        for text in ([*prompt, *said], prompt):
            turn = [*text, *words(n, 30)]
            assert judge.greedy_gaps(turn, answer(engine, turn, max_tokens=20)).max() < NEAR


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(250, marks=pytest.mark.timeout(240)),
        pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_random_chats_are_right_and_their_cells_are_counted(
    path: str, judge: Oracle, steps: int
) -> None:
    """Few cells and little room for texts: rows are parked, evicted, restored and forgotten."""
    patch = functools.partial(disturbed_and_checked, seed=steps)
    with DrivenEngine(
        model=path, patch=patch, n_ctx=512, n_positions=256, n_seq=4, cache_bytes=4 << 20,
        speculate="ngram", without=UNBOUND,
    ) as engine:  # fmt: skip
        chats, header = Chats(engine, judge, steps), engine.table.header
        chats.run(steps)
        until(lambda: header.cells_used == 0)
        assert header.preemptions > 0 and header.cache_hits > 0
        given, taken = drafts(engine)
        assert given > taken > steps // 20
        assert engine.close() == 0


def test_rows_beside_each_other_have_equally_many_drafts_or_none(engine: DrivenEngine) -> None:
    """A row that wants none decides for all; alone they have some again."""
    prompt = words(2, 60)
    known = answer(engine, prompt, speculate=False)
    answer(engine, [*prompt, *known], max_tokens=1)
    quiet = ask(engine, words(3, 20), speculate=False, max_tokens=400)
    engine.wait(quiet, n_tokens=1)
    before = drafts(engine)
    assert answer(engine, prompt, max_tokens=60) == known[:60]
    assert engine.table.state[engine.slots[quiet]] == t.RUNNING
    assert (drafts(engine) == before).all()
    engine.send(m.Cancel(quiet))
    engine.wait(quiet)
    engine.release(quiet)
    assert answer(engine, prompt) == known
    assert (drafts(engine) > before).all()


def test_ready_says_that_drafts_are_on(engine: DrivenEngine) -> None:
    assert engine.ready.why_no_drafts == ""
    assert engine.ready.off.startswith("context shift is off, ")


def test_one_ubatch_has_all_drafts_of_a_tick(path: str, judge: Oracle) -> None:
    """Fewer states are kept where a ubatch is small; none where it has no room for two tokens."""
    with an_engine(path, n_ubatch=9) as engine:
        prompt = words(4, 40)
        known = answer(engine, prompt, speculate=False)
        answer(engine, [*prompt, *known], max_tokens=1)
        before = drafts(engine)
        assert judge.greedy_gaps(prompt, answer(engine, prompt)).max() < NEAR
        assert (drafts(engine) > before).all()
    with an_engine(path, n_ubatch=7) as engine:
        assert "recurrent state" in engine.ready.why_no_drafts
        assert "drafts" in engine.ready.off


def test_libllama_forgets_no_state_that_it_did_not_write(path: str) -> None:
    """It would go back to another text's after a batch of one token, and say that it did."""
    with (
        llama.Model.open(llama.load(), path, n_gpu_layers=0) as model,
        llama.Context.open(model, n_ctx=256, n_rs_seq=max(SNAPSHOTS)) as context,
    ):
        assert context.library.lib.llama_n_rs_seq(context.pointer) == max(SNAPSHOTS)
        feed(context, words(5, 20), 0)
        feed(context, [300], 20)
        assert not context.cut(0, 20)
        assert context.seq_pos_max(0) == -1


def feed(context: llama.Context, tokens: list[int], past: int) -> None:
    from umaserve.engine.native.batch import Batch

    batch = Batch(context.library.ffi, 64, 1)
    n = len(tokens)
    batch.arrays.token[:n], batch.arrays.pos[:n] = tokens, np.arange(past, past + n)
    batch.arrays.n_tokens[0] = n
    assert context.library.lib.uma_decode(context.pointer, batch.struct) == 0
