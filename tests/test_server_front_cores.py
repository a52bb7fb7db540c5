"""The front keeps off the core of the engine's loop while nothing is asked, and only then."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import psutil
import pytest

from tests.server_harness import DaemonProcess, eventually
from umaserve.assets import demo_model_path
from umaserve.engine.model.loaded import usable_cores
from umaserve.server.engines import front_cores

HERE = os.sched_getaffinity(0) if sys.platform.startswith("linux") else set()
linux = pytest.mark.skipif(len(HERE) < 2, reason="needs Linux and two CPUs to choose from")


def cpus(pid: int) -> set[int]:
    """Those that the first thread of a process may use."""
    return set(psutil.Process(pid).cpu_affinity())


@linux
@pytest.mark.skipif(usable_cores() < 2, reason="the loop has no core of its own among one")
def test_the_front_leaves_the_loop_its_core_until_somebody_asks(tmp_path: Path) -> None:
    settings = {"model": str(demo_model_path()), "backend": "cpu", "n_ctx": 2048, "threads": 2}
    with DaemonProcess(tmp_path, engine=[], **settings) as daemon, daemon.client() as client:
        front = daemon.process.pid
        for turn in range(2):
            client.generate("def fibonacci(n):", max_tokens=4)
            loop = cpus(daemon.engine_pid())
            assert loop < HERE
            eventually(lambda loop=loop: cpus(front) == HERE - loop, "it leaves the loop its core")
            client.ask("long", "import os", max_tokens=2000, ignore_eos=True)
            client.wait_tokens("long", 3)
            assert cpus(front) == HERE
            # but the thread that sends tokens, which the loop wakes, keeps off its core for good
            threads = [os.sched_getaffinity(int(id)) for id in os.listdir(f"/proc/{front}/task")]
            assert HERE - loop in threads
            client.send(type="cancel", id="long")
            client.finish()
            eventually(lambda loop=loop: cpus(front) == HERE - loop, "it does so again")
            if turn == 0:  # the next engine has all cores
                os.kill(daemon.engine_pid(), signal.SIGKILL)
                eventually(lambda: daemon.metrics()["engine_restarts_total"] == 1)


@linux
def test_what_was_allowed_before_comes_back() -> None:
    seen: list[set[int]] = []

    def run() -> None:  # a thread of its own: affinity is a thread's
        here = sorted(HERE)
        for cpu in (here[0], here[-1], max(here) + 1):
            front_cores.keep_off([cpu])
            front_cores.keep_off([here[0]])
            seen.append(os.sched_getaffinity(0))
            front_cores.go_anywhere()
            assert os.sched_getaffinity(0) == HERE
        os.sched_setaffinity(0, here[:1])
        for none in ((), here, here[:1]):  # nothing would be left
            front_cores.keep_off(none)
            assert os.sched_getaffinity(0) == {here[0]}
        front_cores.go_anywhere()
        assert os.sched_getaffinity(0) == {here[0]}
        seen.append(set())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    low, high = min(HERE), max(HERE)
    assert seen == [HERE - {low}, HERE - {high}, HERE - {low}, set()]
    assert os.sched_getaffinity(0) == HERE


def test_nothing_happens_where_the_system_places_threads_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    front_cores.keep_off([0])
    front_cores.go_anywhere()
