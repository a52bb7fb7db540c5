"""Drafts by a model's own heads for several tokens (MTP)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.draft_chats import GREEDY, LONG, Chats, answer, ask, drafts, words
from tests.support.engine_driver import DrivenEngine
from tests.support.oracle import Oracle
from tests.support.patches.engine_faults import disturbed_and_checked
from tests.support.patches.scripted import heads_with_few_cells
from tests.support.small_models import gguf_shapes, write_model
from umaserve.engine.model import heads
from umaserve.models.gguf.faults import check_gguf
from umaserve.wire import messages as m

SHAPES = ["qwen35-mtp-micro", "qwen35moe-mtp-micro", "glm4moe-mtp-micro"]
UNBOUND = ("latency-guard", "sweet-spot")  # rows that take turns have no drafts
NEAR = 0.15  # logits, where the choice of experts does not differ with the batch


def an_engine(path: str, speculate: str = "mtp", **fields) -> DrivenEngine:
    fields = {"prefill_threads": 0, "n_ctx": 2048, "n_seq": 4} | fields
    return DrivenEngine(
        model=path, speculate=speculate, probe=False, without=UNBOUND, **fields
    )


@pytest.fixture(scope="module", params=SHAPES)
def chain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model in which token t + 1 follows token t; its heads say the same."""
    out = tmp_path_factory.mktemp("chain") / "chain.gguf"
    return write_model(out, request.param, tied=False, chained={})


@pytest.fixture(scope="module")
def right(chain: str) -> Iterator[DrivenEngine]:
    with an_engine(chain) as engine:
        yield engine


@pytest.mark.parametrize("rows", [1, 3])
def test_drafts_of_heads_that_are_right_are_taken(right: DrivenEngine, rows: int) -> None:
    prompts = [[*words(row, 40), 1000 * (row + 1)] for row in range(rows)]
    before, ticks = drafts(right), int(right.table.header.ticks)
    serials = [ask(right, prompt) for prompt in prompts]
    for serial, prompt in zip(serials, prompts, strict=True):
        right.wait(serial)
        first = prompt[-1] + 1
        assert right.generated(serial) == list(range(first, first + LONG))
        right.release(serial)
    given, taken = drafts(right) - before
    assert taken > 0.9 * given > LONG // 2
    assert right.table.header.ticks - ticks < LONG // 2


def test_a_long_prompt_is_read_as_it_is_computed(right: DrivenEngine) -> None:
    prompt, before = [*words(7, 900), 5000], drafts(right)
    assert answer(right, prompt) == list(range(5001, 5001 + LONG))
    assert drafts(right)[1] - before[1] > LONG // 2


def test_the_heads_are_told_of(right: DrivenEngine) -> None:
    assert (right.ready.draft_model, right.ready.heads) == ("", heads.USED)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_state_that_heads_read_is_of_the_token_before(tmp_path: Path, shape: str) -> None:
    """Heads that look at the state alone: the first draft of each tick is right, the others not."""
    path = write_model(
        tmp_path / "state.gguf", shape, tied=False, draft_output=True, chained={"from_state": 1}
    )
    with an_engine(path) as engine:
        for prompt in ([*words(1, 50), 2000], [*words(2, 400), 3000]):
            before, first = drafts(engine), prompt[-1] + 1
            assert answer(engine, prompt) == list(range(first, first + LONG))
            given, taken = drafts(engine) - before
            assert taken > LONG // 3
            assert taken < 0.6 * given


@pytest.mark.parametrize("shape", SHAPES)
def test_answers_are_right_where_drafts_are_wrong(tmp_path: Path, shape: str) -> None:
    """Of random heads; rows beside each other, next turns, and answers that begin again."""
    experts = {"n_expert": 4, "n_expert_used": 4} if gguf_shapes.SHAPES[shape].n_expert else {}
    path = write_model(tmp_path / "random.gguf", shape, quant="f16", **experts)
    judge = Oracle(2048, path)
    with an_engine(path) as engine:
        texts = [words(seed, 30 + 20 * seed) for seed in range(3)]
        for _ in range(2):
            serials = [ask(engine, text, max_tokens=60) for text in texts]
            for i, serial in enumerate(serials):
                engine.wait(serial)
                said = engine.generated(serial)
                assert len(said) == 60
                assert judge.greedy_gaps(texts[i], said).max() < NEAR
                engine.release(serial)
                texts[i] = [*texts[i], *said, *words(i, 10)]
        assert drafts(engine)[0] > 100
        assert engine.close() == 0
    judge.close()


@pytest.mark.timeout(240)
def test_random_chats_are_right(tmp_path: Path) -> None:
    """Few cells and little room for texts: rows are parked, evicted, restored and forgotten."""
    path = write_model(tmp_path / "random.gguf", SHAPES[0], quant="f16")
    judge, steps = Oracle(2048, path), 150
    patch = functools.partial(disturbed_and_checked, seed=steps)
    with DrivenEngine(
        model=path, patch=patch, n_ctx=512, n_positions=256, n_seq=4, cache_bytes=4 << 20,
        speculate="mtp", without=UNBOUND,
    ) as engine:  # fmt: skip
        chats, header = Chats(engine, judge, steps), engine.table.header
        chats.run(steps)
        assert header.preemptions > 0 and header.cache_hits > 0
        assert drafts(engine)[0] > steps
        assert engine.close() == 0
    judge.close()


def test_a_next_turn_has_drafts_of_what_was_read_before(right: DrivenEngine) -> None:
    text = [*words(3, 60), 7000]
    text += [*answer(right, text, max_tokens=40), *words(4, 9), 9000]
    before = drafts(right)
    assert answer(right, text) == list(range(9001, 9001 + LONG))
    assert drafts(right)[1] - before[1] > LONG // 2


def test_auto_takes_them_where_nothing_else_is_to_draft(chain: str) -> None:
    with an_engine(chain, "auto") as engine:
        assert engine.ready.heads == heads.USED
        assert answer(engine, [*words(5, 20), 4000]) == list(range(4001, 4001 + LONG))
    for other in ("off", "ngram"):
        with an_engine(chain, other) as engine:
            assert engine.ready.heads == ""
            assert answer(engine, [300, 4000]) == list(range(4001, 4001 + LONG))


def test_a_text_longer_than_their_cells_gets_none(chain: str) -> None:
    with an_engine(chain, patch=functools.partial(heads_with_few_cells, cells=512)) as engine:
        before = drafts(engine)
        assert answer(engine, [*words(6, 700), 4000]) == list(range(4001, 4001 + LONG))
        assert (drafts(engine) == before).all()
        assert answer(engine, [*words(8, 70), 4000]) == list(range(4001, 4001 + LONG))
        assert (drafts(engine) > before).all()


def test_a_model_without_heads_says_so_where_they_were_named() -> None:
    with DrivenEngine(speculate="mtp") as engine:
        assert engine.ready.heads == "its own heads draft nothing: the model has none"
        assert "own heads: the model has none" in str(engine.expect(m.Log).text)
        assert len(engine.run("def add(a, b):\n", max_tokens=40, sampling=GREEDY)) == 40


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"draft_layers": 2}, "it has 2 layers of them, which would take turns"),
        ({"draft_layers": 0}, "the model has none"),
        ({"draft_layers": 1}, ""),
    ],
)
def test_heads_that_cannot_be_used_are_known_from_the_file(
    tmp_path: Path, changes: dict[str, int], says: str
) -> None:
    path = write_model(tmp_path / "x.gguf", "qwen35-mtp-micro", **changes)
    assert heads.why_none(check_gguf(path)) == says
