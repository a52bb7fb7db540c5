"""Sampling the rows of one tick on libllama's own threads, on a processor backend.

The cores are theirs there, and when a decode ends they still spin for a moment, waiting for the
next one.  So the rows are dealt out among them with what libllama itself uses, ``GOMP_parallel``.
Nobody has to be woken, and nobody falls asleep while one thread samples for all.

What they are to do reaches them through one pointer, and a C callback takes no arrays.  So all of
them lie in one record, as addresses and shapes.  They are written once: these arrays are the
engine's for as long as it lives.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, types
from numba.extending import intrinsic

from umaserve.engine.model.thread_places import Places
from umaserve.engine.native.calls import call_i32, call_i64_ptr_ptr_i32_i32
from umaserve.jit.compiled import njit
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


def _pointer_to(numba_type: Any, llvm_type: Any) -> Any:
    @intrinsic
    def pointer(typingctx, address):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return builder.inttoptr(args[0], ir.PointerType(llvm_type))

        return types.CPointer(numba_type)(types.int64), codegen

    return pointer


_int32 = _pointer_to(types.int32, ir.IntType(32))
_int64 = _pointer_to(types.int64, ir.IntType(64))
_uint64 = _pointer_to(types.uint64, ir.IntType(64))
_float32 = _pointer_to(types.float32, ir.FloatType())
_float64 = _pointer_to(types.float64, ir.DoubleType())


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
    arrays = team.arrays
    thread = call_i32(team.number)
    parts = min(team.threads, team.with_scratch, team.rows)
    if thread >= parts:
        return
    start, stop = share(team.rows, parts - 1, thread - 1)
    a = arrays[0]
    slots = carray(_int32(a[0]), (a[1],))
    a = arrays[1]
    addresses = carray(_int64(a[0]), (a[1],))
    a = arrays[2]
    real = carray(_float64(a[0]), (a[1], a[2]))
    a = arrays[3]
    whole = carray(_int64(a[0]), (a[1], a[2]))
    a = arrays[4]
    bias_ids = carray(_int32(a[0]), (a[1], a[2]))
    a = arrays[5]
    bias_values = carray(_float32(a[0]), (a[1], a[2]))
    a = arrays[6]
    tokens = carray(_int32(a[0]), (a[1], a[2]))
    a = arrays[7]
    n_tokens = carray(_int32(a[0]), (a[1],))
    a = arrays[8]
    n_prompt = carray(_int32(a[0]), (a[1],))
    a = arrays[9]
    eog = carray(_int32(a[0]), (a[1],))
    a = arrays[10]
    sampled = carray(_int32(a[0]), (a[1],))
    a = arrays[11]
    logprob = carray(_float32(a[0]), (a[1], a[2]))
    a = arrays[12]
    top_ids = carray(_int32(a[0]), (a[1], a[2], a[3]))
    a = arrays[13]
    top_logprobs = carray(_float32(a[0]), (a[1], a[2], a[3]))
    own = OF_ALL + SCRATCH * thread
    a, b, d = arrays[own], arrays[own + 1], arrays[own + 2]
    e, f, g = arrays[own + 3], arrays[own + 4], arrays[own + 5]
    h, i, j = arrays[own + 6], arrays[own + 7], arrays[own + 8]
    k = arrays[own + 9]
    work = Scratch(
        carray(_int32(a[0]), (a[1],)),
        carray(_float32(b[0]), (b[1],)),
        carray(_uint64(d[0]), (d[1],)),
        carray(_float32(e[0]), (e[1],)),
        carray(_float32(f[0]), (f[1],)),
        carray(_int32(g[0]), (g[1],)),
        carray(_int32(h[0]), (h[1],)),
        carray(_int32(i[0]), (i[1],)),
        carray(_float32(j[0]), (j[1],)),
        carray(_int64(k[0]), (k[1],)),
    )
    rows = Rows(
        slots, addresses, team.n_vocab, Settings(real, whole, bias_ids, bias_values), tokens,
        n_tokens, n_prompt, eog, sampled, logprob, top_ids, top_logprobs,
    )  # fmt: skip
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
