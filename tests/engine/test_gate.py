"""Where a prompt chunk beside the ticks stops and goes on, with the bundled model."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from tests.support import waiting
from umaserve import llama
from umaserve.engine.native.batch import Batch
from umaserve.engine.native.calls import Native
from umaserve.engine.prefill import gate as g
from umaserve.engine.prefill.chunk_stack import next_part_ms
from umaserve.policy.cost.model import CHUNK_SIZES, chunk_class

CHUNK = 256
N_CTX = 512
LONG_NS = 10**12  # no slice is so long
PATIENCE_S = 20.0
until = partial(waiting.until, timeout=PATIENCE_S)


class Chunked:
    """A context whose chunks stop at a gate, a thread for them, and the loop's side of both."""

    def __init__(self, model: llama.Model, gated: bool = True) -> None:
        self.model, self.library = model, model.library
        self.gate, self.turns = g.new_gate(), np.zeros(1, np.int64)
        self.wake_read, self.wake_write = os.pipe()
        self.poll_read, self.poll_write = os.pipe()
        hung = g.hang(self.gate, model.library, self.wake_read) if gated else {}
        self.context = llama.Context.open(
            model, n_ctx=N_CTX, n_batch=N_CTX, n_ubatch=N_CTX, n_threads=1, op_offload=False, **hung
        )
        self.batch = Batch(model.library.ffi, N_CTX, 1)
        self.native = Native.of(
            model.library, self.context.pointer, self.batch.struct, -1, [self.poll_read]
        )
        self.thread = threading.Thread()
        self.logits = np.zeros(0)

    def close(self) -> None:
        self.gate.stop = 1
        if self.thread.is_alive():
            self.thread.join()
        self.context.close()
        for fd in (self.wake_read, self.wake_write, self.poll_read, self.poll_write):
            os.close(fd)

    def __enter__(self) -> Chunked:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def decode(self, n: int = CHUNK, whole: bool = False) -> np.ndarray:
        """A prompt's first chunk from the start; the last token's logits."""
        self.context.seq_rm(-1)
        arrays = self.batch.arrays
        arrays.token[:n] = 1 + (7919 * np.arange(1, n + 1)) % (self.model.n_vocab - 1)
        arrays.pos[:n] = np.arange(n)
        arrays.seq[:n] = arrays.logits[:n] = 0
        arrays.logits[n - 1] = 1
        arrays.n_tokens[0] = n
        g.begin_chunk(self.gate, n, whole)
        lib = self.library.lib
        assert lib.uma_decode(self.context.pointer, self.batch.struct) == 0
        self.context.synchronize()
        if self.gate.gave_up:
            return np.zeros(0)
        row = lib.llama_get_logits_ith(self.context.pointer, n - 1)
        return np.frombuffer(
            self.library.ffi.buffer(row, 4 * self.model.n_vocab), np.float32
        ).copy()

    def begin(self, n: int = CHUNK) -> None:
        """The same in a thread, as the prefill worker has one."""
        assert not self.thread.is_alive()

        def run() -> None:
            self.logits = self.decode(n)
            self.turns[0] += 1

        g.begin_chunk(self.gate, n)  # nobody shall see what is left of the one before
        self.turns[0] += 1
        self.thread = threading.Thread(target=run)
        self.thread.start()

    def measure(self, n: int = CHUNK) -> np.ndarray:
        """Learn what the parts of a chunk take; ns of each."""
        self.gate.measure = 1
        for _ in range(2):
            self.decode(n)
        self.gate.measure = 0
        return self.times(n)

    def times(self, n: int = CHUNK) -> np.ndarray:
        return self.gate.times[chunk_class(n)]

    def closed(self) -> None:
        """Begin a chunk in front of a closed gate."""
        self.set(0)
        self.begin()
        until(lambda: self.gate.parked)

    def set(self, until_ns: int) -> None:
        g.set_gate(self.gate, until_ns, self.native, self.wake_write)

    def let_through(self, ms: float) -> int:
        now = time.monotonic_ns()
        return int(
            g.let_through(
                self.gate, self.turns, now, now + int(ms * 1e6), self.native, self.wake_write
            )
        )

    def finish(self) -> np.ndarray:
        self.set(g.OPEN)
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        return self.logits

    def woken(self) -> bool:
        """Whether a byte lies in the pipe of the chunk's thread."""
        return bool(select.select([self.wake_read], [], [], 0)[0])


@pytest.fixture(scope="module")
def expected(model: llama.Model) -> np.ndarray:
    """The logits of a context without a gate."""
    with Chunked(model, gated=False) as chunked:
        return chunked.decode()


@pytest.fixture
def chunked(model: llama.Model) -> Iterator[Chunked]:
    with Chunked(model) as made:
        yield made


def test_an_open_gate_changes_nothing(chunked: Chunked, expected: np.ndarray) -> None:
    assert (chunked.decode() == expected).all()
    # a few products at a time, of which no single one's time is known
    assert chunked.gate.coarse > 0 and chunked.gate.met > g.EACH
    assert g.longest_ms(chunked.gate) == 0.0
    assert not chunked.gate.parked and not chunked.gate.gave_up


def test_stopping_at_every_part_changes_nothing_and_tells_their_times(
    chunked: Chunked, expected: np.ndarray
) -> None:
    chunked.decode()
    parts = int(chunked.gate.met)
    assert not chunked.times()[:parts].all()
    chunked.gate.measure = 1
    assert (chunked.decode() == expected).all()
    gate = chunked.gate
    assert (gate.met, gate.computed, gate.coarse) == (parts, parts, 0)
    times = chunked.times()
    assert (times[:parts] > 0).all() and not times[parts:].any()
    # the first part is for the most part copying, the last one may make logits
    assert g.longest_ms(chunked.gate) == times[1 : parts - 1].max() / 1e6
    assert g.all_ms(chunked.gate) == times[:parts].sum() / 1e6
    # what chunks of another class take is apart
    others = [size for size in CHUNK_SIZES.tolist() if size != CHUNK]
    assert not any(chunked.times(size).any() for size in others)
    chunked.decode(16)
    assert chunked.times(16).any() and (chunked.times()[:parts] > 0).all()
    g.forget_times(chunked.gate, CHUNK)
    assert chunked.times(16).any() and not chunked.times().any()


def test_a_whole_chunk_stops_for_nobody_and_tells_no_times(
    chunked: Chunked, expected: np.ndarray
) -> None:
    chunked.set(0)
    chunked.gate.stop = 1
    assert (chunked.decode(whole=True) == expected).all()
    gate = chunked.gate
    assert not gate.parked and not gate.gave_up and not gate.met
    assert not chunked.times().any()
    assert g.longest_ms(chunked.gate) == g.all_ms(chunked.gate) == 0.0


def test_what_held_a_part_up_once_hardly_counts(chunked: Chunked) -> None:
    times, part = chunked.measure(), 3
    times[part] = known = 1  # so that all of it was held up
    chunked.gate.measure = 1
    chunked.decode()
    assert known <= times[part] <= known + (g.WILD - 1) * known
    times[part] = LONG_NS
    chunked.decode()
    assert 0 < times[part] < LONG_NS * (1 - 0.9 / g.SOONER)


def test_a_closed_gate_holds_a_chunk_until_it_opens(chunked: Chunked, expected: np.ndarray) -> None:
    chunked.closed()
    at = int(chunked.gate.met)
    time.sleep(0.1)
    assert chunked.thread.is_alive()
    gate = chunked.gate
    assert (gate.parked, gate.met, gate.computed, gate.seen) == (1, at, 0, 0)
    assert (chunked.finish() == expected).all()
    assert not chunked.gate.parked


def test_a_gate_that_closes_holds_a_chunk_in_its_middle(
    chunked: Chunked, expected: np.ndarray
) -> None:
    chunked.decode()
    parts = int(chunked.gate.met)
    for _ in range(10):  # on a busy machine a chunk may be over before it is looked at
        chunked.begin()
        until(lambda: chunked.gate.met >= g.EACH or chunked.turns[0] % 2 == 0)
        chunked.set(0)
        until(lambda: chunked.gate.parked or chunked.turns[0] % 2 == 0)
        held = bool(chunked.gate.parked)
        assert not held or 0 < chunked.gate.computed < parts
        assert (chunked.finish() == expected).all()
        if held:
            return
    raise AssertionError("the gate never closed in the middle")


def test_slices_let_some_parts_through(chunked: Chunked, expected: np.ndarray) -> None:
    slice_ms = chunked.measure().sum() / 1e6 / 8
    chunked.closed()
    assert chunked.gate.computed == 0
    slices, reached = 0, {0}
    end = time.monotonic() + PATIENCE_S
    while chunked.turns[0] % 2:
        assert time.monotonic() < end
        returned = chunked.let_through(slice_ms)
        assert chunked.gate.until == 0
        assert returned <= time.monotonic_ns()
        slices += 1
        until(lambda: chunked.gate.parked or chunked.turns[0] % 2 == 0)
        at = int(chunked.gate.computed)
        assert at >= max(reached)
        reached.add(at)
    assert slices > 2 and len(reached) > 2
    chunked.thread.join()
    assert (chunked.logits == expected).all()
    # with no chunk there is nothing to wait for
    began = time.monotonic()
    chunked.let_through(1000.0 * PATIENCE_S)
    assert time.monotonic() - began < PATIENCE_S / 2
    assert chunked.gate.until == 0


def test_a_slice_ends_with_the_chunk(chunked: Chunked, expected: np.ndarray) -> None:
    chunked.closed()
    began = time.monotonic()
    while chunked.turns[0] % 2:  # once is enough, unless the thread is late
        chunked.let_through(1000.0 * PATIENCE_S)
        assert time.monotonic() - began < PATIENCE_S
    chunked.thread.join()
    assert (chunked.logits == expected).all()
    assert chunked.gate.until == 0


def test_a_graph_that_is_still_put_together_is_not_waited_for(chunked: Chunked) -> None:
    """Nothing of it is on the device yet, so the tick goes on when the slice is over."""
    slice_ms = 300.0
    g.begin_chunk(chunked.gate, CHUNK)
    chunked.turns[0] += 1  # it has begun, and reached no part so far
    began = time.monotonic_ns()
    returned = chunked.let_through(slice_ms)
    chunked.turns[0] += 1
    # a part in flight would be waited for twice as long
    assert slice_ms <= (returned - began) / 1e6 < 1.8 * slice_ms
    assert chunked.gate.until == 0


def test_a_slice_ends_when_somebody_has_something_for_the_loop(
    chunked: Chunked, expected: np.ndarray
) -> None:
    os.write(chunked.poll_write, b"x")
    for _ in range(10):  # on a busy machine a chunk may be over before it is looked at
        chunked.set(0)
        chunked.begin()
        until(lambda: chunked.gate.parked)
        began = time.monotonic()
        chunked.let_through(1000.0 * PATIENCE_S)
        assert time.monotonic() - began < PATIENCE_S / 2
        assert chunked.gate.until == 0
        in_its_middle = chunked.turns[0] % 2
        assert (chunked.finish() == expected).all()
        if in_its_middle:
            return
    raise AssertionError("it always waited for the chunk")


def test_a_part_that_is_too_long_goes_on_when_it_has_waited_long(
    chunked: Chunked, expected: np.ndarray
) -> None:
    chunked.times()[:] = LONG_NS
    chunked.closed()
    end = time.monotonic() + PATIENCE_S
    while not chunked.gate.computed:  # the first is copying, and never too long
        assert time.monotonic() < end
        chunked.let_through(20.0)
    until(lambda: chunked.gate.parked)
    assert chunked.gate.computed == 1
    began = time.monotonic_ns()
    while chunked.gate.computed == 1:
        assert time.monotonic() < end
        chunked.let_through(20.0)
        assert chunked.turns[0] % 2  # and only that one
    assert time.monotonic_ns() - began > 0.8 * g.STARVED_NS
    assert chunked.gate.computed == 2
    assert chunked.times()[1] < LONG_NS == chunked.times()[2]
    assert (chunked.finish() == expected).all()


def in_front_of_a_long_part(chunked: Chunked) -> None:
    """The chunk's first part is done, and the next one fits no slice."""
    chunked.times()[:] = LONG_NS
    chunked.closed()
    end = time.monotonic() + PATIENCE_S
    while not chunked.gate.computed:
        assert time.monotonic() < end
        chunked.let_through(20.0)
    until(lambda: chunked.gate.parked)


def test_what_the_next_part_takes_is_told_while_it_waits(chunked: Chunked) -> None:
    assert next_part_ms(chunked.gate) == 0.0
    in_front_of_a_long_part(chunked)
    assert next_part_ms(chunked.gate) >= LONG_NS / 1e6
    chunked.finish()
    assert next_part_ms(chunked.gate) == 0.0


def test_it_includes_what_of_a_slice_is_over_when_the_chunk_sees_it(chunked: Chunked) -> None:
    """Else a part that came late for that, slice after slice, would seem to fit all of them."""
    in_front_of_a_long_part(chunked)
    late_ns = 10**9
    os.write(chunked.poll_write, b"x")  # which ends the slice
    for i in range(30):
        now = time.monotonic_ns()
        end = now + int(PATIENCE_S * 1e9) + i
        g.let_through(
            chunked.gate, chunked.turns, now - late_ns, end, chunked.native, chunked.wake_write
        )
        chunked.set(end + 100)
        until(lambda end=end: chunked.gate.seen == end + 100)
        chunked.set(0)
    assert next_part_ms(chunked.gate) >= (LONG_NS + 0.9 * late_ns) / 1e6
    chunked.finish()


def test_slices_that_are_over_before_a_chunk_sees_them_count_as_late(chunked: Chunked) -> None:
    """Else its first part, which takes nothing, would seem to fit into them for ever."""
    chunked.closed()
    assert chunked.gate.computed == 0 == chunked.gate.late
    slice_ns, end = 20_000, time.monotonic() + PATIENCE_S
    while next_part_ms(chunked.gate) * 1e6 <= slice_ns:
        assert time.monotonic() < end
        now = time.monotonic_ns()  # the loop comes to it when it is over
        g.let_through(
            chunked.gate, chunked.turns, now - 2 * slice_ns, now - slice_ns, chunked.native,
            chunked.wake_write,
        )  # fmt: skip
        assert chunked.gate.computed == 0
    # no more than twice as much, however long a thread is held up
    assert chunked.gate.late <= 2 * slice_ns
    end = time.monotonic() + PATIENCE_S
    while not chunked.gate.computed:
        assert time.monotonic() < end
        chunked.let_through(20.0)
    chunked.finish()


def test_a_chunk_that_sees_a_slice_too_late_learns_so(chunked: Chunked) -> None:
    chunked.closed()
    slice_ns, now = 1_000_000, time.monotonic_ns()
    chunked.gate.slice_began = now - 10 * slice_ns
    chunked.set(now - 9 * slice_ns)
    until(lambda: chunked.gate.seen == now - 9 * slice_ns)
    assert chunked.gate.late == 2 * slice_ns // g.LATER
    chunked.finish()


@pytest.mark.parametrize("parked", [0, 1])
def test_the_loop_learns_of_a_slice_that_nobody_saw(chunked: Chunked, parked: int) -> None:
    """Unless the chunk is still put together, and could not have seen it."""
    g.begin_chunk(chunked.gate, CHUNK)
    chunked.turns[0] += 1  # it has begun, and nobody is there to see anything
    chunked.gate.parked = parked
    slice_ns, now = 1_000_000, time.monotonic_ns()
    g.let_through(
        chunked.gate, chunked.turns, now - 2 * slice_ns, now - slice_ns, chunked.native,
        chunked.wake_write,
    )  # fmt: skip
    chunked.turns[0] += 1
    assert chunked.gate.late == parked * 2 * slice_ns // g.LATER


def test_after_a_slice_that_was_too_short_a_chunk_stays_awake_for_the_next(
    chunked: Chunked,
) -> None:
    chunked.gate.spin = 0
    in_front_of_a_long_part(chunked)
    os.write(chunked.wake_write, b"x")
    until(lambda: not chunked.woken())  # one that sleeps takes it
    chunked.gate.spin = 10**9  # ns; it stays awake for ten times as long
    for _ in range(2):
        end = time.monotonic_ns() + int(PATIENCE_S * 1e9)
        chunked.set(end)
        until(lambda end=end: chunked.gate.seen == end)
        chunked.set(0)
    assert chunked.woken()
    chunked.finish()


@pytest.mark.parametrize("parked", [True, False])
def test_a_chunk_that_is_given_up_ends_and_the_next_one_is_right(
    chunked: Chunked, expected: np.ndarray, parked: bool
) -> None:
    chunked.decode()
    parts = int(chunked.gate.met)
    if parked:
        chunked.closed()
        chunked.gate.stop = 1
    else:
        chunked.set(0)
        chunked.gate.stop = 1
        chunked.begin()
    chunked.thread.join(PATIENCE_S)
    assert not chunked.thread.is_alive()
    assert (chunked.gate.gave_up, chunked.gate.parked) == (1, 0)
    assert 0 < chunked.gate.computed < parts
    chunked.gate.stop = 0
    chunked.set(g.OPEN)
    assert (chunked.decode() == expected).all()
    assert not chunked.gate.gave_up


def test_who_sleeps_at_the_gate_is_woken_through_the_pipe(
    chunked: Chunked, expected: np.ndarray
) -> None:
    chunked.gate.spin = 0
    chunked.closed()
    os.write(chunked.wake_write, b"x")
    until(lambda: not chunked.woken())  # that ended its sleep, though the gate is closed
    assert chunked.gate.parked and chunked.thread.is_alive()
    assert (chunked.finish() == expected).all()


def test_only_who_waits_is_woken_and_only_when_the_gate_opens(chunked: Chunked) -> None:
    far = time.monotonic_ns() + 10**12
    for until_ns in (0, far, g.OPEN, 0):
        chunked.set(until_ns)
        assert chunked.gate.until == until_ns
    assert not chunked.woken()
    # no thread: one that looks at the gate may be gone before the loop asks whether it waits
    chunked.gate.parked = 1
    chunked.set(0)  # as it is
    assert not chunked.woken()
    for until_ns in (far, g.OPEN):
        chunked.set(until_ns)
        assert os.read(chunked.wake_read, 8) == b"\0"
        assert not chunked.woken()
        chunked.set(0)
        assert not chunked.woken()
    chunked.gate.parked = 0
    chunked.set(g.OPEN)
    assert not chunked.woken()
