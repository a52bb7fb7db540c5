"""A cell held far ahead keeps the span that graphs are made for, and changes no answer."""

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

from tests.cell_rule import Cells
from tests.engine_driver import DrivenEngine
from tests.oracle import Oracle
from tests.patches.engine_spies import spied_held_span
from umaserve import llama
from umaserve.engine.cells import held_span as h
from umaserve.engine.loop import engine as loop
from umaserve.engine.loop.seats import Seats
from umaserve.engine.native.batch import Batch
from umaserve.engine.native.calls import Native
from umaserve.wire import messages as m
from umaserve.wire import table as t

GREEDY = m.Sampling(temperature=0.0, ignore_eos=True)
N_CTX, N_SEQ, CELLS = 2048, 3, 512
TOLERANCE = 3.0  # of a logit: the processor's kernels depend on how many cells they are given


@pytest.fixture
def loaded(model):
    context = llama.Context.open(
        model, n_ctx=N_CTX, n_batch=512, n_ubatch=256, n_seq_max=N_SEQ + 2, n_threads=1
    )
    yield SimpleNamespace(
        library=model.library, model=model, context=context, n_ctx=N_CTX, n_seq=N_SEQ,
        overlap=True, n_vocab=model.n_vocab, n_ubatch=256, kv_bytes=N_CTX * 4096,
    )  # fmt: skip
    context.close()


@pytest.fixture
def batch(loaded):
    return Batch(loaded.library.ffi, 512, 8)


@pytest.fixture
def native(loaded, batch):
    return Native.of(loaded.library, loaded.context.pointer, batch.struct, -1, [])


@pytest.fixture
def span(loaded, batch, native, monkeypatch):
    monkeypatch.setattr(h, "cells_to_hold", lambda _: CELLS)
    monkeypatch.setattr(h, "WORTH_IT", -1e9)  # noise may make what is saved negative
    monkeypatch.setattr(h, "SLOW_MS", 1e6)
    made = h.HeldSpan(loaded, batch)
    deque(made.measure(native), maxlen=0)
    assert made.record.held.tolist()[h.CELLS] == CELLS
    return made


def decode(loaded, batch, tokens, at):
    """The next tokens of sequence 0; its last logits and how often graphs were used again."""
    arrays, n, lib = batch.arrays, len(tokens), loaded.library.lib
    arrays.token[:n], arrays.pos[:n] = tokens, np.arange(at, at + n)
    arrays.seq[:n] = arrays.logits[:n] = 0
    arrays.logits[n - 1] = 1
    arrays.n_tokens[0] = n
    assert lib.uma_decode(loaded.context.pointer, batch.struct) == 0
    row = lib.llama_get_logits_ith(loaded.context.pointer, n - 1)
    return np.frombuffer(loaded.library.ffi.buffer(row, 4 * loaded.n_vocab), np.float32).copy()


def reused(loaded):
    return int(loaded.library.lib.llama_perf_context(loaded.context.pointer).n_reused)


def test_the_graph_stays_while_the_span_is_held(loaded, batch, native, span):
    lib = loaded.library.lib
    new = {}
    for held in (False, True):
        loaded.context.seq_rm(0)
        decode(loaded, batch, list(range(5, 255)), 0)
        lib.llama_perf_context_reset(loaded.context.pointer)
        for at in range(250, 790):
            if held:
                h.hold_span(span.record, native, at, 1, True)
            decode(loaded, batch, [7 + at % 90], at)
        new[held] = 540 - reused(loaded)
    # one for a new shape of the batch; then at 256, 512 and 768, or where it is held (at 256, 766)
    assert new == {False: 4, True: 3}
    span.release()
    assert loaded.context.seq_pos_max(N_SEQ + 1) == -1 and not span.is_held


def test_nobody_sees_what_holds_it(loaded, batch, native, span):
    tokens = [5 + i % 97 for i in range(300)]
    logits = {}
    for held in (False, True):
        loaded.context.seq_rm(0)
        decode(loaded, batch, tokens, 0)
        if held:
            h.hold_span(span.record, native, 511, 2, True)
            assert span.is_held
            assert loaded.context.seq_pos_max(N_SEQ + 1) == CELLS - 1
            lowest = loaded.library.lib.llama_memory_seq_pos_min(loaded.context.memory, N_SEQ + 1)
            assert lowest == CELLS - 1  # one cell is all it takes
        logits[held] = decode(loaded, batch, [9], 300)
    assert np.abs(logits[True] - logits[False]).max() < TOLERANCE
    assert logits[True].argmax() == logits[False].argmax()


def test_every_other_cell_can_still_be_used(loaded, batch, native, span):
    h.hold_span(span.record, native, 256, 1, True)
    assert span.is_held
    for at in range(0, N_CTX - 512, 512):
        decode(loaded, batch, [5] * 512, at)
    decode(loaded, batch, [5] * 511, N_CTX - 512)  # all cells but the held one
    h.hold_span(span.record, native, N_CTX - 1, 1, True)
    assert not span.is_held
    decode(loaded, batch, [5], N_CTX - 1)


def test_it_is_let_go_of_when_cells_run_short_or_few_are_used(native, span):
    def hold(used, adding=1, decoding=True):
        h.hold_span(span.record, native, used, adding, decoding)
        return span.record.held.tolist()[: h.FROM + 1]

    assert hold(100) == [0, 0] and hold(255) == [0, 0]  # within the first step
    assert hold(216, 40, False) == [0, 0]  # a prompt
    assert hold(256) == [256 + CELLS, 256]
    assert hold(700) == [256 + CELLS, 256] and hold(799, 1, False) == [256 + CELLS, 256]
    assert hold(800) == [800 + CELLS, 800]
    assert hold(150) == [800 + CELLS, 800]
    assert hold(143) == [0, 0]  # attention would read three times what is in use
    assert hold(256) == hold(768) == [0, 0]  # cells in front of the last one in use are free
    assert hold(1024) == [1024 + CELLS, 1024]  # all are in use again
    assert hold(1790, 1, False) == [1024 + CELLS, 1024]
    assert hold(1792, 1, False) == [0, 0]
    assert hold(0, 9, False) == [0, 0]  # nothing was in use in between
    assert hold(256) == [256 + CELLS, 256]
    assert hold(1536) == [256 + CELLS, 256]  # what is free is not enough
    assert hold(1792) == [0, 0]


def without_library(monkeypatch, place, release):
    """``hold_span``, interpreted, and its record; these two instead of libllama's calls."""
    context = SimpleNamespace(pointer=0, memory=0)
    library = SimpleNamespace(ffi=SimpleNamespace(cast=lambda _, value: value), address=lambda _: 0)
    loaded = SimpleNamespace(library=library, context=context, n_ctx=N_CTX, n_seq=N_SEQ)
    record = h.HeldSpan(loaded, None).record
    record.held[h.CELLS] = CELLS

    def let_go(span):
        release()
        span.held[h.LIMIT] = span.held[h.FROM] = 0

    hold = h.hold_span.py_func
    monkeypatch.setitem(hold.__globals__, "place_span", lambda *_: place() or True)
    monkeypatch.setitem(hold.__globals__, "release_span", let_go)
    return hold, record


@given(st.lists(st.tuples(st.integers(1, N_CTX - 1), st.integers(1, 64), st.booleans())))
@settings(max_examples=500, deadline=None)
def test_what_it_takes_is_never_missed(ticks):
    with pytest.MonkeyPatch.context() as patch:
        placed, top = [], 0
        hold, record = without_library(patch, lambda: placed.append(1), lambda: None)
        for used, adding, decoding in ticks:
            before, n = record.held.tolist(), len(placed)
            top = max(top, used)
            hold(record, None, used, adding, decoding)
            after = record.held.tolist()
            if after[h.LIMIT]:
                assert used + adding + N_CTX // 8 <= N_CTX
                assert after[h.LIMIT] == after[h.FROM] + CELLS <= N_CTX
                room = used + CELLS + N_CTX // 8 <= N_CTX  # for cells further ahead
                full = used == top  # and they are one stretch
                assert not decoding or not room or not full or used + adding <= after[h.LIMIT]
            if len(placed) > n:
                assert decoding and after[h.FROM] == used == top
            elif after[h.LIMIT]:
                assert after[: h.TOP] == before[: h.TOP]
            top = max(top, used + adding)


# a stream comes with a prompt, one of them ends, or all decode so many tokens
EVENTS = st.one_of(
    st.tuples(st.just("come"), st.integers(1, 300)),
    st.tuples(st.just("end"), st.integers(0, 7)),
    st.tuples(st.just("decode"), st.integers(1, 120)),
)


@given(st.lists(EVENTS, min_size=1, max_size=40))
@settings(max_examples=300, deadline=None)
def test_what_is_restored_is_not_scattered(events):
    """However streams come and end: each stretch of cells is a copy for each layer."""
    with pytest.MonkeyPatch.context() as patch:
        cells, stretches = Cells(N_CTX), []

        def place():
            stretches.append(cells.take(Cells.HELD, CELLS))
            cells.free(np.flatnonzero(cells.owner == Cells.HELD)[:-1])

        hold, record = without_library(patch, place, lambda: cells.free_all_of(Cells.HELD))
        streams, names = [], iter(range(10_000))

        def tick(batch, decoding):
            used = int((cells.owner >= 0).sum())
            if used + len(batch) + 1 > N_CTX:
                return False
            hold(record, None, used, len(batch), decoding)
            for stream in batch:
                cells.take(stream, 1)
            return True

        for what, n in events:
            if what == "come" and len(streams) < 8:
                streams.append(next(names))
                if not tick([streams[-1]] * n, False):
                    streams.pop()
            elif what == "end" and streams:
                cells.free_all_of(streams.pop(n % len(streams)))
            elif what == "decode":
                for _ in range(n):
                    if not streams or not tick(streams, True):
                        break
        assert max(stretches, default=1) <= 2  # a prompt may have filled what lay on both sides


@pytest.mark.parametrize(("factor", "used"), [(0.5, True), (2.0, False)])
def test_it_is_used_where_it_pays(loaded, batch, native, monkeypatch, factor, used):
    monkeypatch.setattr(h, "cells_to_hold", lambda _: CELLS)
    monkeypatch.setattr(h, "SLOW_MS", 1e6)
    made = h.HeldSpan(loaded, batch)
    clock = [0.0]
    place = h.place_span

    def slow_place(*arguments):
        clock[0] += 0.001
        return place(*arguments)

    monkeypatch.setattr(h, "place_span", slow_place)
    monkeypatch.setattr(h.time, "perf_counter", lambda: clock[0])
    # a step saved (CELLS is two of them) costs a tick twice what it takes otherwise
    ticks = {4: 1.0 + h.WORTH_IT / factor, 5: 1.0}
    monkeypatch.setattr(made, "_tick_ms", lambda at: ticks.get(at, 1.0))
    deque(made.measure(native), maxlen=0)
    assert made.record.held[h.CELLS] == (CELLS if used else 0)
    assert [loaded.context.seq_pos_max(seq) for seq in range(N_SEQ + 2)] == [-1] * (N_SEQ + 2)
    assert not made.is_held


def test_a_slow_accelerator_is_not_kept_busy_with_it(loaded, batch, native, monkeypatch):
    monkeypatch.setattr(h, "cells_to_hold", lambda _: CELLS)
    made, seen = h.HeldSpan(loaded, batch), []
    monkeypatch.setattr(made, "_decode", lambda n: seen.append(n) or h.SLOW_MS)
    deque(made.measure(native), maxlen=0)
    assert seen == [256] and made.record.held[h.CELLS] == 0


@given(
    st.integers(256, 1 << 18), st.integers(1, 1 << 20), st.integers(1 << 20, 1 << 36),
    st.one_of(st.none(), st.integers(0, 1 << 36)), st.booleans(), st.integers(0, 2),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_memory_says_how_many_cells(n_ctx, cell_bytes, weights, free, overlap, spare):
    lib = SimpleNamespace(
        LLAMA_ROPE_TYPE_MROPE=1, LLAMA_ROPE_TYPE_IMROPE=2, llama_model_is_recurrent=lambda _: False,
        llama_model_is_hybrid=lambda _: False, llama_model_n_swa=lambda _: 0,
        llama_model_has_encoder=lambda _: False, llama_model_is_diffusion=lambda _: False,
        llama_model_rope_type=lambda _: 0,
    )  # fmt: skip
    loaded = SimpleNamespace(
        overlap=overlap, n_ctx=n_ctx, n_seq=4, kv_bytes=n_ctx * cell_bytes,
        context=SimpleNamespace(n_seq_max=4 + spare), library=SimpleNamespace(lib=lib),
        model=SimpleNamespace(pointer=None, size_bytes=weights),
    )  # fmt: skip
    kept, h.device_memory = h.device_memory, lambda _: free
    try:
        cells = h.cells_to_hold(loaded)
    finally:
        h.device_memory = kept
    if cells:
        assert overlap and spare == 2
        assert cells % h.STEP == 0 and h.FEWEST <= cells <= min(h.MOST, n_ctx // h.SHARE)
        assert cells * cell_bytes <= weights // h.WEIGHTS_SHARE
        assert free is None or cells * cell_bytes + h.RESERVE_BYTES <= free
    elif overlap and spare == 2 and free is None:
        assert min(n_ctx // h.SHARE, weights // h.WEIGHTS_SHARE // cell_bytes) < h.FEWEST


@pytest.mark.slow
def test_streams_beside_each_other_are_answered_the_same_up_to_the_last_cell(tmp_path):
    seen_file = tmp_path / "seen"
    prompts = ["def fibonacci(n):", "class Node:", "import os", "for i in range(10):"]
    oracle = Oracle(n_ctx=1024)
    spied = partial(spied_held_span, cells=CELLS, path=str(seen_file))
    with DrivenEngine(patch=spied, n_ctx=N_CTX, n_seq=4, probe_first=True) as engine:
        seen = []
        # the second time cells run short before the first of them ends, as all begin together
        for n in (200, 480):
            serials = engine.submit_together(prompts, max_tokens=n, sampling=GREEDY)
            for serial, prompt in zip(serials, prompts, strict=True):
                engine.wait(serial, timeout=120)
                assert len(engine.generated(serial)) == n
                oracle.assert_followed(prompt, engine.generated(serial))
            for serial in serials:
                engine.release(serial)
            end = time.monotonic() + 10
            while time.monotonic() < end:
                lines = seen_file.read_text().splitlines()
                seen = [json.loads(line) for line in lines if json.loads(line)[2] >= 0]
                if seen or n > 200:
                    break
                time.sleep(0.05)
            assert engine.table.header[t.H_CELLS_USED] == 0
        # held while the first four ran, let go of in the pause; no longer held after the second
        assert [x[0] for x in seen] == [CELLS] and seen[0][1] >= 256
        assert seen[0][2:] == [CELLS - 1, -1]
    oracle.close()


def test_prompts_copied_into_an_empty_cache_do_not_hide_that_it_was_empty(native, span):
    """They come from the second context, so that no tick finds nothing in use."""
    hold = h.hold_span
    hold(span.record, native, 1000, 1, True)
    state = np.full(4, t.RUNNING)
    table = SimpleNamespace(
        seq=np.arange(4), n_past=np.array([500, 300, 200, 0]),
        header=np.zeros(t.HEADER_BYTES // 8), state=state,
    )  # fmt: skip
    sequences = SimpleNamespace(give_back=lambda *_: None, top=0)
    context = SimpleNamespace()
    engine = SimpleNamespace(
        table=table, worker=None, span=span, work=SimpleNamespace(aside=np.zeros(4)),
        sequences=sequences, loaded=SimpleNamespace(context=context),
        start=SimpleNamespace(n_slots=4),
    )  # fmt: skip
    seats = Seats(engine)
    for slot, known, top in ((0, 1 << 62, 1001), (1, 700, 700), (2, 0, 0)):
        state[slot], sequences.top = t.DONE, known
        seats.leave(slot)
        assert span.record.held[h.TOP] == top
    hold(span.record, native, 512, 4, True)
    assert span.is_held


def test_a_batch_that_finds_no_cells_comes_again_once_some_are_free():
    """Of those that nobody reads first, then the one that is held, then somebody's."""
    calls, found = [], {"ended", "held", "evict"}

    def free(what):
        calls.append(what)
        return what in found

    engine = SimpleNamespace(
        table=SimpleNamespace(in_tick=np.ones(4, np.int32)),
        sequences=SimpleNamespace(lose_track=lambda: free("ended")),
        span=SimpleNamespace(release=lambda: free("held")),
        seats=SimpleNamespace(evict=lambda: free("evict")),
    )
    for gone, expected in (((), 1), (("ended",), 2), (("held",), 3)):
        found -= set(gone)
        calls.clear()
        loop.Engine._failed(engine, loop.DECODE_NO_KV_SLOT, np.array([0, 2]))
        assert calls == ["ended", "held", "evict"][:expected]
    assert engine.table.in_tick.tolist() == [0, 1, 0, 1]
