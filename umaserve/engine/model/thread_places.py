"""Where libllama's threads run on a processor: each on cores of its own.

libgomp's threads wait for each other after every operation of a graph: they spin for a moment, then
sleep.  Linux likes to wake a thread on the core of the one that woke it.  Two threads of one team
that have come to share a core take turns by sleeping, at each of some hundred barriers.  They stay
together, since they never both want to run.  It begins where one of them waits longer than it
spins, as in the first graph after a pause.  A decode of 2 ms then took 19
(`benchmarks.thread_places`).  So the cores are dealt out among the threads.

libgomp ends threads when a smaller team is asked for.  It starts new ones, with the affinity of the
thread that asks, when a larger one is.  So this is done again whenever a team's size changes.  Only
on Linux, where libllama was built with libgomp and nobody has told libgomp where to run threads.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numba import carray, cfunc, types

from umaserve.engine.native.calls import (
    address_in,
    call_i32,
    call_i32_i32_i64_ptr,
    call_i64_ptr_ptr_i32_i32,
)
from umaserve.jit.compiled import njit
from umaserve.jit.record import Record, address_of, ints

MOST_CPUS = 1024
MOST_THREADS = 256
MASK_WORDS = MOST_CPUS // 64
TOLD = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")  # the user's own wishes


class Places(Record):
    """Places that the threads of a team read, and addresses of libgomp's functions."""

    address: int  # of this record
    parallel: int  # GOMP_parallel; 0 = threads are left where they are
    bind: int  # what each thread of the team calls
    number: int  # omp_get_thread_num
    set_affinity: int  # sched_setaffinity
    placed: int  # threads of the team that has its places; 0 = none
    n_cores: int
    n_cpus: int
    cpus: np.ndarray = ints(MOST_CPUS, 2)  # number and core of each CPU
    masks: np.ndarray = ints(MOST_THREADS, MASK_WORDS)  # by thread


PLACES = Places.dtype


def no_places() -> Places:
    """Threads are left where they are."""
    places = Places.zeros()
    places.address = address_of(places)
    return places


def find_places(environment: Mapping[str, str] = os.environ) -> Places:
    """For the threads of the calling thread's teams, to outlive them.

    To be called once libllama is loaded, in a thread that may use all cores of this process.
    """
    places = no_places()
    library = _libgomp() if sys.platform.startswith("linux") else ""
    if not library or any(name in environment for name in TOLD):
        return places
    cpus = sorted(cpu for cpu in os.sched_getaffinity(0) if cpu < MOST_CPUS)
    cores: dict[str, int] = {}
    for i, cpu in enumerate(cpus):
        core = cores.setdefault(_siblings(cpu), len(cores))
        places.cpus[i] = cpu, core
    places.n_cpus, places.n_cores = len(cpus), len(cores)
    gomp, libc = ctypes.CDLL(library), ctypes.CDLL(None)
    places.number = address_in(gomp, "omp_get_thread_num")
    places.set_affinity = address_in(libc, "sched_setaffinity")
    places.bind = int(_bind.address or 0)
    places.parallel = address_in(gomp, "GOMP_parallel")
    return places


def leave_places(places: Places) -> None:
    """Let the calling thread run anywhere again, until the next team of several has its places."""
    if places.parallel:
        run_anywhere(places)
        places.placed = 0


def run_anywhere(places: Places) -> None:
    """For a thread of no team: a new thread keeps to the cores of the thread that starts it."""
    if places.parallel:
        os.sched_setaffinity(0, _all_cpus(places))


def _all_cpus(places: Places) -> set[int]:
    return set(places.cpus[: places.n_cpus, 0].tolist())


def _libgomp() -> str:
    """The libgomp that this process has loaded, or an empty string."""
    for line in Path("/proc/self/maps").read_text("utf-8", "replace").splitlines():
        path = line.partition("/")[1] + line.partition("/")[2]
        if Path(path).name.startswith("libgomp"):
            return path
    return ""


def _siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return path.read_text().strip() if path.exists() else str(cpu)


@cfunc(types.void(types.voidptr), cache=True)
def _bind(data):
    """Bind the calling thread of a team to its cores."""
    places = carray(data, 1, PLACES)[0]
    mask = places.masks[call_i32(places.number)]
    call_i32_i32_i64_ptr(places.set_affinity, 0, 8 * MASK_WORDS, mask.ctypes.data)


@njit(nogil=True, cache=True)
def place_threads(places, n):
    """Give each of the ``n`` threads that the next graph will use cores of its own.

    To be called by the thread that computes it.  Costs nothing where the team is the same as
    before, and there is nothing to do for a single thread.
    """
    if places.parallel == 0 or n < 2 or n > MOST_THREADS or places.placed == n:
        return
    places.masks[:n] = 0
    cores = places.n_cores
    for i in range(places.n_cpus):
        cpu, core = places.cpus[i, 0], places.cpus[i, 1]
        for thread in range(n):
            if (core - thread) % n == 0 or (thread - core) % cores == 0:
                places.masks[thread, cpu // 64] |= 1 << (cpu % 64)
    call_i64_ptr_ptr_i32_i32(places.parallel, places.bind, places.address, n, 0)
    places.placed = n
