"""Long texts are tokenised on a stack that is large enough, beside the ticks."""

from __future__ import annotations

import os
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.small_models import write_model
from umaserve.engine.admission import tokenizer_thread as tk
from umaserve.engine.native.niceness import LAST
from umaserve.wire import messages as m
from umaserve.wire import table as t

RECURSES = "gpt-4o"  # libllama splits its texts with std::regex
EQUAL = "a" * 40_000  # an ordinary stack holds half of it
GREEDY = m.Sampling(temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrivenEngine]:
    path = tmp_path_factory.mktemp("models") / "recursing.gguf"
    write_model(path, "micro-151k", pre=RECURSES, n_layer=1)
    with DrivenEngine(model=str(path), n_ctx=16384, probe=False) as made:
        yield made


@pytest.mark.parametrize("text", [EQUAL, " " * 60_000, "é" * 20_000, "a1" * 20_000])
def test_a_text_as_deep_as_it_is_long_is_tokenised(engine: DrivenEngine, text: str) -> None:
    engine.send(m.Tokenize(7, text))
    answer = engine.expect(m.Tokens)
    assert answer.ref == 7 and not answer.error
    pieces = b"".join(engine.pieces.piece(token) for token in answer.tokens)
    assert pieces.decode() == text
    assert engine.table.header.tokenizing == 0


def test_a_prompt_as_deep_as_it_is_long_is_answered(engine: DrivenEngine) -> None:
    tokens = engine.run(EQUAL, max_tokens=2, sampling=GREEDY)
    assert len(tokens) == 2
    assert not engine.table.in_tick.any()


def test_only_the_text_that_is_tokenised_is_marked(engine: DrivenEngine) -> None:
    """Others may wait behind it, and have nothing to do with what becomes of it."""
    serials = engine.submit_together([EQUAL] * 4, max_tokens=1, sampling=GREEDY)
    most = 0
    while not all(engine.table.state[engine.slots[s]] == t.DONE for s in serials):
        most = max(most, int((engine.table.in_tick == t.IN_TOKENIZER).sum()))
        assert engine.process.poll() is None
    assert most <= 2  # one by the thread, and one that the loop takes to its row
    for serial in serials:
        engine.release(serial)


class Text:
    """Specials that need no model: a token a character."""

    def tokenize(self, text: str, **_: object) -> list[int]:
        self.thread = threading.current_thread()
        return list(text.encode())


def answers(thread: tk.TokenizerThread, told: threading.Event, message: m.Submit) -> tk.Finished:
    thread.put(message)
    assert told.wait(20)
    told.clear()
    return thread.finished.popleft()


def test_a_text_for_which_there_is_no_stack_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = t.SessionTable.create(t.TableSpec(2, 8))
    told, specials = threading.Event(), Text()
    thread = tk.TokenizerThread(specials, table, told.set)  # type: ignore[arg-type]
    short = m.Submit(1, 1, prompt="x" * 10)
    long = m.Submit(2, 1, prompt="x" * (tk.STACK_BYTES // tk.STACK_PER_BYTE + 1))
    assert answers(thread, told, short)[1] == [120] * 10
    usual = specials.thread
    assert answers(thread, told, long)[1][:2] == [120, 120] and specials.thread is not usual
    monkeypatch.setattr(tk, "run_with_stack", lambda *_: False)
    _, tokens, error = answers(thread, told, long)
    assert not tokens and "too long" in error
    assert answers(thread, told, short)[1] == [120] * 10
    assert not thread.is_busy and not table.in_tick.any()
    monkeypatch.undo()
    # no thread has so much address space; the next text finds everything as it was
    assert not tk.run_with_stack(lambda: None, 1 << 60)
    assert threading.stack_size() == 0


def test_an_engine_that_cannot_have_a_large_stack_starts_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tk, "run_with_stack", lambda *_: False)
    table, _ = t.SessionTable.create(t.TableSpec(2, 8))
    told = threading.Event()
    thread = tk.TokenizerThread(Text(), table, told.set)  # type: ignore[arg-type]
    assert answers(thread, told, m.Submit(1, 1, prompt="x" * 10))[1] == [120] * 10
    _, tokens, error = answers(thread, told, m.Submit(1, 1, prompt="x" * 10_000))
    assert not tokens and "too long" in error


def test_a_prompt_does_not_wait_behind_texts_that_nobody_waits_for(engine: DrivenEngine) -> None:
    for ref in range(1, 21):
        engine.send(m.Tokenize(ref, EQUAL))
    for _ in range(3):
        engine.submit(EQUAL, lane=m.LANE_BACKGROUND, max_tokens=1, sampling=GREEDY)
    serial = engine.submit("a" * 8000, max_tokens=1, sampling=GREEDY)
    while not engine.prompt_tokens(serial):
        assert engine.process.poll() is None
    answered = 0
    with pytest.raises(AssertionError, match="no .* within 0 s"):
        while True:
            engine.expect(m.Tokens, timeout=0)
            answered += 1
    assert answered < 10, "it went before most of them"
    for _ in range(20 - answered):
        engine.expect(m.Tokens)
    for waiting in list(engine.slots):
        engine.wait(waiting)
        engine.release(waiting)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread's priority cannot be read")
def test_the_thread_of_what_nobody_waits_for_gives_way(engine: DrivenEngine) -> None:
    threads = psutil.Process(engine.process.pid).threads()
    nices = sorted(os.getpriority(os.PRIO_PROCESS, thread.id) for thread in threads)
    assert nices[0] == os.nice(0) and max(os.nice(0), LAST) in nices


@pytest.mark.slow
def test_a_short_text_that_takes_long_is_not_taken_between_ticks_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "quadratic.gguf"
    write_model(path, "micro-151k", pre="superbpe", n_layer=1)
    with DrivenEngine(model=str(path), n_ctx=8192, probe=False) as engine:
        beside = []
        for _ in range(2):
            serial = engine.submit("1" * 3000, max_tokens=1, sampling=GREEDY)
            slot, since = engine.slots[serial], 0
            while engine.table.state[slot] != t.DONE:
                since = max(since, engine.table.header.text_since_ns)
                assert engine.process.poll() is None
            assert len(engine.prompt_tokens(serial)) == 3000
            engine.release(serial)
            while engine.table.state[slot] != t.FREE:
                assert engine.process.poll() is None
            beside.append(since > 0)  # the thread had it
        assert beside == [False, True]


def test_texts_that_nobody_waits_for_are_left_out() -> None:
    table, _ = t.SessionTable.create(t.TableSpec(2, 8))
    told, specials, holds = threading.Event(), Text(), threading.Event()
    thread = tk.TokenizerThread(specials, table, told.set)  # type: ignore[arg-type]
    seen: list[str] = []

    def tokenize(text: str, **_: object) -> list[int]:
        seen.append(text)
        assert holds.wait(20)
        return list(text.encode())

    specials.model = types.SimpleNamespace(tokenize=tokenize)
    thread.put(m.Tokenize(1, "a", more=["b", "c"]))
    thread.put(m.Tokenize(2, "d"))
    thread.put(m.Tokenize(3, "e", more=["", "fg"]))
    while not seen:
        assert thread.is_busy
    thread.forget(1)
    thread.forget(2)
    holds.set()
    answers = []
    while len(answers) < 3:
        assert told.wait(20)
        told.clear()
        while thread.finished:
            answers.append(thread.finished.popleft()[0])
    assert seen == ["a", "e", "", "fg"]
    assert answers[2] == m.Tokens(3, [*b"efg"], "", [1, 0, 2])
    assert answers[0].error and answers[1].error
    thread.forget(4)  # it came after its answer
    assert not thread._forgotten
