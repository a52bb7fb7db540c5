"""A chunk that the loop computes part by part on a stack of its own: what is known of its parts."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest

from umaserve import llama
from umaserve.engine.native.batch import Batch
from umaserve.engine.native.calls import Native
from umaserve.engine.prefill import gate as g
from umaserve.engine.prefill.chunk_stack import (
    ChunkStack,
    choose_owner,
    hand_over,
    next_part_ms,
    next_part_tokens,
    run_parts,
)
from umaserve.policy.cost.model import chunk_class

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="swapcontext is used with the GNU C library only"
)
TOKENS, COUNTS_AS = 40, 48
LONG_NS = 10**12  # no slice is so long


class Stacked:
    """A context whose chunks the test computes, as the loop does."""

    def __init__(self, model: llama.Model) -> None:
        self.lib, self.n_vocab = model.library.lib, model.n_vocab
        self.gate, self.pipe = g.Gate.zeros(), os.pipe()
        self.stack = ChunkStack(self.gate, model.library)
        self.context = llama.Context.open(
            model, n_ctx=256, n_batch=128, n_ubatch=128, n_threads=1,
            **g.hang(self.gate, model.library, model.n_vocab),
        )  # fmt: skip
        self.batch = Batch(model.library.ffi, 128, 1)
        arrays, address = self.batch.arrays, model.library.ffi.cast
        arrays.token[:TOKENS] = 1 + (7919 * np.arange(1, TOKENS + 1)) % (self.n_vocab - 1)
        arrays.pos[:TOKENS] = np.arange(TOKENS)
        arrays.logits[:TOKENS], arrays.logits[TOKENS - 1] = 0, 1
        arrays.n_tokens[0] = TOKENS
        pointers = self.context.pointer, self.batch.struct
        self.addresses = [int(address("intptr_t", pointer)) for pointer in pointers]
        self.native = Native.of(model.library, self.context.pointer, self.batch.struct, -1, [])

    def close(self) -> None:
        self.context.close()
        for fd in self.pipe:
            os.close(fd)

    def begin(self) -> None:
        self.context.seq_rm(-1)
        self.gate.stop = 0
        g.begin_chunk(self.gate, TOKENS)
        hand_over(self.gate, *self.addresses)

    def one_part(self) -> None:
        """The next part, whatever it takes; the first time up to where the first one begins."""
        self.gate.since = time.monotonic_ns() - 2 * g.STARVED_NS
        run_parts(self.gate, self.native, 0, self.pipe[1])

    def logits(self) -> np.ndarray:
        row = self.lib.llama_get_logits_ith(self.context.pointer, TOKENS - 1)
        size = 4 * self.n_vocab
        return np.frombuffer(self.context.model.library.ffi.buffer(row, size), np.float32).copy()


@pytest.fixture
def stacked(model) -> Iterator[Stacked]:
    made = Stacked(model)
    yield made
    made.close()


def told(stacked: Stacked) -> list[tuple[int, float, int]]:
    """(tokens, ms of the next part, ns of the longest so far) at each stop of a chunk."""
    out = []
    stacked.begin()
    while stacked.gate.owner != g.DONE:
        stacked.one_part()
        gate = stacked.gate
        out.append((next_part_tokens(gate), next_part_ms(gate), int(gate.longest)))
    assert stacked.gate.status == 0
    return out


def test_the_longest_part_is_known_before_the_chunk_ends_but_for_that_of_the_logits(stacked):
    told(stacked)
    parts, times = int(stacked.gate.met), stacked.gate.times[chunk_class(TOKENS)]
    times[:parts] = 1000
    times[parts // 2] = 7_000_000
    times[parts - 1] = LONG_NS  # logits, at a prompt's end only
    stops = told(stacked)[1:-1]  # it has not begun at the first one, and has ended at the last
    assert [tokens for tokens, *_ in stops] == [COUNTS_AS] * (parts - 1) + [0]
    assert stops[-1][1] == LONG_NS / 1e6
    assert [longest for *_, longest in stops[1:]] == [
        1000 if i < parts // 2 else 7_000_000 for i in range(1, parts)
    ]


@pytest.mark.parametrize("redo", [False, True])
def test_a_chunk_that_is_to_be_put_together_again_is_given_up(stacked, redo):
    told(stacked)
    expected = stacked.logits()
    stacked.begin()
    for _ in range(5):
        stacked.one_part()
    choose_owner(stacked.gate, 0, True, True, redo, stacked.native, stacked.pipe[1])
    if redo:
        gate = stacked.gate
        assert (gate.owner, gate.gave_up, gate.redo) == (g.DONE, 1, 1)
        assert next_part_tokens(stacked.gate) == 0
        told(stacked)  # the next one is none the worse
    else:
        while stacked.gate.owner != g.DONE:
            stacked.one_part()
    assert not stacked.gate.redo
    assert np.array_equal(stacked.logits(), expected)


def test_what_grows_beyond_the_stack_is_a_fault_and_no_damage(model: llama.Model) -> None:
    stacked = Stacked(model)
    words = (ctypes.c_int64 * 8).from_address(int(stacked.gate.there))
    bottom = f"{words[2]:x}"  # uc_stack.ss_sp
    with open("/proc/self/maps") as maps:
        guard = [fields for fields in map(str.split, maps) if fields[0].endswith(f"-{bottom}")]
    assert len(guard) == 1 and guard[0][1].startswith("---")
    first, last = (int(number, 16) for number in guard[0][0].split("-"))
    assert last - first >= 64 << 10
    stacked.close()

