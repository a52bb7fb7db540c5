"""The parts of a prompt chunk beside the ticks, with the bundled model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from umaserve import llama
from umaserve.engine.native.batch import Batch
from umaserve.engine.prefill import gate as g
from umaserve.policy.cost.model import CHUNK_SIZES, chunk_class

CHUNK = 256
N_CTX = 512
LONG_NS = 10**12  # no slice is so long


class Chunked:
    """A context whose chunks stop at a gate."""

    def __init__(self, model: llama.Model, gated: bool = True) -> None:
        self.model, self.library = model, model.library
        self.gate = g.Gate.zeros()
        hung = g.hang(self.gate, model.library) if gated else {}
        self.context = llama.Context.open(
            model, n_ctx=N_CTX, n_batch=N_CTX, n_ubatch=N_CTX, n_threads=1, op_offload=False, **hung
        )
        self.batch = Batch(model.library.ffi, N_CTX, 1)

    def close(self) -> None:
        self.context.close()

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

    def measure(self, n: int = CHUNK) -> np.ndarray:
        """Learn what the parts of a chunk take; ns of each."""
        for _ in range(2):
            self.decode(n)
        return self.times(n)

    def times(self, n: int = CHUNK) -> np.ndarray:
        return self.gate.times[chunk_class(n)]


@pytest.fixture(scope="module")
def expected(model: llama.Model) -> np.ndarray:
    """The logits of a context without a gate."""
    with Chunked(model, gated=False) as chunked:
        return chunked.decode()


@pytest.fixture
def chunked(model: llama.Model) -> Iterator[Chunked]:
    with Chunked(model) as made:
        yield made


def test_stopping_at_every_part_changes_nothing_and_tells_their_times(
    chunked: Chunked, expected: np.ndarray
) -> None:
    assert (chunked.decode() == expected).all()
    gate, times = chunked.gate, chunked.times()
    parts = int(gate.met)
    assert gate.met == parts > 2 and not gate.gave_up
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
    chunked.gate.stop = 1
    assert (chunked.decode(whole=True) == expected).all()
    gate = chunked.gate
    assert not gate.gave_up and not gate.met
    assert not chunked.times().any()
    assert g.longest_ms(chunked.gate) == g.all_ms(chunked.gate) == 0.0


def test_what_held_a_part_up_once_hardly_counts(chunked: Chunked) -> None:
    times, part = chunked.measure(), 3
    times[part] = known = 1  # so that all of it was held up
    chunked.decode()
    assert known <= times[part] <= known + (g.WILD - 1) * known
    times[part] = LONG_NS
    chunked.decode()
    assert 0 < times[part] < LONG_NS * (1 - 0.9 / g.SOONER)


def test_a_chunk_that_is_given_up_ends_and_the_next_one_is_right(
    chunked: Chunked, expected: np.ndarray
) -> None:
    chunked.decode()
    parts = int(chunked.gate.met)
    chunked.gate.stop = 1
    chunked.decode()
    assert chunked.gate.gave_up and 0 < chunked.gate.met < parts
    chunked.gate.stop = 0
    assert (chunked.decode() == expected).all()
    assert not chunked.gate.gave_up
