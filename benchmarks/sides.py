"""The two servers that are compared: our daemon and llama-server, as one client process sees them.

Both answer over a connection per request.  Bytes are searched for marks, no frame is decoded, so
that the client costs both alike and next to nothing.
"""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import trio

from benchmarks import processes, streams
from benchmarks.daemon import Daemon
from benchmarks.names import OURS, THEIRS
from benchmarks.peers import LlamaServer
from umaserve.client import TrioClient

SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
SETTLE_S = 60.0


class Memory(NamedTuple):
    """Bytes of a process tree.

    ``rss`` is the sum of what each process has in memory: a page that two of them share (mapped
    weights) counts twice.  ``pss`` divides every page by the number of processes of the machine
    that have it; None where the system does not tell.
    """

    rss: int
    pss: int | None


def memory(pids: list[int]) -> Memory:
    """Of the processes and all their descendants, each once."""
    found = {p.pid: p for pid in pids for p in processes.family(pid)}
    rss, pss = 0, 0
    for process in found.values():
        full = process.memory_full_info() if sys.platform == "linux" else process.memory_info()
        rss += full.rss
        pss += getattr(full, "pss", 0)
    return Memory(rss, pss or None)


@dataclass(frozen=True)
class Marks:
    """Bytes at a token, at the end and at an error; where a request's last event has the number of
    prompt tokens computed and cached."""

    token: bytes
    end: bytes
    error: bytes
    computed: re.Pattern[bytes]
    cached: re.Pattern[bytes] | None
    events_without_token: int  # marks of tokens that the end brings along


# A quotation mark within generated text is escaped in JSON, so text cannot hold these.
_UDS = Marks(
    streams.UDS.first, streams.UDS.end, b'"event":"error"',
    re.compile(rb'"prompt_tokens":(\d+)[,}]'), re.compile(rb'"cached_tokens":(\d+)[,}]'), 0,
)  # fmt: skip
_HTTP = Marks(
    streams.HTTP.first, streams.HTTP.end, b'{"error":', re.compile(rb'"prompt_n":(\d+)[,}]'), None,
    1,
)  # fmt: skip


class Ours:
    """A daemon of ours and how to ask it.

    ``named``: a request names no lane but its program, which is its client up to a hyphen.
    """

    name = OURS
    marks = _UDS
    labels = True
    """Whether requests say in which lane they are."""
    named = False

    def __init__(self, model: str, setting: ServerSetting, *flags: str) -> None:
        threads = ("--threads", str(setting.threads)) if setting.threads else ()
        # an eighth of the rows is kept for interactive requests
        rows = (setting.parallel + 2) * 8 // 7 + 1
        self.daemon = Daemon(
            "--model", model, "--parallel", str(setting.parallel),
            "--max-sessions", str(rows), "--n-ctx", str(setting.n_ctx),
            "--max-tokens", str(setting.n_ctx), "--max-prompt-bytes", str(1 << 20), *threads,
            *flags,
        )  # fmt: skip
        self.pid = self.daemon.process.pid

    def close(self) -> None:
        self.daemon.__exit__()

    async def connect(self) -> trio.SocketStream:
        stream = await trio.open_unix_socket(self.daemon.path)
        if self.named:  # else all of this process's requests are one program's
            await stream.send_all(streams.frame({"type": "info", "relays": True}))
            answer = b""
            while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "little"):
                answer += await stream.receive_some()
        return stream

    def request(
        self, session_id: str, prompt: str, n: int, interactive: bool, chain: bool = False
    ) -> bytes:
        """``chain``: of a series of requests whose prompts grow, told to stay where they are."""
        who = {"priority": "interactive" if interactive else "background"}
        if self.named:
            who = {"app": session_id.partition(".")[0].partition("-")[0]}
        return streams.frame(
            {"id": session_id, "prompt": prompt, "max_tokens": n, "ignore_eos": True,
             **(who if self.named or self.labels else {}),
             **({"session": "chain"} if chain else {}), **SAMPLING}
        )  # fmt: skip

    async def info(self) -> dict[str, Any]:
        async with TrioClient(self.daemon.path) as client:
            return await client.info()

    async def prompt_tokens(self) -> int | None:
        """Prompt tokens computed so far, those of unfinished prompts too; None where no metric
        counts them so finely."""
        async with TrioClient(self.daemon.path) as client:
            found = await client.metrics()
        return found.get("prompt_tokens_computed_total")

    async def count_tokens(self, text: str) -> int:
        async with TrioClient(self.daemon.path) as client:
            return len(await client.tokenize(text))

    async def idle(self) -> bool:
        async with TrioClient(self.daemon.path) as client:
            found = await client.metrics()
        waiting = found["queued_interactive"] + found["queued_background"]
        return found["active_sessions"] + waiting + (found.get("parked_sessions") or 0) == 0


class Theirs(LlamaServer):
    """A llama-server with continuous batching (its default) and its own choice of threads."""

    name = THEIRS
    marks = _HTTP

    def __init__(
        self, model: str, setting: ServerSetting, cached: bool = False, extra: tuple[str, ...] = ()
    ) -> None:
        """``cached``: with its own cache of prompts in memory, as large as it is by default.

        ``extra``: more of its flags.
        """
        self._spawn(
            model, "-c", str(setting.n_ctx), "-np", str(setting.parallel), "-kvu", "-ngl", "999",
            *([] if cached else ["--cache-ram", "0"]),
            *(["-t", str(setting.threads)] if setting.threads else []), *extra,
        )  # fmt: skip
        self.pid = self.process.pid

    def close(self) -> None:
        self.__exit__()

    async def connect(self) -> trio.SocketStream:
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return stream

    def request(
        self, session_id: str, prompt: str, n: int, interactive: bool, chain: bool = False
    ) -> bytes:
        """llama-server knows neither priorities nor sessions."""
        return streams.http_post(
            "/completion",
            {"prompt": prompt, "n_predict": n, "stream": True, "ignore_eos": True, **SAMPLING},
        )

    async def prompt_tokens(self) -> int | None:
        return None  # it counts a prompt when all of it is computed

    async def idle(self) -> bool:
        stream = await self.connect()
        async with stream:
            await stream.send_all(
                b"GET /slots HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            )
            body = b"".join([bytes(part) async for part in stream])
        if b" 200 " not in body[:20]:
            raise RuntimeError(body[:300].decode(errors="replace"))
        return b'"is_processing":true' not in body


Side = Ours | Theirs


@dataclass(frozen=True)
class ServerSetting:
    """Sizes that both servers are started with; ``threads`` 0 leaves them to each."""

    parallel: int
    n_ctx: int
    threads: int = 0


async def settle(side: Side) -> None:
    """Return once the server has nothing left to do."""
    with trio.move_on_after(SETTLE_S):
        while True:
            await trio.sleep(0.05)
            if await side.idle():
                return
    raise RuntimeError(f"{side.name} is still busy {SETTLE_S:.0f} s after its clients left")


@contextlib.contextmanager
def ours(model: str, setting: ServerSetting, *flags: str) -> Iterator[Ours]:
    side = Ours(model, setting, *flags)
    try:
        yield side
    finally:
        side.close()


@contextlib.contextmanager
def theirs(
    model: str, setting: ServerSetting, count: int = 1, cached: bool = False
) -> Iterator[list[Theirs]]:
    """``count`` of them, started together."""
    sides: list[Theirs] = []
    try:
        for _ in range(count):
            sides.append(Theirs(model, setting, cached))
        for side in sides:
            side.wait_ready()
        yield sides
    finally:
        for side in sides:
            side.close()


def quiet_death() -> None:
    """Let a terminated benchmark still stop its servers."""

    def interrupt(*_: object) -> None:
        # a shell that is no terminal's starts what runs behind it with this signal ignored
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGTERM, interrupt)
