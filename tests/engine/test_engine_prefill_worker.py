"""Prompts computed by a second context on a thread of its own, and their way into the first."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.prefill_rig import (
    CHUNK,
    N_CTX,
    N_SEQ,
    N_SLOTS,
    TOLERANCE,
    Rig,
    alone,
    varied_text,
)
from umaserve import llama
from umaserve.engine.cells.piece import Piece, export_piece, import_piece
from umaserve.engine.native.calls import Native
from umaserve.engine.prefill import chunk_pace, gate
from umaserve.engine.prefill import thread as prefill_thread
from umaserve.engine.prefill.chunk_stack import run_parts
from umaserve.engine.prefill.orders import BACKLOG, give_orders
from umaserve.engine.prefill.thread import FEWEST_CELLS
from umaserve.engine.prefill.worker import why_not_aside
from umaserve.policy.cost.model import TILED

TASKS = Path("/proc/self/task")


def n_tasks() -> int:
    """Threads of this process, libgomp's among them."""
    return len(list(TASKS.iterdir()))


def tasks_at_rest() -> int:
    """`n_tasks` once it has stayed the same for half a second: earlier tests' threads end first."""
    seen, since = n_tasks(), time.monotonic()
    while time.monotonic() - since < 0.5:
        time.sleep(0.01)
        if n_tasks() != seen:
            seen, since = n_tasks(), time.monotonic()
    return seen


@pytest.fixture(scope="module")
def text(model: llama.Model) -> list[int]:
    return model.tokenize(varied_text())


@pytest.fixture
def rig(model: llama.Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A worker that takes 16 tokens at a time, so that shapes are known."""
    monkeypatch.setattr(chunk_pace, "CHUNK_MS", 0.0)
    monkeypatch.setattr(chunk_pace, "DEEP", 1 << 20)
    monkeypatch.setattr(chunk_pace, "FIRST_CHUNK", CHUNK)
    rig = Rig(model)
    yield rig
    rig.close()


def stuff(rig: Rig, slot: int) -> None:
    """Wait until finished pieces queue up and the worker has nothing left to do."""
    rig.until(lambda: len(rig.worker._x.finished) == BACKLOG)


LAYOUTS = [
    pytest.param({}, id="f16"),
    pytest.param({"flash_attn": "off"}, id="f16, V transposed"),
    pytest.param({"flash_attn": "on", "type_k": "q8_0", "type_v": "q8_0"}, id="q8_0"),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_logits_are_the_engines_own_to_the_last_bit_where_shapes_agree(
    model: llama.Model, text: list[int], layout: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_pace, "CHUNK_MS", 0.0)
    monkeypatch.setattr(chunk_pace, "DEEP", 1 << 20)
    monkeypatch.setattr(chunk_pace, "FIRST_CHUNK", CHUNK)
    rig = Rig(model, **layout)
    rig.put(1, text[:301])
    rig.worker.want([1])
    aside = rig.finish(1)
    assert rig.worker._thread.tokens_total == 300
    assert (aside == alone(rig, text[:301], CHUNK)).all()
    assert np.abs(aside - alone(rig, text[:301], 300)).max() < TOLERANCE
    # the tolerance is one that another prompt's KV does not meet
    assert np.abs(aside - alone(rig, text[300:600] + text[300:301], 300)).max() > TOLERANCE
    rig.close()


def test_chunks_grow_with_what_the_worker_measures(model: llama.Model, text: list[int]) -> None:
    rig = Rig(model)
    rig.put(1, text[:1500])
    rig.worker.want([1])
    aside = rig.finish(1)
    assert rig.worker._thread.pace.ms_per_token > 0
    assert np.abs(aside - alone(rig, text[:1500], 500)).max() < TOLERANCE
    rig.worker._thread.pace.ms_per_token = chunk_pace.CHUNK_MS / 63
    assert rig.worker._thread.pace.chunk(0) == 32
    rig.worker._thread.pace.ms_per_token = 1000.0
    assert rig.worker._thread.pace.chunk(0) == 16
    assert rig.worker._thread.pace.chunk(chunk_pace.DEEP) == TILED
    rig.close()


@pytest.mark.skipif(not TASKS.exists(), reason="threads are counted in /proc")
def test_no_team_of_threads_outlives_the_prompts(model: llama.Model, text: list[int]) -> None:
    """A second team that only sleeps makes every tick slower."""
    before = tasks_at_rest()
    with closing(Rig(model, threads=3)) as rig:
        most = 0

        def look() -> bool:
            nonlocal most
            most = max(most, n_tasks())
            return int(rig.table.n_past[1]) == 1499

        for _ in range(2):
            most = 0
            rig.put(1, text[:1500])
            rig.worker.want([1])
            rig.until(look, land=1)
            assert most >= before + 4  # the waiting thread, and three that compute
            rig.until(lambda: n_tasks() <= before + 1)
            rig.end(1)


@pytest.mark.skipif(not TASKS.exists(), reason="threads are counted in /proc")
def test_the_team_ends_where_the_loop_computes(model: llama.Model, text: list[int]) -> None:
    before = tasks_at_rest()
    with closing(Rig(model, threads=3)) as rig:
        orders, slot = rig.worker.orders, 1
        native = Native.of(model.library, rig.context.pointer, rig.batch.struct, -1, [])
        rig.put(slot, text[:1500])
        rig.worker.want([slot])
        rig.until(lambda: rig.table.n_past[slot] > 0, land=1)
        rig.until(lambda: n_tasks() >= before + 4, land=1)
        orders.gate.by_loop = 1
        tasks = 0

        def handed() -> bool:
            if orders.gate.owner == gate.HANDED:
                return True
            orders.grant[0] = CHUNK  # as the loop does with each tick
            rig.worker._x.wake_worker()
            return False

        for _ in range(3):
            rig.until(handed, land=1)
            tasks = n_tasks()
            run_parts(orders.gate, native, 1 << 62, orders.wake_fd)
        assert tasks <= before + 2  # those that wait for the loop and for orders


def test_prompts_are_the_engines_where_no_thread_starts(
    model: llama.Model, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with closing(Rig(model)) as rig:
        rig.until(lambda: sum(each.name == "prefill" for each in threading.enumerate()) == 1)
        monkeypatch.setattr(threading.Thread, "start", start)
        rig.put(1, text[:100])
        rig.worker.want([1])
        rig.until(lambda: not rig.worker.alive)
        assert "can't start new thread" in rig.worker.take_log()[0].text


def test_pieces_come_in_order_and_leave_the_last_token(rig: Rig, text: list[int]) -> None:
    rig.put(3, text[:200])
    rig.worker.want([3])
    seen = [0]

    def look() -> bool:
        now = int(rig.table.n_past[3])
        if now != seen[-1]:
            seen.append(now)
        assert rig.context.seq_pos_max(3) == now - 1
        return now == 199

    rig.until(look, land=1)
    assert seen == sorted(seen)
    assert rig.worker.land(9) == 0
    assert not rig.worker.has_pieces
    assert rig.table.in_tick[3] == 0


def test_nothing_is_computed_that_is_not_wanted(rig: Rig, text: list[int]) -> None:
    for slot in range(3):
        rig.put(slot, text[:100])
    rig.table.isolate[2] = 1  # a suspect decodes alone
    rig.worker.want([1, 2, 5])
    rig.finish(1)
    rig.worker._x.wake_worker()
    time.sleep(0.05)
    assert rig.worker.land(9) == 0
    assert rig.worker._thread.tokens_total == 99


def test_a_session_that_decodes_meanwhile(rig: Rig, text: list[int]) -> None:
    rig.put(0, text[1000:1600])
    rig.decode(0, 100)
    rig.put(1, text[:700])
    rig.worker.want([1])
    decoded = 0
    while rig.table.n_past[1] < 699:
        if decoded < 499:
            rig.decode(0, 1)
            decoded += 1
        rig.worker.land(1)
    aside, beside = rig.decode(1, 1), rig.decode(0, 1)
    assert np.abs(aside - alone(rig, text[:700], CHUNK)).max() < TOLERANCE
    expected = alone(rig, text[1000 : 1101 + decoded], 100 + decoded)
    assert np.abs(beside - expected).max() < TOLERANCE


def holds_nothing(rig: Rig) -> bool:
    """The second context has no cells in use.  Looked at only when the worker is done with it."""
    thread = rig.worker._thread
    context = thread._context
    return not thread._prompts and all(context.seq_pos_max(seq) == -1 for seq in range(N_SEQ + 1))


def is_busy(rig: Rig) -> bool:
    """Whether a chunk is being computed."""
    return bool(rig.worker.orders.running[0] >= 0)


def abort(rig: Rig) -> None:
    """Set the flag at a time at which a chunk runs, as often as it takes."""
    before, end = rig.worker._thread.aborted_total, time.monotonic() + 60
    while rig.worker._thread.aborted_total == before:
        assert time.monotonic() < end
        if is_busy(rig):
            rig.worker.orders.gate.stop = 1
        rig.worker.land(1)


def test_an_abort_loses_the_running_chunk_only(rig: Rig, text: list[int]) -> None:
    rig.put(1, text[:1201])
    rig.worker.want([1])
    for _ in range(3):
        abort(rig)
    aside = rig.finish(1)
    assert rig.worker._thread.aborted_total >= 3
    assert rig.worker._thread.tokens_total == 1200
    assert (aside == alone(rig, text[:1201], CHUNK)).all()


def test_the_more_urgent_prompt_goes_first(rig: Rig, text: list[int]) -> None:
    rig.put(1, text[:1500])
    rig.put(2, text[300:400])
    rig.worker.want([1])
    rig.until(lambda: rig.table.n_past[1] > 0, land=1)
    rig.worker.want([2, 1])
    rig.worker.orders.gate.stop = 1
    rig.until(lambda: rig.table.n_past[2] == 99, land=1)
    assert rig.table.n_past[1] < 1499
    assert np.abs(rig.decode(2, 1) - alone(rig, text[300:400], 99)).max() < TOLERANCE


def test_orders_from_compiled_code(rig: Rig, text: list[int]) -> None:
    read, write = os.pipe()
    native = Native.of(rig.library, rig.context.pointer, rig.batch.struct, write, [read])
    orders = rig.worker.orders
    rig.put(1, text[:200])
    rig.put(2, text[:300])
    slots = np.array([2, 1], np.int32)
    assert give_orders(orders, native, slots, 2, False)
    assert not give_orders(orders, native, slots, 2, False)
    assert orders.listed() == [2, 1]
    rig.until(lambda: (rig.table.n_past[1:3] == [199, 299]).all(), land=1)
    assert give_orders(orders, native, slots, 1, True)
    assert orders.listed() == [2]
    assert give_orders(orders, native, slots, 0, True)
    assert orders.listed() == []
    everything = np.arange(N_SLOTS, dtype=np.int32)
    assert give_orders(orders, native, everything, N_SLOTS, False)
    assert orders.listed() == everything.tolist()
    os.close(read)
    os.close(write)


def test_after_a_reclaim_nothing_lands_until_it_is_wanted_again(rig: Rig, text: list[int]) -> None:
    rig.put(1, text[:801])
    rig.worker.want([1])
    rig.until(lambda: rig.table.n_past[1] > 0, land=1)
    stuff(rig, 1)
    rig.worker.reclaim(1)
    assert rig.worker.orders.listed() == []
    n_past = int(rig.table.n_past[1])
    assert rig.worker.land(9) == 0
    assert rig.table.n_past[1] == n_past
    # the engine goes further than the worker was, so that the worker has to fetch what it lacks
    computed = rig.worker._thread.tokens_total
    while rig.table.n_past[1] < computed + 5 * CHUNK:
        rig.decode(1, CHUNK)
    rig.worker.want([1])
    aside = rig.finish(1)
    assert rig.worker._thread.tokens_total < 800 + computed - n_past
    assert (aside == alone(rig, text[:801], CHUNK)).all()


def test_a_prompt_that_the_engine_began(rig: Rig, text: list[int]) -> None:
    rig.put(1, text[:1001])
    for _ in range(25):
        rig.decode(1, CHUNK)
    rig.worker.want([1])
    aside = rig.finish(1)
    assert rig.worker._thread.tokens_total == 600
    assert (aside == alone(rig, text[:1001], CHUNK)).all()


def test_pieces_that_the_engine_overtook_are_dropped(rig: Rig, text: list[int]) -> None:
    rig.put(1, text[:801])
    rig.worker.want([1])
    stuff(rig, 1)
    rig.decode(1, CHUNK)
    assert rig.worker.land(9) == 0
    assert (rig.finish(1) == alone(rig, text[:801], CHUNK)).all()


def test_a_row_with_another_request_gets_nothing_of_the_old_one(rig: Rig, text: list[int]) -> None:
    rig.put(1, text[:801])
    rig.worker.want([1])
    stuff(rig, 1)
    rig.put(1, text[300:900])  # without a word to the worker
    assert rig.worker.land(9) == 0
    assert rig.table.n_past[1] == 0
    aside = rig.finish(1)
    assert (aside == alone(rig, text[300:900], CHUNK)).all()


def test_forgotten_rows_leave_no_cells(rig: Rig, text: list[int]) -> None:
    rig.worker.want([1])
    for turn in range(8):  # twice as many as there are sequences
        rig.put(1, text[turn : turn + 601])
        rig.worker.want([1])
        rig.until(lambda: rig.table.n_past[1] > 0, land=1)
        rig.end(1)
    rig.put(2, text[:401])
    rig.worker.want([2])
    assert np.abs(rig.finish(2) - alone(rig, text[:401], 400)).max() < TOLERANCE
    rig.worker._x.wake_worker()
    rig.until(lambda: holds_nothing(rig))


def test_an_evicted_session_is_computed_again(rig: Rig, text: list[int]) -> None:
    rig.put(1, text[:601])
    rig.worker.want([1])
    rig.until(lambda: rig.table.n_past[1] > 100, land=1)
    rig.context.seq_rm(1)  # the same request loses its cells and gets another sequence
    rig.table.n_past[1], rig.table.seq[1] = 0, 3
    rig.worker.forget(1)
    rig.worker._x.wake_worker()
    rig.until(lambda: holds_nothing(rig))
    rig.worker.want([1])
    assert (rig.finish(1) == alone(rig, text[:601], CHUNK)).all()


def test_the_second_cache_is_as_large_as_the_prompts_need(
    rig: Rig, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It grows for a longer prompt under one that is half done, which loses nothing."""
    cells = FEWEST_CELLS // 4
    monkeypatch.setattr(prefill_thread, "FEWEST_CELLS", cells)
    first, second = text[: cells - 55], text[200 : 200 + cells + 101]
    rig.put(1, first)
    rig.worker.want([1])
    rig.until(lambda: rig.table.n_past[1] > 50, land=1)
    assert rig.worker._thread._cells == cells
    rig.put(2, second)
    rig.worker.want([2, 1])
    rig.worker.orders.gate.stop = 1
    long = rig.finish(2)
    assert rig.worker._thread._cells == 2 * cells <= N_CTX
    short = rig.finish(1)
    for logits, tokens in ((long, second), (short, first)):
        assert np.abs(logits - alone(rig, tokens, CHUNK)).max() < TOLERANCE


def test_an_idle_worker_gives_its_cache_back(
    rig: Rig, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_thread, "IDLE_S", 0.2)
    for _ in range(2):
        rig.put(1, text[:301])
        rig.worker.want([1])
        rig.finish(1)
        rig.end(1)
        rig.worker._x.wake_worker()
        rig.until(lambda: rig.worker._thread._cells == 0)


def test_a_piece_waits_for_free_cells(model: llama.Model, text: list[int]) -> None:
    rig = Rig(model, n_ctx=512)
    rig.put(0, text[:500])
    rig.decode(0, 450)
    rig.put(1, text[:101])
    rig.worker.want([1])
    rig.until(lambda: rig.worker._thread.tokens_total == 100)
    rig.until(lambda: rig.worker.land(1) == 0)
    held = int(rig.table.n_past[1])
    assert held + 450 <= 512
    assert rig.worker.has_pieces
    rig.end(0)
    assert np.abs(rig.finish(1) - alone(rig, text[:101], 100)).max() < TOLERANCE
    rig.close()


def test_a_prompt_that_fails_is_the_engines_and_the_next_one_is_not(
    rig: Rig, text: list[int]
) -> None:
    rig.put(1, [*text[:50], rig.model.n_vocab + 5, *text[50:80]])  # no such token
    rig.put(2, text[:101])
    rig.worker.want([1, 2])
    aside = rig.finish(2)
    assert (aside == alone(rig, text[:101], CHUNK)).all()
    assert rig.worker.alive
    assert rig.worker.orders.refused.tolist() == [0, 1, 0, 0, 0, 0, 0, 0]
    (log,) = rig.worker.take_log()
    assert log.level == "warn"
    assert "status -1" in log.text and "token" in log.text
    assert rig.worker.take_log() == []
    rig.worker.forget(1)
    assert not rig.worker.orders.refused.any()


def test_a_context_of_another_layout_is_noticed(model: llama.Model, text: list[int]) -> None:
    rig = Rig(model, flash_attn="on", worker={"flash_attn": "off"})
    rig.put(1, text[:200])
    rig.worker.want([1])
    rig.until(lambda: bool(rig.worker.orders.refused[1]), land=1)
    assert rig.table.n_past[1] == 0
    assert rig.context.seq_pos_max(1) == rig.context.seq_pos_max(N_SEQ) == -1
    assert "did not take its KV cells" in rig.worker.take_log()[0].text
    rig.decode(1, 199)
    rig.close()


def test_a_context_that_cannot_be_made_ends_the_worker_only(
    model: llama.Model, text: list[int]
) -> None:
    rig = Rig(model, worker={"type_k": "f17"})
    rig.put(1, text[:200])
    rig.worker.want([1])
    rig.until(lambda: not rig.worker.alive)
    assert "f17" in rig.worker.take_log()[0].text
    rig.worker.reclaim(1)
    rig.worker.forget(1)
    assert rig.worker.land(1) == 0
    rig.close()


def test_close_gives_up_the_running_chunk(model: llama.Model, text: list[int]) -> None:
    rig = Rig(model)
    rig.put(1, text[:1500])
    rig.worker.want([1])
    rig.until(lambda: is_busy(rig))
    rig.worker.close()
    rig.worker.close()
    assert not any(thread.name == "prefill" for thread in threading.enumerate())
    assert rig.worker._thread.tokens_total < 1499
    rig.close()


def test_a_piece_that_does_not_follow_is_not_taken(rig: Rig, text: list[int]) -> None:
    rig.put(1, text[:200])
    rig.put(2, text[:200])
    rig.decode(1, 64)
    rig.decode(2, 16)
    data, size = export_piece(rig.context, 1, N_SEQ, 32, 64)
    assert not import_piece(rig.context, 2, N_SEQ, Piece(2, 1, 0, 32, 64, data, size))
    assert not import_piece(rig.context, 2, N_SEQ, Piece(2, 1, 0, 16, 48, data, size))
    assert not import_piece(rig.context, 2, N_SEQ, Piece(2, 1, 0, 16, 64, data, size - 8))
    with pytest.raises(ValueError, match="does not hold positions 60 to 69"):
        export_piece(rig.context, 1, N_SEQ, 60, 70)
    assert rig.context.seq_pos_max(N_SEQ) == -1
    again, _ = export_piece(rig.context, 1, N_SEQ, 16, 32, data)
    assert again is data
    rig.decode(2, 16)
    assert import_piece(
        rig.context, 2, N_SEQ, Piece(2, 1, 0, 32, 64, *export_piece(rig.context, 1, N_SEQ, 32, 64))
    )
    rig.table.n_past[2] = 64
    assert np.abs(rig.decode(2, 16) - rig.decode(1, 16)).max() < TOLERANCE


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"n_seq": N_SEQ + 1}, "no spare sequence"),
        ({"kv_bytes": 1 << 60}, "no memory"),
        ({"unused_bytes": 1 << 60}, "no memory"),
    ],
)
def test_where_it_is_not_available(rig: Rig, change: dict, reason: str) -> None:
    facts = {**vars(rig.loaded), "n_cores": 2}
    assert why_not_aside(SimpleNamespace(**facts)) == ""
    assert why_not_aside(SimpleNamespace(**{**facts, "n_cores": 1})) == "there is one core only"
    assert reason in why_not_aside(SimpleNamespace(**{**facts, **change}))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("recurrent", "recurrent"),
        ("hybrid", "recurrent"),
        ("n_swa", "sliding-window"),
        ("has_encoder", "decoder"),
        ("diffusion", "decoder"),
    ],
)
def test_models_of_other_kinds_are_refused(rig: Rig, kind: str, reason: str) -> None:
    """What libllama says of such models is put in its mouth: none of them is at hand."""
    real = rig.library.lib
    answers = {}
    for name in ("is_recurrent", "is_hybrid", "is_diffusion", "n_swa", "has_encoder"):
        answers[f"llama_model_{name}"] = getattr(real, f"llama_model_{name}")
    name = kind if kind in ("n_swa", "has_encoder") else f"is_{kind}"
    answers[f"llama_model_{name}"] = lambda model: 4096
    library = SimpleNamespace(lib=SimpleNamespace(**answers))
    facts = {**vars(rig.loaded), "library": library, "n_cores": 2}
    assert reason in why_not_aside(SimpleNamespace(**facts))


STEPS = st.lists(
    st.sampled_from(
        ["land", "want", "stop", "reclaim", "decode", "evict", "wait", "drop", "other"]
    ),
    max_size=25,
)


@pytest.mark.slow
@settings(max_examples=25)
@given(STEPS)
def test_whatever_happens_on_the_way_the_end_is_the_same(
    model: llama.Model, text: list[int], steps: list[str]
) -> None:
    rig = Rig(model)
    rig.put(1, text[:401])
    rig.worker.want([1])
    for step in steps:
        if step == "land":
            rig.worker.land(1)
        elif step == "want":
            rig.worker.want([1, 2])
        elif step == "stop":
            rig.worker.orders.gate.stop = 1
        elif step == "reclaim":
            rig.worker.reclaim(1)
        elif step == "decode" and rig.table.n_past[1] < 400 - CHUNK:
            rig.decode(1, CHUNK)
        elif step == "evict":
            rig.context.seq_rm(1)
            rig.table.n_past[1] = 0
            rig.worker.forget(1)
        elif step == "wait":
            time.sleep(0.005)
        elif step == "drop":
            rig.end(2)
        elif step == "other":
            rig.end(2)
            rig.put(2, text[500:800])
    rig.worker.want([1])
    aside = rig.finish(1)
    assert np.abs(aside - alone(rig, text[:401], 400)).max() < TOLERANCE
    assert rig.worker.alive and not rig.worker.take_log()
    rig.close()
