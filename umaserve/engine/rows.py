"""Sampling the rows of one tick on several threads, where cores are free.

Beside an accelerator, a row has just come over the bus and lies in no cache: one core pulls it in
at about 20 GB/s, several pull in several rows at once.  On a processor backend the cores belong to
libllama's own threads, and a row that they have just written costs a few microseconds: there, one
thread samples all.

Each worker is a thread inside one compiled function that holds no GIL.  It sleeps in ``read`` on a
pipe of its own; a byte is a job, a byte back is its end.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from umaserve.sampling import counted as c
from umaserve.sampling.params import SLOW
from umaserve.sampling.sampler import Scratch, sample_rows

from .native import call_i64_i32_ptr_i64

FEWEST_ROWS = 12  # below, waking the workers (0.2 ms on an H200 host) costs more than it saves
MOST_WORKERS = 7
TOUCH = -1  # a job of this many rows: the worker touches its scratch
ROWS_IN_PLACE, COPIED_BYTES = c.ROWS_IN_PLACE, c.COPIED_BYTES


class RowPool(NamedTuple):
    """What the ticks know of the workers.  ``job_fds`` and ``done_fds`` int32[n_workers] are the
    ends of the pipes that the ticks use; ``job`` int64[2] first row and number of rows; ``counted``
    int64[n_workers, WIDTH] what each has counted."""

    n_workers: int
    read: int
    write: int
    job: np.ndarray
    byte: np.ndarray
    job_fds: np.ndarray
    done_fds: np.ndarray
    counted: np.ndarray


def worker_count(overlap: bool, cores: int) -> int:
    """None on a processor backend; else up to a quarter of the cores."""
    return min(cores // 4, MOST_WORKERS) if overlap else 0


def start_pool(
    n_workers: int, n_vocab: int, n_ctx: int, n_eog: int, rows: tuple[Any, ...]
) -> RowPool:
    """Start the workers.  ``rows``: what ``sample_rows`` takes after the number of rows, with None
    in the place of the scratch, of which each worker gets its own."""
    libc = ctypes.CDLL(None)
    read = int(ctypes.cast(libc.read, ctypes.c_void_p).value or 0)
    write = int(ctypes.cast(libc.write, ctypes.c_void_p).value or 0)
    pool = RowPool(
        n_workers,
        read,
        write,
        np.zeros(2, np.int64),
        np.zeros(1, np.uint8),
        np.zeros(n_workers, np.int32),
        np.zeros(n_workers, np.int32),
        np.zeros((n_workers, c.WIDTH), np.int64),
    )
    for worker in range(n_workers):
        job_read, pool.job_fds[worker] = os.pipe()
        pool.done_fds[worker], done_write = os.pipe()
        scratch = Scratch.allocate(n_vocab, n_ctx, n_eog, pool.counted[worker])
        arguments = [scratch if value is None else value for value in rows]
        threading.Thread(
            target=_serve,
            args=(worker, pool, job_read, done_write, np.zeros(1, np.uint8), *arguments),
            name=f"sampler {worker}",
            daemon=True,
        ).start()
    return pool


def touch_scratch(pool: RowPool) -> None:
    """Let every worker touch its scratch, which then lies where its core is; between ticks only."""
    pool.job[1] = TOUCH
    for job_fd in pool.job_fds.tolist():
        os.write(job_fd, b"\0")
    for done_fd in pool.done_fds.tolist():
        os.read(done_fd, 1)


@njit(nogil=True, cache=True)
def sample_all(
    pool, first, n, slots, addresses, n_vocab, settings, tokens, n_tokens, n_prompt, eog, work,
    out_tokens, logprob, top_ids, top_logprobs,
):  # fmt: skip
    """``sample_rows`` from row ``first`` on, shared with the workers where it pays."""
    if pool.n_workers == 0 or n < FEWEST_ROWS:
        sample_rows(
            n, slots[first:], addresses[first:], n_vocab, settings, tokens, n_tokens, n_prompt,
            eog, work, out_tokens[first:], logprob, top_ids, top_logprobs,
        )  # fmt: skip
        return
    pool.job[0], pool.job[1] = first, n
    for worker in range(pool.n_workers):
        call_i64_i32_ptr_i64(pool.write, pool.job_fds[worker], pool.byte.ctypes.data, 1)
    end = _share(n, pool.n_workers, pool.n_workers - 1)[1]
    at = first + end
    sample_rows(
        n - end, slots[at:], addresses[at:], n_vocab, settings, tokens, n_tokens, n_prompt, eog,
        work, out_tokens[at:], logprob, top_ids, top_logprobs,
    )  # fmt: skip
    for worker in range(pool.n_workers):
        call_i64_i32_ptr_i64(pool.read, pool.done_fds[worker], pool.byte.ctypes.data, 1)


@njit(nogil=True, cache=True)
def slow_last(n, slots, batch_rows, whole, slow_slots, slow_rows):
    """Move the rows of slow settings behind the others; returns how many come first.

    ``slots`` and ``batch_rows`` int32 are [n] and move alike; within either group the order stays.
    All ``n`` come first where all are slow.  ``slow_slots`` and ``slow_rows``: int32 scratch.
    """
    quick = slow = 0
    for i in range(n):
        if whole[slots[i], SLOW]:
            slow_slots[slow], slow_rows[slow] = slots[i], batch_rows[i]
            slow += 1
        else:
            slots[quick], batch_rows[quick] = slots[i], batch_rows[i]
            quick += 1
    for i in range(slow):
        slots[quick + i], batch_rows[quick + i] = slow_slots[i], slow_rows[i]
    return quick if quick else n


@njit(nogil=True, cache=True)
def take_counts(pool, work):
    """(rows read in place, bytes of logits copied) by all threads since this was last asked."""
    rows, copied = work.counted[ROWS_IN_PLACE], work.counted[COPIED_BYTES]
    work.counted[:] = 0
    for worker in range(pool.n_workers):
        rows += pool.counted[worker, ROWS_IN_PLACE]
        copied += pool.counted[worker, COPIED_BYTES]
        pool.counted[worker, :] = 0
    return rows, copied


@njit(nogil=True, cache=True)
def _share(n, n_workers, worker):
    """Rows ``start:stop`` of a worker; what is left after the last one is the caller's."""
    each = n // (n_workers + 1)
    extra = n - each * (n_workers + 1)
    start = worker * each + min(worker, extra)
    return start, start + each + (1 if worker < extra else 0)


@njit(nogil=True, cache=True)
def _serve(
    worker, pool, job_fd, done_fd, byte, slots, addresses, n_vocab, settings, tokens, n_tokens,
    n_prompt, eog, work, out_tokens, logprob, top_ids, top_logprobs,
):  # fmt: skip
    """The life of one worker: ends when the pipe does, with the process."""
    while call_i64_i32_ptr_i64(pool.read, job_fd, byte.ctypes.data, 1) == 1:
        if pool.job[1] == TOUCH:
            work.ids[:] = 0
            work.values[:] = 0
            work.keys[:] = 0
            work.counts[:] = 0
            work.lengths[:] = 0
            work.original[:] = 0
            work.touched[:] = 0
            call_i64_i32_ptr_i64(pool.write, done_fd, byte.ctypes.data, 1)
            continue
        start, stop = _share(pool.job[1], pool.n_workers, worker)
        at = pool.job[0] + start
        sample_rows(
            stop - start, slots[at:], addresses[at:], n_vocab, settings, tokens, n_tokens,
            n_prompt, eog, work, out_tokens[at:], logprob, top_ids, top_logprobs,
        )  # fmt: skip
        call_i64_i32_ptr_i64(pool.write, done_fd, byte.ctypes.data, 1)
