"""A real daemon process for tests, and a client that knows nothing but the frame format."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.support.forks import ENGINE, FAKE_ENGINE, FRONT, NAME, Forked, may_fork
from tests.support.leftovers import CORE_DUMPS
from tests.support.stuck import START_S, not_started
from tests.support.waiting import until

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TIMEOUT_S = 60.0


def model_file(path: Path) -> str:
    """A file that passes for GGUF as far as the front looks."""
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    return str(path)


def eventually(condition: Callable[[], Any], what: str = "") -> Any:
    """The condition's first true value."""
    began = time.monotonic()
    while (waited := time.monotonic() - began) < TIMEOUT_S:
        value = condition()
        if value:
            return value
        time.sleep(max(0.01, min(0.05, waited / 20)))  # the daemon is asked by most
    raise AssertionError(f"never happened: {what or condition}")


def engines_of(front: int) -> list[psutil.Process]:
    """The engine processes of the front with that pid; its other children are none."""
    found = []
    for process in psutil.Process(front).children():
        try:
            words = " ".join(process.cmdline())
            known = any(each in words for each in ("uma-chat", "uma-eyes", "umaserve.gateway"))
            if not known and process.name() != NAME:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


@dataclass
class Result:
    """What came for one request."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    eos: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    @property
    def ended(self) -> bool:
        return self.eos is not None or self.error is not None


class RawClient:
    """One blocking connection; ``results`` by request id, everything else in ``other``."""

    def __init__(self, path: str, connected: socket.socket | None = None) -> None:
        self.socket = connected or socket.socket(socket.AF_UNIX)
        self.socket.settimeout(TIMEOUT_S)
        if connected is None:
            self.socket.connect(path)
        self.buffer = b""
        self.results: dict[str, Result] = {}
        self.other: list[dict[str, Any]] = []

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, **message: Any) -> None:
        self.send_body(json.dumps(message).encode())

    def send_body(self, body: bytes) -> None:
        self.socket.sendall(struct.pack("<I", len(body)) + body)

    def ask(self, id: str, prompt: Any, **fields: Any) -> None:
        self.results[id] = Result()
        self.send(id=id, prompt=prompt, **fields)

    def receive(self) -> dict[str, Any] | None:
        """The next event; ``None`` at the end of the stream."""
        while True:
            if len(self.buffer) >= 4:
                (size,) = struct.unpack("<I", self.buffer[:4])
                if len(self.buffer) >= 4 + size:
                    body, self.buffer = self.buffer[4 : 4 + size], self.buffer[4 + size :]
                    event = json.loads(body)
                    self._sort(event)
                    return event
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                assert not self.buffer, "the stream ended inside a frame"
                return None
            self.buffer += data

    def _sort(self, event: dict[str, Any]) -> None:
        result = self.results.get(event.get("id", ""))
        kind = event["event"]
        if result is None or kind not in ("token", "eos", "error"):
            self.other.append(event)
        elif kind == "token":
            assert not result.ended, "a token after the end"
            result.text += event["text"]
            result.tokens.append(event["token_id"])
        elif kind == "eos":
            assert result.eos is None, "two ends"
            result.eos = event
        else:
            result.error = event

    def finish(self, *ids: str) -> list[Result]:
        """Receive until these requests (default: all) have ended."""
        wanted = [self.results[i] for i in ids] if ids else list(self.results.values())
        while not all(r.ended for r in wanted):
            assert self.receive() is not None, "the daemon closed the connection"
        return wanted

    def wait_tokens(self, id: str, count: int) -> None:
        while len(self.results[id].tokens) < count:
            assert self.receive() is not None, "the daemon closed the connection"
            result = self.results[id]
            assert not result.ended or len(result.tokens) >= count, result

    def answer(self, kind: str) -> dict[str, Any]:
        """The next event of that kind that is no request's."""
        while True:
            for event in self.other:
                if event["event"] in (kind, "error"):
                    self.other.remove(event)
                    return event
            assert self.receive() is not None, "the daemon closed the connection"

    def generate(self, prompt: Any, id: str = "one", **fields: Any) -> Result:
        self.ask(id, prompt, **fields)
        return self.finish(id)[0]


CONNECT = """
import socket, sys
path, out, count = sys.argv[1], socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3])
for _ in range(count):
    made = socket.socket(socket.AF_UNIX)
    made.connect(path)
    socket.send_fds(out, [b"x"], [made.fileno()])
"""


def clients_of_another_program(path: str, count: int = 1) -> list[RawClient]:
    """Connections that another process has made; for the daemon they stay that process's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        arguments = [sys.executable, "-c", CONNECT, path, str(theirs.fileno()), str(count)]
        process = subprocess.Popen(arguments, pass_fds=[theirs.fileno()])
        found = []
        for _ in range(count):
            _, fds, _, _ = socket.recv_fds(ours, 1, 1)
            found.append(RawClient(path, socket.socket(fileno=fds[0])))
        assert process.wait(TIMEOUT_S) == 0
    return found


class DaemonProcess:
    """``umaserve.server.main.serve`` in a process of its own; leaves nothing behind or fails.

    ``patch`` is a function of `tests.support.patches.front`; ``preexec`` is called in the process
    before it becomes a program of its own.  Without ``preexec``, and with the fake engine or the
    real one on a processor (``[]``), it is forked from a process that has imported everything.
    """

    def __init__(
        self,
        directory: Path,
        *,
        model: str | None = None,
        engine: list[str] | None = None,
        patch: Callable[[], None] | None = None,
        environment: dict[str, str] | None = None,
        wait: bool = True,
        preexec: Callable[[], None] | None = None,
        **settings: Any,
    ) -> None:
        self.directory = directory
        self.path = str(settings.get("socket", directory / "uma.sock"))
        self.model = model or model_file(directory / "model.gguf")
        command = FAKE_ENGINE if engine is None else engine
        always = {"model": self.model, "socket": self.path, "core_dumps": CORE_DUMPS}
        settings = {**always, "dashboard": "off", **settings}
        self.log_path = directory / f"log-{time.monotonic_ns()}"
        what = [settings, command or None, patch.__name__ if patch else ""]
        given = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
        self.process: subprocess.Popen[bytes] | Forked
        forked = engine is None or engine == [] and may_fork(
            str(settings.get("backend", "auto")), str(settings.get("policy", ""))
        )  # fmt: skip
        if preexec is None and forked:
            module = FRONT if engine is None else ENGINE
            self.process = Forked(what, self.log_path, given, module=module)
        else:
            with self.log_path.open("wb") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "tests.support.patches.front", json.dumps(what)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=ROOT,
                    env=given,
                    preexec_fn=preexec,
                )
        self.expected = 0  # exit status
        self.clean = True  # its log is to have no traceback
        self.seen: dict[int, psutil.Process] = {}  # every engine there was
        if wait:
            self._wait_until_serving()

    def _wait_until_serving(self) -> None:
        try:
            until(self.serving, START_S, every=0.02)
            self.children()
        except AssertionError:
            if self.process.poll() is not None:
                raise
            what = f"the daemon does not serve in {START_S} s"
            raise not_started(what, self.process.pid, self.log_path) from None

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def reachable(self) -> bool:
        assert self.process.poll() is None, self.log
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(self.path)
        except OSError:
            return False
        return True

    def serving(self) -> bool:
        try:
            return self.reachable() and self.told()["info"]["state"] == "serving"
        except OSError:  # it has just left; the next round says why
            return False
        except KeyError:  # a start on a busy machine: we have asked more than our share
            return False

    def children(self) -> list[psutil.Process]:
        try:
            found = psutil.Process(self.process.pid).children(recursive=True)
            found = [p for p in found if p.name() != NAME]
        except psutil.NoSuchProcess:
            return []
        self.seen.update((p.pid, p) for p in found)
        return found

    def client(self) -> RawClient:
        return RawClient(self.path)

    def other_client(self) -> RawClient:
        """One of another program each time, as far as the daemon can tell."""
        return clients_of_another_program(self.path)[0]

    def told(self) -> dict[str, Any]:
        """The answer to ``info``, or an error."""
        with self.client() as client:
            client.send(type="info")
            return client.answer("info")

    def info(self) -> dict[str, Any]:
        answer = self.told()
        assert answer["event"] == "info", answer
        return answer["info"]

    def metrics(self) -> dict[str, Any]:
        with self.client() as client:
            client.send(type="metrics")
            return client.answer("metrics")["metrics"]

    def engine_pid(self) -> int:
        """Of the engine that serves now."""
        info = eventually(
            lambda: (i := self.info())["state"] == "serving" and i, "an engine is serving"
        )
        self.children()
        return info["model"]["engine_pid"]

    def rest(self) -> None:
        """What a start measures in pauses is measured: the engine uses no time any more."""
        engine = psutil.Process(self.engine_pid())

        def is_still() -> bool:
            before = sum(engine.cpu_times()[:2])
            time.sleep(0.5)
            return sum(engine.cpu_times()[:2]) - before < 0.05

        eventually(is_still, "the engine rests")

    def idle(self) -> None:
        """All requests have gone, here and in the engine."""
        eventually(lambda: not self.info()["sessions"], "no session is left")

    def wait(self) -> int:
        self.children()
        return self.process.wait(TIMEOUT_S)

    def stop(self) -> None:
        self.children()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(TIMEOUT_S) == self.expected, self.log
        self.check_nothing_left()

    def check_nothing_left(self) -> None:
        psutil.wait_procs(list(self.seen.values()), timeout=TIMEOUT_S)
        assert not [p for p in self.seen.values() if p.is_running()]
        assert not os.path.lexists(self.path)
        assert not os.path.lexists(self.path + ".lock")
        if os.path.isdir("/dev/shm"):
            assert not [name for name in os.listdir("/dev/shm") if name.startswith("umaserve")]
        assert not self.clean or "Traceback" not in self.log, self.log

    def __enter__(self) -> DaemonProcess:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.stop()
        finally:
            self.children()
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            for process in self.seen.values():
                if process.is_running():
                    process.kill()
            if kind is not None:
                print(self.log)


def running(directory: Path, **settings: Any) -> Iterator[DaemonProcess]:
    """For fixtures."""
    with DaemonProcess(directory, **settings) as daemon:
        yield daemon
