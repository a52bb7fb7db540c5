"""Prompts in the second context where each chunk waits until it is granted."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.support.prefill_rig import N_SEQ, TOLERANCE, Rig, alone, varied_text
from umaserve import llama
from umaserve.engine.prefill import (
    second_context,
)
from umaserve.engine.prefill import (
    thread as prefill_thread,
)
from umaserve.engine.prefill import (
    worker as prefill_worker,
)
from umaserve.engine.prefill.gate import OPEN, Gate
from umaserve.engine.prefill.orders import BACKLOG
from umaserve.engine.prefill.thread import PACED_CHUNK
from umaserve.engine.prefill.worker import PrefillWorker
from umaserve.policy.cost.model import CHUNK_SIZES

pytestmark = pytest.mark.slow

FEW_CELLS = 512
SIZES = CHUNK_SIZES.tolist()


@pytest.fixture(scope="module")
def text(model: llama.Model) -> list[int]:
    return model.tokenize(varied_text())


class PacedRig(Rig):
    """A worker that computes nothing unless told; ``granting`` tokens at a time in `until`."""

    def __init__(self, model: llama.Model, ready: bool = True, **start: object) -> None:
        super().__init__(model, **start)
        self.worker.close()
        self.measured: list[tuple[int, float, float]] = []
        self.granting = 0
        self.copies = np.zeros(CHUNK_SIZES.size)
        self.worker = PrefillWorker(
            self.loaded, self.start, self.table, 1, self.told.set, True,
            lambda *told: self.measured.append(told), self.copies,
        )  # fmt: skip
        if ready:
            assert self.worker.wait_ready(20.0)

    def grant(self, tokens: int) -> None:
        self.worker.orders.grant[0] = tokens
        self.worker.wake()

    def park(self, tokens: int) -> None:
        """Grant a chunk in front of a closed gate, and wait until it waits there."""
        self.worker.orders.gate.until = 0
        self.grant(tokens)
        super().until(lambda: bool(self.worker.orders.gate.parked))

    def open(self) -> None:
        self.worker.orders.gate.until = OPEN
        self.worker.wake()

    def step(self, tokens: int) -> int:
        """Grant a chunk and wait until it is done; its tokens."""
        before, turns = self.worker.tokens_total, int(self.worker.orders.turns[0])
        self.grant(tokens)
        super().until(lambda: self.worker.orders.turns[0] == turns + 2)
        super().until(lambda: self.worker.tokens_total > before)
        return self.worker.tokens_total - before

    def until(self, done: Callable[[], bool], land: int = 0) -> None:
        def look() -> bool:
            if self.granting and not self.worker.orders.grant[0]:
                self.grant(self.granting)
            return done()

        super().until(look, land)

    def assert_right(self, prompts: dict[int, list[int]]) -> None:
        """Finish prompts; what follows each is what follows when the engine computes it all."""
        self.granting, logits = self.granting or 64, {}
        for slot in prompts:
            logits[slot] = self.finish(slot)
            self.end(slot)
        self.granting = self.worker.orders.grant[0] = 0
        assert not self.worker.take_log()
        for slot, tokens in prompts.items():  # which needs the context for itself
            expected = alone(self, tokens, len(tokens) - 1)
            assert np.abs(logits[slot] - expected).max() < TOLERANCE


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure nothing but the smallest chunk at the start."""
    monkeypatch.setattr(second_context, "SLOW_CHUNK_MS", 0.0)


@pytest.fixture
def rig(model: llama.Model, hurry: None) -> Iterator[PacedRig]:
    rig = PacedRig(model)
    yield rig
    rig.close()


@pytest.fixture
def small(model: llama.Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[PacedRig]:
    """With fewer cells in the second context than several prompts need."""
    monkeypatch.setattr(prefill_thread, "FEWEST_PACED", FEW_CELLS)
    rig = PacedRig(model)
    assert rig.worker.cells == FEW_CELLS
    yield rig
    rig.close()


def test_nothing_is_computed_without_a_grant(rig: PacedRig, text: list[int]) -> None:
    rig.put(1, text[:400])
    rig.worker.want([1])
    for chunks in range(3):
        rig.worker.wake()
        time.sleep(0.05)
        orders = rig.worker.orders
        assert (rig.worker.tokens_total, orders.turns[0]) == (64 * chunks, 2 * chunks)
        assert orders.running[0] == -1 and orders.grant[0] == 0
        assert rig.step(64) == 64
    rig.assert_right({1: text[:400]})


def test_the_longest_part_is_told_of_chunks_that_stopped_at_every_part(
    rig: PacedRig, text: list[int]
) -> None:
    rig.put(1, text[:400])
    rig.worker.want([1])
    gate = rig.worker.orders.gate
    for size, measure in ((64, 0), (32, 1), (16, 1), (64, 0), (128, 1)):
        gate.measure = measure
        assert rig.step(size) == size
    rig.until(lambda: len(rig.measured) == 3)
    assert [tokens for tokens, *_ in rig.measured] == [32, 16, 128]
    assert all(all_ms > longest_ms > 0.0 for _, longest_ms, all_ms in rig.measured)
    gate.measure = 0
    rig.assert_right({1: text[:400]})


def test_a_chunk_that_goes_on_through_the_ticks_passes_a_closed_gate(
    rig: PacedRig, text: list[int]
) -> None:
    rig.put(1, text[:400])
    rig.worker.want([1])
    gate = rig.worker.orders.gate
    gate.until = 0
    assert rig.step(-64) == 64
    assert not gate.parked and gate.whole
    ((tokens, longest_ms, all_ms),) = rig.measured
    assert (tokens, longest_ms) == (64, 0.0) and all_ms > 0.0
    # the next one may stop again
    rig.park(64)
    assert not gate.whole
    rig.open()
    rig.until(lambda: rig.worker.orders.running[0] == -1)
    rig.assert_right({1: text[:400]})


def test_cells_of_small_background_chunks_leave_together(rig: PacedRig, text: list[int]) -> None:
    rig.put(1, text[:400])
    rig.table.lane[1] = 1
    rig.worker.want([1])
    for chunk in range(6):
        assert rig.step(-64) == 64
        assert not rig.worker.has_pieces, chunk
    assert rig.step(-64) == 15  # and the last is the engine's
    rig.until(lambda: rig.worker.has_pieces)
    assert rig.worker.land() == 399
    rig.assert_right({1: text[:400]})


def test_what_parts_take_is_known_before_the_first_prompt(rig: PacedRig) -> None:
    part_ms = rig.worker.part_ms
    assert part_ms.shape == CHUNK_SIZES.shape
    known = int((part_ms > 0.0).sum())
    # larger ones are left out where one takes very long
    assert known >= 1 and (part_ms[:known] > 0.0).all() and not part_ms[known:].any()
    assert not rig.worker.orders.gate.measure
    assert rig.worker.orders.gate.until == OPEN
    assert not rig.measured and not rig.worker.tokens_total


def test_only_sizes_with_room_in_the_second_cache_are_measured(small: PacedRig) -> None:
    assert not small.worker.part_ms[CHUNK_SIZES > FEW_CELLS // 2].any()
    assert small.worker.part_ms[0] > 0.0


@pytest.mark.parametrize("quick", [True, False])
def test_sizes_in_between_are_measured_where_that_is_quick(
    model: llama.Model, monkeypatch: pytest.MonkeyPatch, quick: bool
) -> None:
    computed: list[int] = []
    begin_chunk = second_context.begin_chunk

    def noted(gate: Gate, tokens: int, whole: bool = False) -> None:
        computed.append(tokens)
        begin_chunk(gate, tokens, whole)

    monkeypatch.setattr(second_context, "begin_chunk", noted)
    monkeypatch.setattr(second_context, "BETWEEN_MS", 1e9 if quick else 0.0)
    rig = PacedRig(model)
    part_ms, parts_ms = rig.worker.part_ms, rig.worker.parts_ms
    largest = SIZES.index(max(computed))  # larger ones are left out where one takes very long
    measured = SIZES[: largest + 1]
    if not quick:
        measured = [size for size in measured if size & (size - 1) == 0]
    assert sorted(set(computed)) == measured
    assert (part_ms[: largest + 1] > 0.0).all() and not part_ms[largest + 1 :].any()
    for i in range(largest):
        if SIZES[i] not in measured:  # as long as the next larger one, until use tells
            assert (part_ms[i], parts_ms[i]) == (part_ms[i + 1], parts_ms[i + 1])
    rig.close()


def test_nothing_is_prepared_before_somebody_waits_for_it(model: llama.Model) -> None:
    rig = PacedRig(model, ready=False)
    time.sleep(0.05)
    assert not rig.worker.part_ms.any() and not rig.worker.cells
    assert rig.worker.wait_ready(20.0)
    assert rig.worker.part_ms[0] > 0.0 and rig.worker.cells
    rig.close()


def test_a_chunk_waits_at_a_closed_gate(rig: PacedRig, text: list[int]) -> None:
    rig.put(1, text[:400])
    rig.worker.want([1])
    rig.park(300)
    orders = rig.worker.orders
    time.sleep(0.05)
    assert (orders.turns[0], orders.running[0], orders.gate.computed) == (1, 1, 0)
    assert rig.worker.tokens_total == 0 and rig.table.in_tick[1] == 1
    rig.open()
    rig.until(lambda: rig.worker.tokens_total == 300)
    rig.assert_right({1: text[:400]})


@pytest.mark.parametrize("others", [False, True])
def test_a_chunk_that_is_given_up_leaves_nothing_and_comes_again(
    rig: PacedRig, text: list[int], others: bool
) -> None:
    prompts = {1: text[:101], 2: text[400:701]} if others else {1: text[:401]}
    for slot, tokens in prompts.items():
        rig.put(slot, tokens)
    rig.worker.want(list(prompts))
    assert rig.step(64) == 64
    rig.until(lambda: rig.table.n_past[1] == 64, land=1)
    for aborted in (1, 2):
        rig.park(128)
        rig.worker.orders.gate.stop = 1
        rig.until(lambda aborted=aborted: rig.worker.aborted_total == aborted)
        rig.until(lambda: rig.worker.orders.turns[0] % 2 == 0 and not rig.table.in_tick.any())
        assert rig.worker.tokens_total == 64
        held = rig.worker._thread._prompts
        ends = {slot: rig.worker._thread._ready.seq_pos_max(p.seq) for slot, p in held.items()}
        assert ends == {slot: {1: 63}.get(slot, -1) for slot in held}
        assert rig.worker.orders.running[0] == -1
    rig.open()
    rig.assert_right(prompts)
    assert rig.worker.tokens_total == sum(len(tokens) - 1 for tokens in prompts.values())


@pytest.mark.parametrize("granted", [1, 16, 100, PACED_CHUNK, 10 * PACED_CHUNK])
def test_a_grant_is_one_chunk_of_at_most_so_many_tokens(
    rig: PacedRig, text: list[int], granted: int
) -> None:
    rig.put(1, text[:900])
    rig.worker.want([1])
    assert rig.step(granted) == min(granted, PACED_CHUNK)
    assert rig.step(16) == 16
    rig.granting = PACED_CHUNK
    rig.assert_right({1: text[:900]})
    assert rig.worker.tokens_total == 899


def test_the_end_of_a_prompt_leaves_its_room_to_the_next_ones(
    rig: PacedRig, text: list[int]
) -> None:
    prompts = {1: text[:41], 2: text[100:121], 3: text[300:700]}
    for slot, tokens in prompts.items():
        rig.put(slot, tokens)
    rig.table.isolate[0] = 1  # a suspect of a crash shares a batch with nobody
    rig.put(0, text[:50])
    rig.worker.want([1, 2, 0, 3])
    assert rig.step(128) == 128
    rig.until(lambda: rig.table.n_past[1:4].tolist() == [40, 20, 68], land=1)
    assert rig.table.n_past[0] == 0
    assert not rig.table.in_tick.any()
    assert rig.step(128) == 128
    rig.assert_right(prompts)
    assert rig.worker.tokens_total == 40 + 20 + 399


def test_turns_are_odd_exactly_while_a_chunk_runs(rig: PacedRig, text: list[int]) -> None:
    orders, seen = rig.worker.orders, 0
    rig.put(1, text[:1200])
    rig.put(2, text[:1200])
    rig.worker.want([1, 2])
    for turn, granted in enumerate((200, 16, 512)):
        rig.grant(granted)
        end = time.monotonic() + 20
        while orders.turns[0] < 2 * turn + 2:
            assert time.monotonic() < end
            before = int(orders.turns[0])
            running, size, marked = int(orders.running[0]), int(orders.size[0]), rig.table.in_tick
            marked = marked.tolist()
            # looked at between two chunks, or two looks apart, it says nothing
            if before == orders.turns[0] == 2 * turn + 1:
                assert (size, marked[1:3]) == (granted, [1, 0])
                seen += running == 1
        assert orders.turns[0] == 2 * turn + 2
        rig.until(lambda: orders.running[0] == -1 and not rig.table.in_tick.any())
    assert seen


def test_a_prompt_that_finds_no_cells_waits_for_those_that_are_done(
    small: PacedRig, text: list[int]
) -> None:
    small.put(1, text[:301])
    small.put(2, text[400:701])
    small.worker.want([1, 2])
    assert small.step(300) == 300
    small.grant(300)
    time.sleep(0.1)
    assert small.worker.orders.grant[0] == 300  # not taken
    assert small.worker.tokens_total == 300
    small.until(lambda: small.table.n_past[1] == 300, land=1)
    small.until(lambda: small.worker.tokens_total == 600)
    small.assert_right({1: text[:301], 2: text[400:701]})
    assert small.worker.cells == FEW_CELLS


def test_what_comes_later_gives_way_and_goes_on_afterwards(
    small: PacedRig, text: list[int]
) -> None:
    small.put(2, text[400:701])
    small.worker.want([2])
    small.step(200)
    small.until(lambda: small.table.n_past[2] == 200, land=1)
    small.put(1, text[:401])
    small.worker.want([1, 2])
    assert small.step(400) == 400
    # what it had computed comes back from the engine, though not before there are cells for it
    small.worker.wake()
    time.sleep(0.05)
    held = small.worker._thread._prompts
    assert sum(prompt.past for prompt in held.values()) == held[1].past == 400
    assert not small.worker.orders.refused.any()
    small.assert_right({1: text[:401], 2: text[400:701]})
    assert small.worker.tokens_total == 200 + 400 + 100


@pytest.mark.parametrize("seed", range(4))
def test_half_computed_prompts_in_changing_order_all_end(
    small: PacedRig, text: list[int], seed: int
) -> None:
    rng = random.Random(seed)
    prompts = {}
    for slot in range(1, 1 + N_SEQ):
        at = rng.randrange(1000)
        prompts[slot] = text[at : at + rng.randrange(200, 420)]
        small.put(slot, prompts[slot])
    end = time.monotonic() + 60
    left = set(prompts)
    while left:
        assert time.monotonic() < end, small.table.n_past
        order = list(left)
        rng.shuffle(order)
        small.worker.want(order[: rng.randint(1, len(order))])
        for _ in range(rng.randint(1, 6)):
            if not small.worker.orders.grant[0]:
                small.grant(rng.choice([16, 64, 128, 512]))
            small.told.wait(0.005)
            small.told.clear()
            if rng.random() < 0.7:
                small.worker.land(1)
        left -= {s for s in left if small.table.n_past[s] == len(prompts[s]) - 1}
    assert not small.worker.orders.refused.any() and not small.worker.take_log()
    small.assert_right(prompts)


def test_a_longer_prompt_makes_the_second_cache_larger(small: PacedRig, text: list[int]) -> None:
    small.put(1, text[:301])
    small.worker.want([1])
    small.step(128)
    small.put(2, text[200:1000])
    small.worker.want([2, 1])
    small.step(256)
    assert small.worker.cells == 2 * FEW_CELLS
    small.assert_right({2: text[200:1000], 1: text[:301]})


def test_pieces_too_large_to_land_come_again_as_smaller_ones(
    rig: PacedRig, text: list[int]
) -> None:
    rig.put(1, text[:900])
    rig.worker.want([1])
    rig.step(512)
    rig.until(lambda: len(rig.worker._x.finished) == 1)
    rig.worker.recall_large()  # nothing is too large yet
    assert rig.worker.has_pieces
    rig.copies[:2] = 1.0, 5.0
    rig.worker.limit_pieces(2.0)
    rig.worker.recall_large()
    rig.granting = 100
    while rig.table.n_past[1] < 899:
        before = int(rig.table.n_past[1])
        rig.until(lambda: bool(rig.worker._x.finished))
        assert rig.worker.land(1) <= 16
        assert rig.table.n_past[1] - before <= 16
    assert rig.worker.tokens_total == 899  # no chunk was computed twice
    rig.assert_right({1: text[:900]})


def test_pieces_are_as_large_as_land_in_time(rig: PacedRig) -> None:
    worker = rig.worker

    def limited(limit_ms: float) -> int:
        worker.limit_pieces(limit_ms)
        return worker._thread.piece_tokens

    assert limited(float("inf")) == PACED_CHUNK
    assert limited(1.0) == prefill_worker.FIRST_PIECE
    rig.copies[[SIZES.index(n) for n in (64, 128, 256)]] = 1.0, 2.0, 5.0
    # 512 was not measured: up to TWICE_AS_LARGE times as long as 256
    expected = {0.1: 64, 1.0: 64, 2.0: 128, 4.9: 128, 5.0: 256, 6.9: 256, 7.1: 512, 1e9: 512}
    assert {limit: limited(limit) for limit in expected} == expected
    # smaller ones would only be more of them, if they take nearly as long
    longer = prefill_worker.HARDLY_LONGER
    rig.copies[[SIZES.index(n) for n in (16, 32, 64)]] = 0.5, 0.49 * longer, 0.51 * longer
    assert limited(0.1) == 32
    rig.copies[1] = 0.51 * longer
    assert limited(0.1) == 16
    assert limited(float("inf")) == PACED_CHUNK


@pytest.mark.parametrize("why", ["nobody came back", "waited for", "nobody streams", "no answer"])
def test_a_chunk_beside_streams_that_is_not_full_waits_for_who_may_come_back(
    rig: PacedRig, text: list[int], why: str
) -> None:
    worker = rig.worker
    rig.put(1, text[:120])
    rig.table.lane[:] = why != "waited for"
    worker._thread._ended_ns = time.monotonic_ns() + 20 * 10**9  # just now, for a long time
    worker._thread._answered = why != "no answer"
    worker.orders.gate.until = OPEN if why == "nobody streams" else time.monotonic_ns() << 1
    worker.want([1])
    if why != "nobody came back":
        assert rig.step(512) == 119
        return
    for _ in range(5):
        rig.grant(512)
        time.sleep(0.02)
    assert worker.orders.grant[0] == 512
    assert worker.tokens_total == worker.orders.turns[0] == 0
    rig.put(2, text[:20])
    rig.table.t_admit_ns[2] = worker._thread._ended_ns + 1
    worker.want([1, 2])
    rig.until(lambda: worker.tokens_total > 0)
    assert worker.tokens_total == 119 + 19
    rig.assert_right({1: text[:120], 2: text[:20]})


def test_it_does_not_wait_for_long_nor_with_a_full_chunk(rig: PacedRig, text: list[int]) -> None:
    worker = rig.worker
    rig.table.lane[:] = 1
    worker.orders.gate.until = time.monotonic_ns() << 1
    rig.put(1, text[:600])
    worker.want([1])
    worker._thread._ended_ns, worker._thread._answered = time.monotonic_ns() + 20 * 10**9, 4
    assert rig.step(400) == 400  # large enough
    worker._thread._answered = 4
    rig.grant(512)
    rig.until(lambda: worker.tokens_total == 599)
    rig.assert_right({1: text[:600]})


def test_how_long_landing_takes_is_measured(rig: PacedRig, text: list[int]) -> None:
    rig.put(1, text[:600])
    rig.worker.want([1])
    for size in (300, 16):
        rig.step(size)
        rig.until(lambda: rig.worker.land(1) > 0)
    assert [size for size, ms in zip(SIZES, rig.copies, strict=True) if ms > 0.0] == [16, 256]
    rig.copies[0] = 1e6
    rig.step(17)
    rig.until(lambda: rig.worker.land(1) > 0)
    assert rig.copies[0] == pytest.approx(0.75e6, rel=0.01)


def test_pieces_beyond_the_backlog_stay_in_their_cells(rig: PacedRig, text: list[int]) -> None:
    rig.worker.limit_pieces(1.0)
    rig.put(1, text[:900])
    rig.worker.want([1])
    assert rig.step(512) == 512
    rig.until(lambda: len(rig.worker._x.finished) == BACKLOG)
    rig.worker.wake()
    time.sleep(0.02)
    assert len(rig.worker._x.finished) == BACKLOG
    rig.assert_right({1: text[:900]})


def test_a_request_that_ends_while_its_chunk_runs(rig: PacedRig, text: list[int]) -> None:
    for turn in range(3):
        rig.put(1, text[turn : turn + 900])
        rig.put(2, text[500:600])
        rig.worker.want([1, 2])
        rig.grant(512)
        rig.until(lambda: rig.worker.busy)
        rig.end(1)
        # the row has another request before the chunk is done
        rig.put(1, text[300:500])
        rig.worker.want([1, 2])
        rig.assert_right({1: text[300:500], 2: text[500:600]})


def test_close_while_a_chunk_runs(model: llama.Model, text: list[int]) -> None:
    rig = PacedRig(model)
    rig.put(1, text[:900])
    rig.worker.want([1])
    rig.grant(512)
    rig.until(lambda: rig.worker.busy)
    rig.worker.close()
    rig.worker.close()
    assert not any(thread.name == "prefill" for thread in threading.enumerate())
    assert rig.worker.tokens_total in (0, 512)
    rig.close()


@pytest.mark.parametrize("when", ["at the gate", "unprepared"])
def test_close_while_the_thread_waits(model: llama.Model, text: list[int], when: str) -> None:
    rig = PacedRig(model, ready=when != "unprepared")
    rig.put(1, text[:900])
    rig.worker.want([1])
    if when == "at the gate":
        rig.park(512)
    closing = threading.Thread(target=rig.worker.close)
    closing.start()
    closing.join(20.0)
    assert not closing.is_alive()
    assert not any(thread.name == "prefill" for thread in threading.enumerate())
    assert rig.worker.tokens_total == 0
    rig.close()
