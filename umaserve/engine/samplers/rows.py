"""Sampling the rows of one tick on several threads, where cores are free.

With an accelerator, a row has just come over the bus and lies in no cache.  One core pulls it in
at about 20 GB/s, several pull in several rows at once.  On a processor backend the cores belong to
libllama's own threads, and these sample (`team_rows`), where libllama was built with libgomp.

Each worker is a thread inside one compiled function that holds no GIL.  It sleeps in ``read`` on a
pipe of its own, and waking it takes longer than its share of the rows.  So the workers are called
when a tick was submitted.  Each naps until shortly before the rows are expected and watches a
counter from then on.  No lock is taken.  A worker marks itself asleep before its last check for a
job.  The ticks publish a job before they check which workers are asleep.

Long: both sides of the hand-over between the loop and its samplers.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import NamedTuple

import numpy as np

from umaserve.engine.native.calls import (
    address_in,
    all_first,
    call_i32_ptr_ptr,
    call_i64_i32_ptr_i64,
    clock_ns,
)
from umaserve.jit.compiled import INNER, njit
from umaserve.jit.record import Record, ints
from umaserve.sampling import counted as c
from umaserve.sampling.sampler import Rows, Scratch, sample_rows

from .team_rows import MOST_THREADS, Team, no_team, sample_in_team, share

FEWEST_ROWS = 6  # below, one thread is done before several have told each other
MOST_WORKERS = 7
ROWS_EACH = 4  # a worker for so many: more of them cost more of their cores' time than they save
LEAD_NS = 200_000  # so long before the rows a nap ends: it lasts longer than asked for
PATIENCE_NS = 300_000  # so long after that a worker watches; then it sleeps until it is woken
SPINS = 4000  # looks at a worker that is not done (0.1 ms) after which the caller naps in between
NAP_NS = 20_000

PARTS = 256
ROWS = 64
RISE_NS = 10_000  # a nap that is too long delays a tick, one that is too short costs a core's time
LINE = 8  # int64 of a cache line
ROWS_IN_PLACE, COPIED_BYTES = c.ROWS_IN_PLACE, c.COPIED_BYTES


class Calls(Record):
    """Jobs and calls that the ticks publish to the workers.

    Fields that are written together have a cache line of their own.
    """

    given: int  # jobs given out, times PARTS, plus the number of workers for the last job
    rest_of_line: np.ndarray = ints(LINE - 1)
    called: int  # calls made, times PARTS, plus the number of workers for the last call
    called_ns: int  # time of the last call; 0 = answered
    called_rows: int  # rows of the last call
    rest_of_next: np.ndarray = ints(LINE - 3)
    expected_ns: np.ndarray = ints(ROWS)  # least time until so many rows come; 0 = not known


class Worker(Record):
    """State that a worker publishes to the ticks, on a cache line of its own."""

    done: int  # ``Calls.given`` of the last job that the worker has done
    asleep: int
    rest_of_line: np.ndarray = ints(LINE - 2)


class RowPool(NamedTuple):
    """Arrays and functions by which the ticks use the workers.

    - ``read`` to ``clock``: addresses of libc's functions.
    - ``job`` int64[2]: first row and number of rows.
    - ``job_fds`` int32[n_workers]: the ends of pipes to write to, which wake the workers.
    - ``calls``: written by the ticks only.
    - ``workers`` Worker[n_workers]: written by each worker.
    - ``rooms`` int64[n_workers + 1, LINE]: a ``struct timespec`` for each worker and the caller.
    - ``counted`` int64[n_workers, WIDTH]: counters of each worker.
    - ``team``: made by `team_rows`.  ``team_counted``: counters of its threads.
    """

    n_workers: int
    read: int
    write: int
    nap: int
    clock: int
    job: np.ndarray
    byte: np.ndarray
    job_fds: np.ndarray
    calls: Calls
    workers: np.ndarray
    rooms: np.ndarray
    counted: np.ndarray
    team: Team
    team_counted: np.ndarray


def worker_count(on_processor: bool, cores: int) -> int:
    """None where decodes need the cores themselves; else some half of these."""
    return 0 if on_processor else max(min(cores // 2 - 1, MOST_WORKERS), 0)


def start_pool(n_workers: int, n_ctx: int, rows: Rows) -> RowPool:
    """Start the workers: they sample ``rows`` for as long as the process lives.

    Each gets a scratch of its own, for histories of up to ``n_ctx`` tokens.
    """
    libc = ctypes.CDLL(None)
    pool = RowPool(
        n_workers,
        address_in(libc, "read"),
        address_in(libc, "write"),
        address_in(libc, "nanosleep"),
        address_in(libc, "clock_gettime"),
        np.zeros(2, np.int64),
        np.zeros(1, np.uint8),
        np.zeros(n_workers, np.int32),
        Calls.zeros(),
        Worker.several(n_workers),
        np.zeros((n_workers + 1, LINE), np.int64),
        np.zeros((n_workers, c.WIDTH), np.int64),
        no_team(),
        np.zeros((MOST_THREADS - 1, c.WIDTH), np.int64),
    )
    for worker in range(n_workers):
        job_read, pool.job_fds[worker] = os.pipe()
        scratch = Scratch.allocate(rows.n_vocab, n_ctx, rows.eog.size, pool.counted[worker])
        threading.Thread(
            target=_serve,
            args=(worker, pool, job_read, np.zeros(1, np.uint8), rows, scratch),
            name=f"sampler {worker}",
            daemon=True,
        ).start()
    return pool


@njit(nogil=True, cache=True)
def call_workers(pool, n):
    """A tick with ``n`` rows was submitted: be awake when they are there."""
    if pool.n_workers == 0 or n < FEWEST_ROWS:
        return
    pool.calls.called_ns = _now(pool, pool.n_workers)
    pool.calls.called_rows = min(n, ROWS - 1)
    all_first()  # a worker that sees the call sees when it was
    parts = _workers_for(pool.n_workers, n)
    pool.calls.called = _next(pool.calls.called, parts)
    _wake(pool, parts)


@njit(nogil=True, cache=True)
def sample_all(pool, first, n, rows, work):
    """``sample_rows``, shared with the workers where it pays; ``work`` is the caller's scratch."""
    if sample_in_team(pool.team, first, n):
        return
    if pool.n_workers == 0 or n < FEWEST_ROWS:
        sample_rows(first, n, rows, work)
        return
    _learn_when(pool)
    parts = _workers_for(pool.n_workers, n)
    _give(pool, first, n, parts)
    sample_rows(first, share(n, parts, -1)[1], rows, work)
    _wait(pool, parts)


@njit(nogil=True, cache=True)
def take_counts(pool, work):
    """(rows read in place, bytes of logits copied) by all threads since this was last asked."""
    rows, copied = work.counted[ROWS_IN_PLACE], work.counted[COPIED_BYTES]
    work.counted[:] = 0
    for worker in range(pool.n_workers):
        rows += pool.counted[worker, ROWS_IN_PLACE]
        copied += pool.counted[worker, COPIED_BYTES]
        pool.counted[worker, :] = 0
    for thread in range(pool.team_counted.shape[0]):
        rows += pool.team_counted[thread, ROWS_IN_PLACE]
        copied += pool.team_counted[thread, COPIED_BYTES]
        pool.team_counted[thread, :] = 0
    return rows, copied


@njit(**INNER)
def _now(pool, worker):
    """Monotonic ns; ``n_workers`` stands for the caller."""
    return clock_ns(pool.clock, pool.rooms[worker])


@njit(**INNER)
def _nap(pool, worker, ns):
    room = pool.rooms[worker]
    room[0], room[1] = ns // 1_000_000_000, ns % 1_000_000_000
    call_i32_ptr_ptr(pool.nap, room.ctypes.data, 0)


@njit(**INNER)
def _workers_for(n_workers, n):
    return min(n_workers, n // ROWS_EACH)


@njit(**INNER)
def _next(word, parts):
    return (word // PARTS + 1) * PARTS + parts


@njit(**INNER)
def _wake(pool, parts):
    """Wake who sleeps, after what they are woken for was said."""
    all_first()
    for worker in range(parts):
        if pool.workers[worker].asleep:
            call_i64_i32_ptr_i64(pool.write, pool.job_fds[worker], pool.byte.ctypes.data, 1)


@njit(**INNER)
def _give(pool, first, n, parts):
    """A job for the first ``parts`` workers; it stays as it is until they are done."""
    pool.job[0], pool.job[1] = first, n
    all_first()
    pool.calls.given = _next(pool.calls.given, parts)
    _wake(pool, parts)


@njit(nogil=True, cache=True)
def _learn_when(pool):
    """The rows of the last call are there: how long they take to come, at least."""
    calls = pool.calls
    if calls.called_ns == 0:
        return
    took = _now(pool, pool.n_workers) - calls.called_ns
    calls.called_ns = 0
    at = calls.called_rows
    known = calls.expected_ns[at]
    calls.expected_ns[at] = took if known == 0 else min(took, known + RISE_NS)


@njit(**INNER)
def _wait(pool, parts):
    """Until the first ``parts`` workers are done."""
    looks = 0
    for worker in range(parts):
        while pool.workers[worker].done != pool.calls.given:
            looks += 1
            if looks < SPINS:
                _now(pool, pool.n_workers)  # a call, so that memory is looked at again
            else:
                _nap(pool, pool.n_workers, NAP_NS)
    all_first()


@njit(**INNER)
def _watch(pool, worker, seen):
    """Nap until a job is expected, then look for it without sleeping, for a while."""
    calls = pool.calls
    expected = calls.called_ns + calls.expected_ns[calls.called_rows]
    now = _now(pool, worker)
    if expected - LEAD_NS > now:
        _nap(pool, worker, min(expected - LEAD_NS - now, 1_000_000_000))
    while calls.given == seen and _now(pool, worker) < expected + PATIENCE_NS:
        pass


@njit(nogil=True, cache=True)
def _serve(worker, pool, job_fd, byte, rows, work):
    """The life of one worker: ends when the pipe does, with the process."""
    calls, state = pool.calls, pool.workers[worker]
    seen = called = 0
    while True:
        state.asleep = 1
        all_first()
        while calls.given == seen and calls.called == called:
            # a byte that nobody waited for any more wakes it once too often, which does no harm
            if call_i64_i32_ptr_i64(pool.read, job_fd, byte.ctypes.data, 1) != 1:
                return
        state.asleep = 0
        all_first()
        if calls.given == seen:
            called = calls.called
            if worker < called % PARTS:
                _watch(pool, worker, seen)
        all_first()
        if calls.given == seen:
            continue
        seen = calls.given
        if worker >= seen % PARTS:  # others did it meanwhile
            continue
        called = calls.called
        start, stop = share(pool.job[1], seen % PARTS, worker)
        sample_rows(pool.job[0] + start, stop - start, rows, work)
        all_first()
        state.done = seen
