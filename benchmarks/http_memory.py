"""Memory of gateway, front, chat layer and engine over very many requests of HTTP.

    python -m benchmarks.http_memory
    python -m benchmarks.http_memory --requests 3000

The bundled model answers.  Requests are of many kinds, over kept and over new connections: whole
answers and streams of several families, chats, tokens, figures, refusals, and clients that leave in
the prompt or in the stream.  The prefix cache has 1 MiB, so that it is full
at the first look.  Memory is resident memory; it is looked at when nothing runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil

from benchmarks import streams
from benchmarks.daemon import Daemon
from benchmarks.machine import save
from benchmarks.processes import family
from benchmarks.turns import say

MIB = 1 << 20
AT_ONCE = 8
PIECE = 1 << 16
TIMEOUT_S = 120.0


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("--requests", type=int, default=100_000)
    out.add_argument("--looks", type=int, default=10, help="at the memory, evenly spread")
    out.add_argument("--threads", type=int, default=1)
    out.add_argument("--name", default="http_memory", help="of the result file")
    return out


def _post(path: str, body: dict[str, Any]) -> bytes:
    return streams.http_post(path, body).replace(b"Connection: close\r\n", b"")


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def _chat(number: int, **more: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": f"request {number}"}]
    return {"messages": said, "max_tokens": 2, **more}


def _text(number: int, **more: Any) -> dict[str, Any]:
    return {"prompt": f"request {number}", "max_tokens": 2, **more}


# what is asked, and whether an answer is waited for
KINDS: tuple[tuple[Callable[[int], bytes], bool], ...] = (
    (lambda n: _post("/v1/completions", _text(n)), True),
    (lambda n: _post("/v1/completions", _text(n, stream=True, logprobs=2)), True),
    (lambda n: _post("/v1/chat/completions", _chat(n)), True),
    (lambda n: _post("/v1/chat/completions", _chat(n, stream=True)), True),
    (lambda n: _post("/v1/messages", _chat(n, stream=True)), True),
    (lambda n: _post("/v1/responses", {"input": f"request {n}", "max_output_tokens": 2}), True),
    (lambda n: _post("/api/generate", _text(n, raw=True, options={"num_predict": 2})), True),
    (lambda n: _post("/tokenize", {"content": f"request {n}"}), True),
    (lambda n: _post("/v1/completions", _text(n, temperature="hot")), True),
    (lambda n: _get("/health"), True),
    (lambda n: _get("/v1/models"), True),
    (lambda n: _get(f"/nothing/{n}"), True),
    (lambda n: b"G\xffT / HTTP/1.1\r\n\r\n", True),
    (lambda n: _post("/v1/completions", _text(n, max_tokens=500, stream=True)), False),
    (lambda n: _post("/v1/chat/completions", _chat(n, max_tokens=500)), False),
)  # fmt: skip


class Clients:
    """``AT_ONCE`` clients; every second request of each comes over a new connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._failed: list[BaseException] = []

    def ask(self, numbers: range) -> None:
        """Send the requests of these numbers.  Raises what went wrong first."""
        shared = itertools.count(numbers.start)
        threads = [
            threading.Thread(target=self._some, args=(shared, numbers.stop), daemon=True)
            for _ in range(AT_ONCE)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failed:
            raise self._failed[0]

    def _some(self, shared: itertools.count[int], stop: int) -> None:
        kept: socket.socket | None = None
        try:
            while (number := next(shared)) < stop and not self._failed:
                request, is_awaited = KINDS[number % len(KINDS)]
                if kept is None or not is_awaited or (number // len(KINDS)) % 2:
                    with self._connected() as sock:
                        self._one(sock, request(number), is_awaited)
                elif not self._one(kept, request(number), True):
                    kept.close()
                    kept = None
                kept = kept or self._connected()
        except BaseException as error:
            self._failed.append(error)
        finally:
            if kept is not None:
                kept.close()

    def _connected(self) -> socket.socket:
        sock = streams.tcp(self._port)
        sock.settimeout(TIMEOUT_S)
        return sock

    @staticmethod
    def _one(sock: socket.socket, request: bytes, is_awaited: bool) -> bool:
        """Whether the connection can be used again."""
        sock.sendall(request)
        if not is_awaited:
            if b'"stream": true' in request:
                sock.recv(PIECE)
            return False
        data = b""
        while True:
            part = sock.recv(PIECE)
            if not part:
                raise EOFError(data[-400:])
            data += part
            if b"\r\nconnection: close\r\n" in data:
                return False
            head, found, body = data.partition(b"\r\n\r\n")
            if found and b"\r\ntransfer-encoding: chunked" in head:
                if body.endswith(b"0\r\n\r\n"):
                    return True
            elif found and len(body) >= int(head.lower().split(b"content-length: ")[1].split()[0]):
                return True


def settled(daemon: Daemon) -> None:
    """Return when nothing runs any more."""
    while True:
        numbers = daemon.metrics()
        if not numbers["active_sessions"] + numbers["queued_interactive"]:
            return
        time.sleep(0.05)


def memory(pid: int) -> dict[str, float]:
    """MiB of each process of the daemon."""
    found = {"front": psutil.Process(pid).memory_info().rss / MIB}
    for process in family(pid)[1:]:
        if process.status() == "zombie":  # has ended, and holds no memory
            continue
        words = " ".join(process.cmdline())
        name = "engine"
        if "umaserve.gateway" in words:
            name = "gateway"
        elif "uma-chat" in words:
            name = "chat"
        found[name] = found.get(name, 0.0) + process.memory_info().rss / MIB
    return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """MiB of each process at each look, and what it grew by from the first half of them to the
    second: an engine gives memory back that it does not use, and takes it again."""
    looks = []
    # what is kept of prompts grows up to its own bound, which is met before the first look
    flags = ("--threads", str(options.threads), "--http", "127.0.0.1:0", "--cache-ram", "1MiB")
    with Daemon(*flags) as daemon:
        clients, step = Clients(daemon.http_port()), options.requests // options.looks
        began_s = time.perf_counter()
        for look in range(options.looks):
            clients.ask(range(look * step, (look + 1) * step))
            settled(daemon)
            looks.append({"requests": (look + 1) * step, **memory(daemon.process.pid)})
            say(json.dumps({name: round(value, 1) for name, value in looks[-1].items()}))
        took_s = time.perf_counter() - began_s
    half = options.looks // 2
    names = [name for name in looks[0] if name != "requests"]
    return {
        "requests": options.requests,
        "requests_per_s": options.requests / took_s,
        "looks": looks,
        "grew_mib": {
            name: max(look[name] for look in looks[half:])
            - max(look[name] for look in looks[:half])
            for name in names
        },
    }


def main() -> None:
    options = parser().parse_args()
    result = measure(options)
    print(json.dumps({name: result[name] for name in ("requests_per_s", "grew_mib")}, indent=1))
    print("written to", save(options.name, result).name)


if __name__ == "__main__":
    main()
