"""Three daemons behind a real HAProxy that `umaserve router` has configured, on loopback.

Their fronts and gateways are real; the engines are scripted and paced, since they share two cores.
"""

from __future__ import annotations

import collections
import contextlib
import json
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_client import port_of
from tests.support.ports import free_port
from tests.support.server_harness import DaemonProcess, eventually, model_file
from umaserve.cli.router import haproxy
from umaserve.cli.router.nodes import read_nodes

PROGRAM = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
WHY = "no HAProxy here (apt-get install haproxy): these tests are about it"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(PROGRAM is None, reason=WHY)]
NAMES = ("a", "b", "c")
TICK_MS = "4"


class Fleet:
    """The daemons by name, and a port where HAProxy listens for them."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.daemons: dict[str, DaemonProcess] = {}
        self.agents: dict[str, int] = {}
        for name in NAMES:
            home = folder / name
            home.mkdir()
            self.agents[name] = free_port()
            environment = {"FAKE_TICK_MS": TICK_MS, "FAKE_BUDGET": str(10**9)}
            daemon = DaemonProcess(
                home, model=model_file(home / f"model-{name}.gguf"), http="127.0.0.1:0",
                agent_check=f"127.0.0.1:{self.agents[name]}", environment=environment,
            )  # fmt: skip
            self.daemons[name] = stack.enter_context(daemon)
        self.port = free_port()
        ports = {name: port_of(daemon) for name, daemon in self.daemons.items()}
        places = [f"{name}=127.0.0.1:{ports[name]}+{self.agents[name]}" for name in NAMES]
        text = haproxy.config(
            read_nodes(",".join(places)), f"127.0.0.1:{self.port}", 64, 128, "1h"
        )  # fmt: skip
        (folder / "haproxy.cfg").write_text(text)
        with (folder / "haproxy.log").open("wb") as log:
            self.process = subprocess.Popen(
                [str(PROGRAM), "-f", str(folder / "haproxy.cfg")], stdout=log, stderr=log
            )
        stack.callback(self.process.wait)
        stack.callback(self.process.terminate)
        eventually(lambda: self.process.poll() is None and self.answers(), "HAProxy answers")

    def answers(self) -> bool:
        try:
            return self.ask("first")[0] == 200
        except OSError:
            return False

    def ask(self, session: str, prompt: str = "x", n: int = 2, **fields: Any) -> tuple[int, str]:
        """Status, and the name of the node whose model answered."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        body = json.dumps({"prompt": prompt, "max_tokens": n, **fields})
        headers = {"content-type": "application/json"}
        if session:
            headers["x-uma-session"] = session
        try:
            connection.request("POST", "/v1/completions", body, headers)
            reply = connection.getresponse()
            text = reply.read()
        finally:
            connection.close()
        if reply.status != 200 or fields.get("stream"):
            whole = not fields.get("stream") or text.rstrip().endswith(b"[DONE]")
            return reply.status if whole else 0, text.decode(errors="replace")
        return 200, json.loads(text)["model"].removeprefix("model-")

    def told(self, name: str) -> str:
        with socket.create_connection(("127.0.0.1", self.agents[name]), timeout=30) as agent:
            return agent.makefile().readline()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with contextlib.ExitStack() as stack:
        yield Fleet(tmp_path, stack)


def test_sessions_stay_where_they_are(fleet: Fleet) -> None:
    places = {f"s{i}": fleet.ask(f"s{i}")[1] for i in range(12)}
    assert set(places.values()) == set(NAMES)
    for _ in range(3):
        assert {session: fleet.ask(session)[1] for session in places} == places


def test_a_node_full_of_background_work_gets_few_new_sessions(fleet: Fleet) -> None:
    def work() -> None:
        fleet.daemons["c"].client().generate("long", max_tokens=4000, priority="background")

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    eventually(lambda: fleet.told("c") == "up ready 1%\n", "c tells that it is full")
    assert fleet.told("a") == "up ready 100%\n"
    time.sleep(2.5)  # HAProxy has asked meanwhile
    count = collections.Counter(fleet.ask(f"new{i}")[1] for i in range(45))
    assert worker.is_alive(), "the work ended before it was measured"
    assert count["c"] <= 45 / 3 / 3, count
    assert min(count["a"], count["b"]) >= 15, count


def test_a_node_that_dies_loses_no_request_without_a_byte(fleet: Fleet) -> None:
    """Prompts take a second; an answer in one piece has no byte before its end."""
    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(fleet.ask, f"d{i}", f"[prompt@250] {i}", 3) for i in range(12)]
        on_b = fleet.daemons["b"]
        eventually(lambda: on_b.metrics()["active_sessions"] >= 3, "b has some of them")
        on_b.expected = -signal.SIGKILL
        on_b.process.kill()
        results = [each.result() for each in asked]
    assert [status for status, _ in results] == [200] * 12, results
    assert {node for _, node in results} == {"a", "c"}
    for name in (on_b.path, on_b.path + ".lock"):  # nobody was left to remove them
        Path(name).unlink(missing_ok=True)


def test_a_node_that_is_drained_loses_none(fleet: Fleet) -> None:
    """Streams that run there end; sessions that were there go on elsewhere."""
    at_b = [session for session in (f"e{i}" for i in range(30)) if fleet.ask(session)[1] == "b"]
    with ThreadPoolExecutor(16) as pool:
        streams = [
            pool.submit(fleet.ask, session, "s", 2000, stream=True) for session in at_b[:4]
        ]
        on_b = fleet.daemons["b"]
        eventually(lambda: on_b.metrics()["active_sessions"] == 4, "the streams run on b")
        on_b.process.send_signal(signal.SIGTERM)
        eventually(lambda: fleet.told("b") == "drain\n", "b tells that it leaves")
        others = [pool.submit(fleet.ask, session) for session in at_b * 3]
        assert [status for status, _ in (each.result() for each in others)] == [200] * len(others)
        assert {node for _, node in (each.result() for each in others)} <= {"a", "c"}
        assert [each.result()[0] for each in streams] == [200] * 4
        assert on_b.process.wait(60) == 0
    assert fleet.ask(at_b[0])[0] == 200
