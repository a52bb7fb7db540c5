"""Workers change who samples a row, never what comes of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from umaserve.engine import rows
from umaserve.engine.messages import Sampling
from umaserve.sampling.params import SLOW, SamplerTable
from umaserve.sampling.sampler import Scratch, sample_rows

N_VOCAB, N_SLOTS, N_CTX = 3000, 16, 64


def test_every_row_has_one_owner():
    for n in range(40):
        for workers in range(1, 8):
            shares = [rows._share.py_func(n, workers, w) for w in range(workers)]
            assert shares[0][0] == 0
            assert all(a[1] == b[0] for a, b in zip(shares, shares[1:], strict=False))
            rest = n - shares[-1][1]
            assert 0 <= rest <= n // (workers + 1) + 1
            assert all(stop - start - rest in (0, 1) for start, stop in shares)


@pytest.mark.parametrize("n_workers", [1, 3])
def test_workers_sample_what_one_thread_does(n_workers):
    rng = np.random.default_rng(3)
    table = SamplerTable(N_SLOTS)
    for slot in range(N_SLOTS):
        table.set(slot, Sampling(seed=slot, top_k=0, temperature=1.0 + slot / 8, logprobs=slot % 4,
                                 repeat_penalty=1.1))  # fmt: skip
    tokens = rng.integers(0, N_VOCAB, (N_SLOTS, N_CTX)).astype(np.int32)
    n_tokens = np.full(N_SLOTS, 20, np.int32)
    n_prompt = np.full(N_SLOTS, 10, np.int32)
    slots = rng.permutation(N_SLOTS).astype(np.int32)
    eog = np.array([1], np.int32)
    addresses = np.zeros(N_SLOTS, np.int64)

    def outputs():
        return (
            np.zeros(N_SLOTS, np.int32),
            np.zeros((N_SLOTS, N_CTX), np.float32),
            np.zeros((N_SLOTS, N_CTX, 20), np.int32),
            np.zeros((N_SLOTS, N_CTX, 20), np.float32),
        )

    scratch = Scratch.allocate(N_VOCAB, N_CTX, 1)
    given = (slots, addresses, N_VOCAB, table.settings, tokens, n_tokens, n_prompt, eog)
    shared = outputs()
    alone_scratch = Scratch.allocate(N_VOCAB, N_CTX, 1)
    nobody = rows.start_pool(0, N_VOCAB, N_CTX, 1, ())
    pool = rows.start_pool(n_workers, N_VOCAB, N_CTX, 1, (*given, None, *shared))
    for n in (1, 11, 12, 13, 15, N_SLOTS):  # 15: all at once
        logits = rng.normal(0, 2, (N_SLOTS, N_VOCAB)).astype(np.float32)
        alone = outputs()
        copy = logits.copy()  # penalties are written into the row
        addresses[:] = [row.ctypes.data for row in copy]
        sample_rows(n, *given, alone_scratch, *alone)
        addresses[:] = [row.ctypes.data for row in logits]
        for array in shared:
            array[...] = 0
        first = n % 5  # in two parts, as a tick with slow rows does
        rows.sample_all(pool, 0, first, *given, scratch, *shared)
        rows.sample_all(pool, first, n - first, *given, scratch, *shared)
        for a, b in zip(alone, shared, strict=True):
            assert (a == b).all()
        counted = rows.take_counts(pool, scratch)
        assert counted == rows.take_counts(nobody, alone_scratch)
        assert 0 <= counted[0] < n and counted[1] > 0  # min-p over all keeps more than a few
        assert rows.take_counts(pool, scratch) == (0, 0)


def test_processor_backends_keep_to_one_thread():
    assert rows.worker_count(False, 64) == 0
    assert rows.worker_count(True, 2) == 0
    assert rows.worker_count(True, 16) == 4
    assert rows.worker_count(True, 128) == rows.MOST_WORKERS


@for_all(st.lists(st.booleans(), max_size=20))
def test_slow_rows_go_last_and_nothing_else_moves(slow):
    n = len(slow)
    table = SamplerTable(20)
    slots = np.random.default_rng(n).permutation(20).astype(np.int32)
    for slot, flag in zip(slots.tolist(), slow, strict=False):
        table.set(slot, Sampling(logprobs=20 if flag else 1))
        assert table.whole[slot, SLOW] == flag
    at = np.arange(100, 120, dtype=np.int32)
    pairs = list(zip(slots.tolist(), at.tolist(), slow, strict=False))
    room = np.zeros((2, 20), np.int32)
    first = rows.slow_last(n, slots, at, table.whole, room[0], room[1])
    wanted = [p[:2] for p in pairs if not p[2]] + [p[:2] for p in pairs if p[2]]
    assert list(zip(slots[:n].tolist(), at[:n].tolist(), strict=True)) == wanted
    assert first == (slow.count(False) or n)
