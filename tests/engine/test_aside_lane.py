"""Pieces of work beside the requests: what they give, how long they are, who stops them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.whole_texts import assert_near, cosine, logprobs, pooled
from umaserve import llama
from umaserve.engine.aside import kept_context
from umaserve.engine.aside import lane as lane_module
from umaserve.engine.aside.context import CHUNK
from umaserve.engine.aside.jobs import EmbedJob, PromptJob
from umaserve.engine.aside.lane import Allowed, AsideLane
from umaserve.engine.model.loaded import Setup
from umaserve.engine.model.thread_places import no_places
from umaserve.engine.native.calls import Native
from umaserve.engine.prefill.chunk_stack import waits
from umaserve.llama.adapters import Adapters
from umaserve.wire import messages as m
from umaserve.wire import table as t

ALONE = Allowed(math.inf, math.inf)
SLICE = Allowed(0.6, 1000.0)  # some parts of a chunk, of which none is as long
TEXT = "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)\n" * 8


class Lane:
    """A lane on the bundled model, whose pace the test sets."""

    def __init__(self, model: llama.Model) -> None:
        self.model, self.sent, self.told = model, [], []
        self.pace, self.notified = ALONE, 0
        self.kept: list[int] = []  # tokens of rated prompts that were computed
        self.table, fd = t.SessionTable.create(t.TableSpec(4, 2049))
        os.close(fd)
        loaded: Any = SimpleNamespace(
            library=model.library, model=model, n_vocab=model.n_vocab, n_ctx=2048,
            kv_bytes=8 << 20, unused_bytes=0, on_processor=True, n_threads=1, n_threads_batch=1,
            places=no_places(), library_log_tail=lambda: "", adapters=Adapters(),
        )  # fmt: skip
        native = Native.of(model.library, model.library.ffi.NULL, model.library.ffi.NULL, -1, [])
        control: Any = SimpleNamespace(notify=self.notify)
        setup = Setup(m.Start("x", 4, 2048, 4), loaded, self.table, control)
        self.lane = AsideLane(setup, native, lambda: self.pace)

    def notify(self) -> None:
        self.notified += 1

    def embed(self, tokens: list[int], way: str = "last", ref: int = 1) -> None:
        self.lane.put(EmbedJob(ref, tokens, way, self.model.n_embd, self.sent.append))

    def rate(self, tokens: list[int], count: int = 3, serial: int = 1) -> None:
        def refuse(code: str, text: str) -> None:
            self.told.append((code, text))

        submit = m.Submit(serial, 2, tokens=tokens, prompt_logprobs=count)
        begin = lambda: self.told.append("begun")  # noqa: E731
        self.lane.put(PromptJob(submit, tokens, self.sent.append, self.keep, begin, refuse))

    def keep(self, context: llama.Context) -> bool:
        """In two pieces."""
        self.kept.append(context.seq_pos_max(0) + 1)
        return len(self.kept) % 2 == 1

    def run(self) -> int:
        """All that there is; how many steps that took."""
        steps, end = 0, time.monotonic() + 60
        while self.lane.has_jobs:
            assert time.monotonic() < end
            self.lane.step()
            steps += 1
        return steps

    def ready(self) -> None:
        """Its context is made."""
        self.embed([1])
        self.run()
        self.sent.clear()


@pytest.fixture
def made(model: llama.Model) -> Iterator[Lane]:
    made = Lane(model)
    yield made
    made.lane.close()


@pytest.fixture(scope="module")
def tokens(model: llama.Model) -> list[int]:
    found = model.tokenize(TEXT)
    assert len(found) > CHUNK + 64
    return found


@pytest.mark.parametrize("way", ["mean", "cls", "last"])
def test_vectors_are_those_that_libllama_pools(made: Lane, tokens: list[int], way: str) -> None:
    for text in (tokens, tokens[:1], tokens[:65]):
        made.embed(text, way)
    made.run()
    for text, answer in zip((tokens, tokens[:1], tokens[:65]), made.sent, strict=True):
        vector = np.frombuffer(answer.vectors, np.float32)
        assert cosine(vector, pooled(made.model, text, way)) > 0.9999
        assert abs(np.linalg.norm(vector) - 1) < 1e-6 and answer.n_tokens == len(text)


def whole(sent: list[m.PromptLogprobs]) -> tuple[list[int], list[float | None], list[Any]]:
    assert [message.last for message in sent] == [False] * (len(sent) - 1) + [True]
    ats = [message.at for message in sent]
    assert ats == list(np.cumsum([0, *(len(message.tokens) for message in sent)])[:-1])
    return (
        [token for message in sent for token in message.tokens],
        [value for message in sent for value in message.logprobs],
        [top for message in sent for top in message.top],
    )


def assert_rated(made: Lane, tokens: list[int], count: int) -> None:
    told, values, top = whole(made.sent)
    expected = logprobs(made.model, tokens)
    assert told == tokens and values[0] is None and top[0] == []
    assert made.kept[-2:] == [len(tokens) - 1] * 2  # all but the last one, for its row
    assert_near(values[1:], [expected[i - 1][tokens[i]] for i in range(1, len(tokens))])
    for i in range(1, len(tokens)):
        row, assigned = expected[i - 1], [value for _, value in top[i]]
        best = np.sort(row)[::-1][:count]
        assert len(top[i]) == count and assigned == sorted(assigned, reverse=True)
        assert_near(assigned, best.tolist())
        assert_near([row[token] for token, _ in top[i]], best.tolist())


@pytest.mark.parametrize("count", [0, 1, 20])
def test_log_probabilities_are_those_of_a_fresh_context(
    made: Lane, tokens: list[int], count: int
) -> None:
    made.rate(tokens, count)
    made.run()
    assert_rated(made, tokens, count)
    assert made.told == ["begun"] and len(made.sent) > 1


def test_a_prompt_of_one_token_has_nothing_to_compute(made: Lane) -> None:
    made.rate([5])
    assert made.run() == 1
    assert whole(made.sent) == ([5], [None], [[]]) and made.told == ["begun"]


def test_beside_streams_a_chunk_stops_within_its_graph(made: Lane, tokens: list[int]) -> None:
    made.ready()
    made.pace = SLICE
    made.rate(tokens[:40], 2)
    stopped = 0
    while made.lane.has_jobs:
        made.lane.step()
        stopped += bool(waits(made.lane._gate))
        assert made.table.header.tick_start_ns == 0 and not made.table.in_tick.any()
    if made.lane._stack is not None:
        assert stopped > 5
    assert_rated(made, tokens[:40], 2)


def test_texts_that_stop_and_texts_that_do_not_take_turns(made: Lane, tokens: list[int]) -> None:
    made.ready()
    made.rate(tokens[:30], 1)
    made.embed(tokens[:30], "mean", ref=7)
    step = 0
    while made.lane.has_jobs:
        made.pace = ALONE if step // 3 % 2 else SLICE
        made.lane.step()
        step += 1
    vector = np.frombuffer(made.sent.pop().vectors, np.float32)
    assert cosine(vector, pooled(made.model, tokens[:30], "mean")) > 0.9999
    assert_rated(made, tokens[:30], 1)


def test_no_piece_while_there_is_no_time_but_one_now_and_then(
    made: Lane, tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made.ready()
    made.embed(tokens[:8])
    made.pace = Allowed(0.0, 1000.0)
    monkeypatch.setattr(lane_module, "STARVED_NS", 10**15)
    for _ in range(50):
        made.lane.step()
    assert made.sent == [] and not waits(made.lane._gate)
    monkeypatch.setattr(lane_module, "STARVED_NS", 0)  # it has always waited for long
    made.lane.step()
    assert waits(made.lane._gate) or made.lane._stack is None
    made.pace = ALONE
    made.run()
    assert len(made.sent) == 1


def test_what_nobody_wants_any_more_is_dropped(made: Lane, tokens: list[int]) -> None:
    made.ready()
    made.pace = SLICE
    made.rate(tokens, serial=1)
    made.embed(tokens[:9], ref=2)
    made.embed(tokens[:9], ref=3)
    for _ in range(5):
        made.lane.step()
    assert made.lane.drop(lambda job: getattr(job, "ref", 0) == 2) is not None
    assert made.lane.drop(lambda job: getattr(job, "ref", 0) == 2) is None
    assert made.lane.drop(lambda job: isinstance(job, PromptJob)) is not None  # in flight
    assert not waits(made.lane._gate)
    made.pace = ALONE
    made.sent.clear()
    made.run()
    assert [answer.ref for answer in made.sent] == [3] and made.told == []
    vector = np.frombuffer(made.sent[0].vectors, np.float32)
    assert cosine(vector, pooled(made.model, tokens[:9], "last")) > 0.9999


def test_somebody_interactive_ends_a_chunk_which_is_computed_again(
    made: Lane, tokens: list[int]
) -> None:
    made.ready()
    made.rate(tokens, 1)
    made.table.abort.urgent += 1  # the front has sent a request that the engine has not seen
    for _ in range(5):
        made.lane.step()
        assert made.sent == []
    made.table.abort.urgent_seen += 1
    made.run()
    assert_rated(made, tokens, 1)


def test_the_context_is_freed_when_nobody_needs_it(
    made: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made.lane.idle_ms() is None
    made.ready()
    assert made.notified == 1
    left_ms = made.lane.idle_ms()
    assert left_ms is not None and 0 < left_ms <= 60_001
    made.lane.free_unused()
    assert made.lane._kept.context is not None
    monkeypatch.setattr(kept_context, "KEEP_S", 0.0)
    made.lane.free_unused()
    assert made.lane._kept.context is None and made.lane.idle_ms() is None
    made.ready()
    assert made.notified == 2


def test_a_text_that_needs_more_cells_gets_them(made: Lane, tokens: list[int]) -> None:
    made.ready()
    assert made.lane._kept.context is not None and made.lane._kept.context.cells == 1024
    long = (tokens * 8)[:1500]
    made.embed(long, "mean")
    made.run()
    assert made.lane._kept.context.cells == 1536
    vector = np.frombuffer(made.sent[0].vectors, np.float32)
    assert cosine(vector, pooled(made.model, long, "mean")) > 0.9999


def test_no_memory_is_said(
    made: Lane, tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("umaserve.engine.aside.context.available_bytes", lambda: 200 << 20)
    made.rate(tokens)
    made.embed(tokens)
    made.run()
    ((code, text),) = made.told
    assert code == "E_RUNTIME_001" and "MiB" in text and "--n-ctx" in text
    assert made.sent[0].code == code and made.sent[0].error == text


def test_logits_that_are_no_numbers_fail_that_text_alone(made: Lane, tokens: list[int]) -> None:
    made.ready()
    made.rate(tokens[:20], 1)
    context = made.lane._kept.context
    assert context is not None
    rows = context.rows
    context.rows = lambda: np.full((8, made.model.n_vocab), np.nan, np.float32)  # type: ignore
    made.lane.step()
    context.rows = rows  # type: ignore[method-assign]
    assert made.told[0][0] == "E_RUNTIME_001" and "no number" in made.told[0][1]
    made.rate(tokens[:20], 1)
    made.run()
    assert_rated(made, tokens[:20], 1)
