"""A pause is used to make the graph of a short prompt ready: nothing changes but the time."""

from __future__ import annotations

import json
import time
from collections import deque
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine_driver import DrivenEngine
from tests.support.oracle import Oracle
from tests.support.patches.engine_faults import woken_late
from tests.support.patches.engine_spies import spied_ready_graph
from umaserve import llama
from umaserve.engine.loop.engine import PAUSE_MS
from umaserve.engine.native.batch import Batch, fill_up
from umaserve.engine.prefill import ready_graph
from umaserve.engine.prefill.ready_graph import OWN, REPEATS, WIDTH, ReadyGraph
from umaserve.wire import messages as m

GREEDY = m.Sampling(temperature=0.0, ignore_eos=True)
SHORT = "def fibonacci(n):"
LONG = "def step(value):\n    if value > 1:\n        return value * 2\n" * 3
SPARE = 2
TOLERANCE = 3.0  # of a logit: the processor's kernels depend on the shape of the batch


@given(st.integers(1, 64), st.integers(0, 64))
@settings(max_examples=100)
def test_a_batch_is_filled_up_with_tokens_of_nobody(n, width):
    token, pos, seq = (np.full(64, -1, np.int32) for _ in range(3))
    logits = np.full(64, 9, np.int8)
    total = fill_up(n, width, SPARE, token, pos, seq, logits)
    assert total == max(n, width)
    assert (token[:n] == -1).all() and (pos[:n] == -1).all() and (logits[:n] == 9).all()
    assert (token[n:total] == 0).all() and (seq[n:total] == SPARE).all()
    assert pos[n:total].tolist() == list(range(total - n)) and not logits[n:total].any()
    assert (token[total:] == -1).all() and (logits[total:] == 9).all()


@pytest.fixture
def loaded(model):
    context = llama.Context.open(
        model, n_ctx=256, n_batch=256, n_ubatch=256, n_seq_max=SPARE + 1, n_threads=1
    )
    yield SimpleNamespace(
        library=model.library, model=model, context=context, n_ctx=256, n_seq=SPARE,
        n_vocab=model.n_vocab,
    )  # fmt: skip
    context.close()


def logits_of(loaded, batch, tokens, width):
    arrays, n = batch.arrays, len(tokens)
    arrays.token[:n], arrays.pos[:n] = tokens, np.arange(n)
    arrays.seq[:n] = arrays.logits[:n] = 0
    arrays.logits[n - 1] = 1
    arrays.n_tokens[0] = fill_up(
        n, width, SPARE, arrays.token, arrays.pos, arrays.seq, arrays.logits
    )
    library = loaded.library
    assert library.lib.uma_decode(loaded.context.pointer, batch.struct) == 0
    row = library.lib.llama_get_logits_ith(loaded.context.pointer, n - 1)
    out = np.frombuffer(library.ffi.buffer(row, 4 * loaded.n_vocab), np.float32).copy()
    loaded.context.seq_rm(0)
    return out


def test_what_fills_up_changes_no_logits_and_is_forgotten(loaded):
    batch = Batch(loaded.library.ffi, 256, 4)
    graph = ReadyGraph(loaded, batch)
    tokens = loaded.model.tokenize(SHORT)
    alone = logits_of(loaded, batch, tokens, 0)
    filled = logits_of(loaded, batch, tokens, WIDTH)
    assert np.abs(filled - alone).max() < TOLERANCE
    assert filled.argmax() == alone.argmax()
    assert loaded.context.seq_pos_max(SPARE) == WIDTH - len(tokens) - 1
    graph.is_ready = True
    graph.forget()
    assert loaded.context.seq_pos_max(SPARE) == -1 and not graph.is_ready


def test_what_is_computed_for_nothing_leaves_nothing_and_gives_way(loaded):
    graph = ReadyGraph(loaded, Batch(loaded.library.ffi, 256, 4))
    graph.usable = True
    asked = []

    def comes(at):
        def somebody_comes():
            asked.append(at)
            return len(asked) > at

        return somebody_comes

    graph.prepare(comes(1), 0)
    assert len(asked) == 2 and not graph.is_ready and graph.wanted
    asked.clear()
    graph.prepare(comes(99), 1)
    assert len(asked) == REPEATS and graph.is_ready and not graph.wanted
    assert [loaded.context.seq_pos_max(seq) for seq in range(SPARE + 1)] == [-1] * (SPARE + 1)
    graph.forget()
    assert graph.wanted
    graph.last_prompt = WIDTH  # too long to be filled up, and the next may be as long
    assert not graph.wanted


@pytest.mark.parametrize(("ready_ms", "usable"), [(1.0, True), (1.99, False), (3.0, False)])
def test_it_is_used_where_it_pays(loaded, monkeypatch, ready_ms, usable):
    graph, shapes = ReadyGraph(loaded, Batch(loaded.library.ffi, 256, 4)), []

    def compute(own, width):
        shapes.append((own, width))
        same = shapes[-1 - REPEATS :] == [(own, width)] * (REPEATS + 1)
        return ready_ms if same else 2.0

    monkeypatch.setattr(graph, "_compute", compute)
    deque(graph.measure(), maxlen=0)
    assert graph.usable == usable
    assert set(shapes) == {(OWN, OWN), (OWN, WIDTH)}


def test_a_slow_accelerator_is_not_kept_busy_with_it(loaded, monkeypatch):
    graph, took = ReadyGraph(loaded, Batch(loaded.library.ffi, 256, 4)), []

    def compute(own, width):
        took.append(ready_graph.SLOW_MS * (2.0 if width == own else 0.1))
        return took[-1]

    monkeypatch.setattr(graph, "_compute", compute)
    deque(graph.measure(), maxlen=0)
    assert not graph.usable and len(took) == 2


@pytest.mark.parametrize(
    "change", [{"n_ctx": WIDTH}, {"n_seq": SPARE + 1}], ids=str
)
def test_it_is_not_used_where_it_cannot_be(loaded, monkeypatch, change):
    vars(loaded).update(change)
    graph = ReadyGraph(loaded, Batch(loaded.library.ffi, 256, 4))
    monkeypatch.setattr(ready_graph, "WORTH_IT", 1e9)
    deque(graph.measure(), maxlen=0)
    assert not graph.usable


def test_short_prompts_after_a_pause_are_filled_up_and_answered_the_same(tmp_path):
    seen_file = tmp_path / "seen"

    def seen():
        lines = seen_file.read_text().splitlines() if seen_file.exists() else []
        return [json.loads(line) for line in lines]

    def pause():
        time.sleep(PAUSE_MS / 1e3 + 0.25)

    oracle = Oracle(n_ctx=512)
    spied = partial(spied_ready_graph, path=str(seen_file))
    with DrivenEngine(patch=spied, n_ctx=512, probe=False, probe_first=True) as engine:
        for prompt in (SHORT, "class Node:", SHORT):
            pause()
            before = len(seen())
            serial = engine.submit(prompt, max_tokens=12, sampling=GREEDY)
            engine.wait(serial)
            n = len(engine.prompt_tokens(serial))
            oracle.assert_followed(prompt, engine.generated(serial))
            engine.release(serial)
            assert n < WIDTH and seen()[before:] == [[WIDTH, WIDTH - n - 1, -1]]
        # a long one is not, and no pause after it is used
        pause()
        before = len(seen())
        long = engine.submit(LONG, max_tokens=4, sampling=GREEDY)
        engine.wait(long)
        n = len(engine.prompt_tokens(long))
        assert n > WIDTH and seen()[before:] == [[n, -1, -1]]
        engine.release(long)
        pause()
        first = engine.submit(SHORT, max_tokens=4, sampling=GREEDY)
        engine.wait(first)
        assert len(seen()) == before + 1
        # nor are two that come together, and both are right
        engine.release(first)
        pause()
        both = [engine.submit(p, max_tokens=8, sampling=GREEDY) for p in (SHORT, "import os")]
        for serial, prompt in zip(both, (SHORT, "import os"), strict=True):
            engine.wait(serial)
            oracle.assert_followed(prompt, engine.generated(serial))
        assert engine.table.header.cells_used == 0
    oracle.close()


def test_what_is_tokenised_in_the_pause_before_a_graph_is_answered_at_once():
    """The tokeniser's sign comes while the loop waits whether the pause is a long one."""
    late = partial(woken_late, late_s=2 * PAUSE_MS / 1e3)
    with DrivenEngine(patch=late, n_ctx=512, probe=False, probe_first=True) as engine:
        for ref in range(3):
            engine.send(m.Tokenize(ref, SHORT))
            assert engine.expect(m.Tokens, timeout=20).ref == ref
