"""Sampling the rows of one tick on libllama's own threads, on a processor backend.

The cores are theirs there, and when a decode ends they still spin for a moment, waiting for the
next one.  So the rows are dealt out among them with what libllama itself uses, ``GOMP_parallel``.
Nobody has to be woken, and nobody falls asleep while one thread samples for all.

What they are to do reaches them through one pointer, and a C callback takes no arrays.  So all of
them lie in one record, as addresses and shapes.  They are written once: these arrays are the
engine's for as long as it lives.
"""

from __future__ import annotations

import numpy as np
from numba import carray, cfunc, types

from umaserve.engine.model.thread_places import Places
from umaserve.engine.native.calls import call_i32, call_i64_ptr_ptr_i32_i32
from umaserve.jit.compiled import njit, pointer
from umaserve.jit.record import Record, address_of, ints
from umaserve.sampling.params import Settings
from umaserve.sampling.sampler import Rows, Scratch, sample_rows

MOST_THREADS = 8  # that sample; the scratch of each takes some 20 bytes a token of the vocabulary

OF_ALL = 14  # arrays that all threads share; behind them ten of each thread's scratch
SCRATCH = 10


class Team(Record):
    """Job and arrays of the threads of a team, and addresses of libgomp's functions."""

    address: int  # of this record
    parallel: int  # GOMP_parallel; 0 = there is no such team
    number: int  # omp_get_thread_num
    part: int  # what each thread of the team calls
    threads: int  # of the team that computed the last graph
    with_scratch: int  # threads that have some
    first: int  # the job: rows from this one on
    rows: int  # and how many
    n_vocab: int
    # each array's address and three dimensions
    arrays: np.ndarray = ints(OF_ALL + SCRATCH * MOST_THREADS, 4)


TEAM = Team.dtype


def no_team() -> Team:
    """Return a team without threads: the calling thread samples all rows."""
    team = Team.zeros()
    team.address = address_of(team)
    return team


def make_team(
    places: Places, n_threads: int, rows: Rows, own: Scratch, counts: np.ndarray
) -> tuple[Team, list[Scratch]]:
    """The team, and the scratch of all threads but the caller's, which is ``own``.

    Both are to outlive the ticks, and so must ``rows`` and ``own``.  ``places`` knows libgomp
    (`thread_places`); ``n_threads`` is the largest team that there will be.  ``counts``
    int64[MOST_THREADS - 1, WIDTH] is what each of the others counts into.
    """
    team = no_team()
    others = min(n_threads, MOST_THREADS) - 1
    if not places.parallel or others < 1:
        return team, []
    n_vocab, n_ctx, n_eog = rows.n_vocab, own.lengths.size, rows.eog.size
    scratches = [Scratch.allocate(n_vocab, n_ctx, n_eog, counts[i]) for i in range(others)]
    shared = (
        rows.slots, rows.addresses, *rows.settings, rows.tokens, rows.n_tokens, rows.n_prompt,
        rows.eog, rows.sampled, rows.logprob, rows.top_ids, rows.top_logprobs,
    )  # fmt: skip
    assert len(shared) == OF_ALL
    for i, array in enumerate((*shared, *own, *(a for scratch in scratches for a in scratch))):
        assert array.flags.c_contiguous
        team.arrays[i, 0] = array.ctypes.data
        team.arrays[i, 1 : 1 + array.ndim] = array.shape
    team.n_vocab, team.with_scratch = rows.n_vocab, 1 + others
    team.number, team.part = places.number, int(_part.address or 0)
    team.parallel = places.parallel
    return team, scratches


@njit(nogil=True, cache=True)
def share(n, others, thread):
    """Rows ``start:stop`` of one of ``others`` threads, or of the caller (-1), who has the first
    ones."""
    each = n // (others + 1)
    extra = n - each * (others + 1)
    part = thread + 1
    start = part * each + min(part, extra)
    return start, start + each + (1 if part < extra else 0)


@cfunc(types.void(types.voidptr), cache=True)
def _part(data):
    """Sample the calling thread's share of the rows; libgomp runs this on each thread."""
    team = carray(data, 1, TEAM)[0]
    thread = call_i32(team.number)
    parts = min(team.threads, team.with_scratch, team.rows)
    if thread >= parts:
        return
    start, stop = share(team.rows, parts - 1, thread - 1)
    a, own = team.arrays, team.arrays[OF_ALL + SCRATCH * thread :]
    work = Scratch(
        carray(pointer(own[0, 0]), (own[0, 1],), np.int32),
        carray(pointer(own[1, 0]), (own[1, 1],), np.float32),
        carray(pointer(own[2, 0]), (own[2, 1],), np.uint64),
        carray(pointer(own[3, 0]), (own[3, 1],), np.float32),
        carray(pointer(own[4, 0]), (own[4, 1],), np.float32),
        carray(pointer(own[5, 0]), (own[5, 1],), np.int32),
        carray(pointer(own[6, 0]), (own[6, 1],), np.int32),
        carray(pointer(own[7, 0]), (own[7, 1],), np.int32),
        carray(pointer(own[8, 0]), (own[8, 1],), np.float32),
        carray(pointer(own[9, 0]), (own[9, 1],), np.int64),
    )
    rows = Rows(
        carray(pointer(a[0, 0]), (a[0, 1],), np.int32),
        carray(pointer(a[1, 0]), (a[1, 1],), np.int64),
        team.n_vocab,
        Settings(
            carray(pointer(a[2, 0]), (a[2, 1], a[2, 2]), np.float64),
            carray(pointer(a[3, 0]), (a[3, 1], a[3, 2]), np.int64),
            carray(pointer(a[4, 0]), (a[4, 1], a[4, 2]), np.int32),
            carray(pointer(a[5, 0]), (a[5, 1], a[5, 2]), np.float32),
        ),
        carray(pointer(a[6, 0]), (a[6, 1], a[6, 2]), np.int32),
        carray(pointer(a[7, 0]), (a[7, 1],), np.int32),
        carray(pointer(a[8, 0]), (a[8, 1],), np.int32),
        carray(pointer(a[9, 0]), (a[9, 1],), np.int32),
        carray(pointer(a[10, 0]), (a[10, 1],), np.int32),
        carray(pointer(a[11, 0]), (a[11, 1], a[11, 2]), np.float32),
        carray(pointer(a[12, 0]), (a[12, 1], a[12, 2], a[12, 3]), np.int32),
        carray(pointer(a[13, 0]), (a[13, 1], a[13, 2], a[13, 3]), np.float32),
    )
    sample_rows(team.first + start, stop - start, rows, work)


@njit(nogil=True, cache=True)
def sample_in_team(team, first, n):
    """Sample ``n`` rows from row ``first`` on; False, and nothing is done, where no team is."""
    if n < 2 or team.parallel == 0 or team.threads < 2:
        return False
    team.first, team.rows = first, n
    # all of the team, though some may have nothing to do: libgomp ends threads that a smaller
    # team leaves over
    call_i64_ptr_ptr_i32_i32(team.parallel, team.part, team.address, team.threads, 0)
    return True
