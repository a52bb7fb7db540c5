"""Each of libllama's threads on cores of its own."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine_driver import DrivenEngine
from tests.support.waiting import until
from umaserve import llama
from umaserve.engine.model import thread_places as tp
from umaserve.engine.model.costs.cost_file import CostFile
from umaserve.engine.model.costs.cost_keeper import CostKeeper
from umaserve.engine.model.loaded import usable_cores
from umaserve.policy.cost.model import CostModel

HERE = os.sched_getaffinity(0) if sys.platform.startswith("linux") else set()
linux = pytest.mark.skipif(len(HERE) < 2, reason="needs Linux and two CPUs to choose from")


def places_of(cores: list[int]) -> tp.Places:
    """CPU i on core ``cores[i]``; the team is not called."""
    places = tp.no_places()
    for i, core in enumerate(cores):
        places.cpus[i] = 3 * i, core
    places.n_cpus, places.n_cores = len(cores), len(set(cores))
    places.parallel = int(
        ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value or 0
    )  # takes a number, does nothing
    return places


def masks(places: tp.Places, n: int) -> list[set[int]]:
    bits = np.unpackbits(places.masks[:n].view(np.uint8), axis=1, bitorder="little")
    return [set(np.flatnonzero(row).tolist()) for row in bits]


@given(st.integers(1, 40), st.sampled_from([1, 2, 4]), st.integers(2, 48))
@settings(max_examples=100)
def test_cores_are_dealt_out_whole(n_cores: int, smt: int, n: int) -> None:
    cores = [i % n_cores for i in range(n_cores * smt)]
    places = places_of(cores)
    tp.place_threads(places, n)
    got = masks(places, n)
    of_core = {core: {3 * i for i, c in enumerate(cores) if c == core} for core in set(cores)}
    assert all(got)
    assert set.union(*got) == set.union(*of_core.values())
    for mask in got:  # who has one CPU of a core has all of them
        assert all(cpus <= mask or not cpus & mask for cpus in of_core.values())
    if n <= n_cores:
        assert sum(map(len, got)) == len(cores)  # nobody shares
    else:
        assert {len(mask) for mask in got} == {smt}
        shared = [sum(mask == cpus for mask in got) for cpus in of_core.values()]
        assert max(shared) - min(shared) <= 1


def test_it_is_done_again_for_another_number_of_threads_only() -> None:
    places = places_of([0, 1, 2, 3])
    tp.place_threads(places, 1)
    assert not places.masks.any() and places.placed == 0
    tp.place_threads(places, 4)
    assert masks(places, 4) == [{0}, {3}, {6}, {9}]
    places.masks[0, 0] = 0
    tp.place_threads(places, 1)
    tp.place_threads(places, 4)
    assert places.masks[0, 0] == 0
    tp.place_threads(places, 2)
    assert masks(places, 2) == [{0, 6}, {3, 9}]
    assert places.placed == 2


@linux
@pytest.mark.parametrize("name", tp.TOLD)
def test_who_told_libgomp_is_obeyed(name: str) -> None:
    llama.load("auto")
    assert tp.find_places({}).parallel
    assert tp.find_places({name: "false"}).parallel == 0


@linux
def test_threads_of_a_team_go_to_cores_of_their_own() -> None:
    llama.load("auto")
    found: list[list[set[int]]] = []

    def team() -> None:  # a thread of its own: this one shall keep its cores
        places = tp.find_places({})
        for n in (2, 3, 2):
            tp.place_threads(places, n)
            found.append(masks(places, n))
            own = os.sched_getaffinity(0)
            assert own == found[-1][0]
            assert all(mask in affinities(os.getpid()) for mask in found[-1])

    errors: list[BaseException] = []

    def run() -> None:
        try:
            team()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not errors, errors
    assert len(found) == 3 and os.sched_getaffinity(0) == HERE


def affinities(pid: int) -> list[set[int]]:
    """What CPUs each thread of a process may use."""
    out = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            status = (task / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            continue
        lines = dict(line.split(":\t", 1) for line in status.splitlines())
        cpus: set[int] = set()
        for part in lines["Cpus_allowed_list"].split(","):
            first, _, last = part.partition("-")
            cpus |= set(range(int(first), int(last or first) + 1))
        out.append(cpus)
    return out


@linux
@pytest.mark.skipif(usable_cores() < 2, reason="one core has nothing to be dealt out")
def test_an_engine_has_its_ticks_on_separate_cores_and_the_rest_anywhere() -> None:
    with DrivenEngine(fresh=True, n_threads=2, probe=False) as engine:
        if engine.ready.device != "CPU":
            pytest.skip("only a processor's threads are placed")
        assert engine.run("def fibonacci(n):", max_tokens=4)


        def placed() -> list[set[int]]:  # a thread begins where the thread is that starts it
            return [cpus for cpus in affinities(engine.process.pid) if cpus != HERE]

        found: list[set[int]] = []

        def are_two() -> bool:
            found[:] = placed()
            return len(found) == 2

        until(are_two)
        first, second = found
        assert not first & second and first | second == HERE
        assert len(affinities(engine.process.pid)) > 2


@linux
@pytest.mark.skipif(usable_cores() < 2, reason="one core has nothing to be dealt out")
def test_the_loop_has_a_place_unless_one_thread_is_all_that_the_engine_chose() -> None:
    for _ in range(2):  # the second one knows what ticks cost, and measures none
        with DrivenEngine(fresh=True, n_threads=0) as engine:
            ready = engine.ready
            if ready.device != "CPU":
                pytest.skip("only a processor's threads are placed")
            loop = set(psutil.Process(engine.process.pid).cpu_affinity())
            if max(ready.n_threads, ready.n_threads_batch) > 1:
                assert loop < HERE
            else:
                assert loop == HERE


@linux
def test_leaving_its_place_a_thread_may_run_anywhere() -> None:
    llama.load("auto")
    found: list[object] = []

    def run() -> None:
        places = tp.find_places({})
        tp.place_threads(places, 2)
        found.append(os.sched_getaffinity(0) < HERE)
        tp.leave_places(places)
        found.append(os.sched_getaffinity(0) == HERE)
        tp.place_threads(places, 2)
        found.append(os.sched_getaffinity(0) < HERE)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [True, True, True]


class SeenFile(CostFile):
    """Notes where the thread that writes it may run."""

    def save(self, cost: CostModel) -> str:
        self.cpus = os.sched_getaffinity(0)
        return ""


@linux
def test_costs_are_written_beside_the_ticks_cores(tmp_path: Path) -> None:
    llama.load("auto")
    places, cost, file = tp.find_places({}), CostModel.unknown(), SeenFile({}, tmp_path)

    def run() -> None:  # as the loop does it
        tp.place_threads(places, 2)
        keeper = CostKeeper(places, cost)
        keeper.recall(file)
        keeper.learned()
        keeper.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert file.cpus == HERE


@linux
def test_an_engine_leaves_threads_alone_if_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_PROC_BIND", "false")
    with DrivenEngine(fresh=True, n_threads=2, probe=False) as engine:
        assert engine.run("def fibonacci(n):", max_tokens=4)
        assert all(cpus == HERE for cpus in affinities(engine.process.pid))
