"""Workers change who samples a row, never what comes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.patches.engine_spies import watched_team
from tests.support.rows_alone import N_CTX, N_VOCAB, same_as_alone
from umaserve import llama
from umaserve.assets import demo_model_path
from umaserve.engine.model.loaded import usable_cores
from umaserve.engine.model.thread_places import find_places
from umaserve.engine.native.batch import Batch
from umaserve.engine.samplers import rows, team_rows
from umaserve.sampling.params import SamplerTable
from umaserve.sampling.sampler import Rows, Scratch


def test_every_row_has_one_owner():
    for n in range(40):
        for workers in range(1, 8):
            shares = [rows.share.py_func(n, workers, w) for w in range(-1, workers)]
            assert shares[0][0] == 0 and shares[-1][1] == n
            assert all(a[1] == b[0] for a, b in zip(shares, shares[1:], strict=False))
            sizes = [stop - start for start, stop in shares]
            assert sorted(sizes, reverse=True) == sizes and sizes[0] - sizes[-1] <= 1


@pytest.mark.parametrize("n_workers", [1, 3, 7])
def test_workers_sample_what_one_thread_does(n_workers):
    same_as_alone(n_workers=n_workers)


@pytest.mark.parametrize("n_threads", [2, 3, 11])
def test_libllamas_threads_sample_what_one_thread_does(n_threads):
    llama.load("cpu")  # with it comes libgomp
    if not find_places({}).parallel:
        pytest.skip("libllama was not built with libgomp here")
    # a process of its own: the teams of a thread stay
    done = subprocess.run(
        [sys.executable, "-c", f"from tests.support.rows_alone import same_as_alone as f\n"
         f"f(n_threads={n_threads})"], capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(usable_cores() < 2, reason="libllama has one thread here, and no team")
def test_an_engine_samples_on_libllamas_threads(tmp_path):
    seen = tmp_path / "rows"
    watched = partial(watched_team, path=str(seen))
    with DrivenEngine(n_threads=2, probe=False, patch=watched) as engine:
        serials = [engine.submit(f"def f{i}():", max_tokens=300) for i in range(3)]
        for serial in serials:
            engine.wait(serial)
        llama.load("cpu")
        if find_places({}).parallel:
            end = time.monotonic() + 30
            while not (seen.exists() and seen.read_text()) and time.monotonic() < end:
                time.sleep(0.02)
            assert json.loads(seen.read_text())[0] >= 2


def test_a_team_of_one_leaves_all_to_the_caller():
    team = team_rows.no_team()
    assert not team_rows.sample_in_team(team, 0, 8)
    team.parallel, team.threads = 1, 1
    assert not team_rows.sample_in_team(team, 0, 8)
    team.threads = 2
    assert not team_rows.sample_in_team(team, 0, 1)


def one_row():
    one, tokens = np.zeros(1, np.int32), np.zeros((1, N_CTX), np.int32)
    return Rows(
        one, np.zeros(1, np.int64), N_VOCAB, SamplerTable(1).settings, tokens, one, one,
        np.array([1], np.int32), one.copy(), np.zeros((1, N_CTX), np.float32),
        np.zeros((1, N_CTX, 20), np.int32), np.zeros((1, N_CTX, 20), np.float32),
    )  # fmt: skip


def test_naps_follow_the_quickest_ticks():
    """A nap that outlasts the rows delays a tick: a quick tick ends it, slow ones hardly count."""
    pool = rows.start_pool(0, N_CTX, one_row())._replace(n_workers=1)
    pool = pool._replace(rooms=np.zeros((2, rows.LINE), np.int64))
    calls, expected = pool.calls, pool.calls.expected_ns

    def took(ns, n=8):
        calls.called_ns = time.monotonic_ns() - ns
        calls.called_rows = n
        rows._learn_when(pool)
        assert calls.called_ns == 0

    s = 1_000_000_000  # so long that nothing which holds the test up matters
    took(500 * s)
    assert 500 * s <= expected[8] < 600 * s
    took(8000 * s, n=9)  # another number of rows
    took(9000 * s)
    assert expected[8] < 600 * s
    took(200 * s)
    assert 200 * s <= expected[8] < 300 * s
    before = int(expected[8])
    for _ in range(10):
        took(9000 * s)
    assert expected[8] == before + 10 * rows.RISE_NS
    rows._learn_when(pool)  # nobody was called
    assert expected[8] == before + 10 * rows.RISE_NS


def test_a_worker_ends_with_its_pipe():
    row = one_row()
    pool = rows.start_pool(0, N_CTX, row)._replace(
        n_workers=1, workers=rows.Worker.several(1),
        rooms=np.zeros((2, rows.LINE), np.int64),
    )  # fmt: skip
    read, write = os.pipe()
    os.close(write)
    scratch = Scratch.allocate(N_VOCAB, N_CTX, 1)
    rows._serve(0, pool, read, np.zeros(1, np.uint8), row, scratch)
    assert pool.workers[0].asleep == 1 and pool.workers[0].done == 0
    os.close(read)


def test_rows_lie_one_behind_the_other_in_the_order_of_the_batch():
    """What the ticks rely on when they ask libllama for the first one's address only."""
    library = llama.load("auto")
    rng = np.random.default_rng(5)
    with llama.Model.open(library, str(demo_model_path())) as model:
        context = llama.Context.open(
            model, n_ctx=512, n_batch=256, n_ubatch=32, n_seq_max=8, n_threads=1
        )
        batch = Batch(library.ffi, 256, 8)
        a, n = batch.arrays, 150  # several ubatches, into which libllama sorts the sequences
        for _ in range(3):
            a.seq[:n] = rng.integers(0, 8, n)
            a.token[:n] = rng.integers(5, 200, n)
            a.logits[:n] = rng.random(n) < 0.3
            for seq in range(8):
                mine = np.flatnonzero(a.seq[:n] == seq)
                a.pos[mine] = np.arange(mine.size)
            a.n_tokens[0] = n
            assert library.lib.uma_decode(context.pointer, batch.struct) == 0
            context.synchronize()
            asked = np.flatnonzero(a.logits[:n])
            found = [library.lib.llama_get_logits_ith(context.pointer, int(i)) for i in asked]
            at = np.array([int(library.ffi.cast("intptr_t", pointer)) for pointer in found])
            assert (at == at[0] + 4 * model.n_vocab * np.arange(asked.size)).all()
            context.seq_rm(-1)
        context.close()


def test_processor_backends_keep_to_one_thread():
    assert rows.worker_count(True, 64) == 0
    assert rows.worker_count(False, 2) == 0
    assert rows.worker_count(False, 1) == 0
    assert rows.worker_count(False, 8) == 3
    assert rows.worker_count(False, 16) == 7
    assert rows.worker_count(False, 128) == rows.MOST_WORKERS
