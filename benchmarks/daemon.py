"""A daemon and a raw client for benchmarks: nothing between the socket and the clock."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import processes, streams
from umaserve.llama.builds import cache_root


@contextlib.contextmanager
def nothing_measured() -> Iterator[None]:
    """Daemons that are started meanwhile know nothing of this machine's costs."""
    before = os.environ.get("UMA_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        for part in cache_root().iterdir():
            if part.name != "costs":
                Path(folder, part.name).symlink_to(part)
        os.environ["UMA_CACHE_DIR"] = folder
        try:
            yield
        finally:
            del os.environ["UMA_CACHE_DIR"]
            if before is not None:
                os.environ["UMA_CACHE_DIR"] = before


class Daemon:
    """``python -m umaserve serve`` on a socket of its own."""

    def __init__(
        self,
        *flags: str,
        environment: dict[str, str] | None = None,
        module: Sequence[str] | None = None,
    ) -> None:
        """``module``: what ``-m`` starts in the place of ``umaserve``, and its first arguments."""
        self._folder = tempfile.TemporaryDirectory(prefix="uma-bench-")
        self.path = str(Path(self._folder.name) / "uma.sock")
        self.log_path = Path(self._folder.name) / "log"
        self._log = open(self.log_path, "w+")  # noqa: SIM115
        module = module or ["umaserve"]
        command = [sys.executable, "-m", *module, "serve", "--socket", self.path, *flags]
        command.append("--core-dumps")  # else its memory is told in /proc to root alone
        self.spawned = time.perf_counter()
        self.process = subprocess.Popen(
            [*command, "--dashboard", "off"], stdout=self._log, stderr=self._log,
            stdin=subprocess.DEVNULL, env={**os.environ, **(environment or {})},
        )  # fmt: skip
        while True:
            if self.process.poll() is not None:
                self._log.seek(0)
                raise RuntimeError(self._log.read())
            try:
                with Client(self.path) as client:
                    # where a start takes long, we may have asked more than our share meanwhile
                    info = client.call(type="info").get("info")
                    if info is not None and info["state"] == "serving":
                        break
            except OSError:
                pass
            time.sleep(0.02)
        self.start_s = time.perf_counter() - self.spawned

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self._log.close()
        self._folder.cleanup()

    def metrics(self) -> dict[str, Any]:
        with Client(self.path) as client:
            return client.call(type="metrics")["metrics"]

    def http_port(self) -> int:
        """Return the port of the gateway, once it answers there; for ``--http 127.0.0.1:0``."""
        while True:
            told = re.search(r"http://127\.0\.0\.1:(\d+) answers", self.log_path.read_text())
            if told:
                return int(told[1])
            time.sleep(0.02)

    def cpu_s(self) -> float:
        """CPU seconds of front and engine so far."""
        return processes.cpu_s(self.process.pid)

    def run(self, prompts: list[str], n: int, sampling: dict[str, Any]) -> streams.Run:
        """Stream ``n`` tokens for every prompt at once."""
        requests = [
            streams.frame(
                {"id": "s", "prompt": prompt, "max_tokens": n, "ignore_eos": True, "seed": i,
                 "cache_prompt": False, **sampling}
            )
            for i, prompt in enumerate(prompts)
        ]  # fmt: skip
        return streams.run_streams(lambda: streams.unix(self.path), requests, streams.UDS, n)


class Client:
    """One blocking connection."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self._buffer = b""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, **message: Any) -> None:
        body = json.dumps(message).encode()
        self.socket.sendall(struct.pack("<I", len(body)) + body)

    def receive(self) -> dict[str, Any]:
        while True:
            if len(self._buffer) >= 4:
                end = 4 + struct.unpack_from("<I", self._buffer)[0]
                if len(self._buffer) >= end:
                    body, self._buffer = self._buffer[4:end], self._buffer[end:]
                    return json.loads(body)
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError("the daemon closed the connection")
            self._buffer += data

    def call(self, **message: Any) -> dict[str, Any]:
        self.send(**message)
        return self.receive()

    def generate(self, id: str, prompt: str, **fields: Any) -> tuple[list[float], list[int]]:
        """Times of the tokens (seconds, ``perf_counter``) and their ids."""
        self.send(id=id, prompt=prompt, **fields)
        times, tokens = [], []
        while True:
            event = self.receive()
            if event["event"] == "token":
                times.append(time.perf_counter())
                tokens.append(event["token_id"])
            elif event["event"] == "eos":
                return times, tokens
            else:
                raise RuntimeError(event)
