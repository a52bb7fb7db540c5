"""Rows sampled together and alone."""

from __future__ import annotations

import time

import numpy as np

from umaserve import llama
from umaserve.engine.model.thread_places import find_places
from umaserve.engine.samplers import rows, team_rows
from umaserve.sampling.params import SamplerTable
from umaserve.sampling.sampler import Rows, Scratch, sample_rows
from umaserve.wire.messages import Sampling

N_VOCAB, N_SLOTS, N_CTX = 3000, 16, 64


def same_as_alone(n_workers=0, n_threads=0):
    """By workers, or by a team of libgomp's."""
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
    together = Rows(*given, *shared)
    alone_scratch = Scratch.allocate(N_VOCAB, N_CTX, 1)
    nobody = rows.start_pool(0, N_CTX, together)
    pool = rows.start_pool(n_workers, N_CTX, together)
    if n_threads:
        llama.load("cpu")
        counts = pool.team_counted
        places = find_places({})
        team, scratches = team_rows.make_team(places, n_threads, together, scratch, counts)
        assert len(scratches) == min(n_threads, team_rows.MOST_THREADS) - 1
        team.threads = n_threads
        pool = pool._replace(team=team)
    for turn, n in enumerate((1, 5, 6, 7, 13, 15, N_SLOTS) * 3):  # 15: all at once
        logits = rng.normal(0, 2, (N_SLOTS, N_VOCAB)).astype(np.float32)
        alone = outputs()
        copy = logits.copy()  # penalties are written into the row
        addresses[:] = [row.ctypes.data for row in copy]
        sample_rows(0, n, Rows(*given, *alone), alone_scratch)
        addresses[:] = [row.ctypes.data for row in logits]
        for array in shared:
            array[...] = 0
        first = n % 5  # in two parts, as a tick with drafts does
        if turn % 3 != 1:
            rows.call_workers(pool, n)  # some jobs come without a call, and some when all sleep
        time.sleep((0.0, 0.002, 0.02)[turn // 7])
        rows.sample_all(pool, 0, first, together, scratch)
        rows.sample_all(pool, first, n - first, together, scratch)
        for a, b in zip(alone, shared, strict=True):
            assert (a == b).all()
        if n_threads and n == N_SLOTS:
            assert counts[: min(n_threads, 8) - 1].any(axis=1).all()  # each had a part
        counted = rows.take_counts(pool, scratch)
        assert counted == rows.take_counts(nobody, alone_scratch)
        assert 0 <= counted[0] < n and counted[1] > 0  # min-p over all keeps more than a few
        assert rows.take_counts(pool, scratch) == (0, 0)
