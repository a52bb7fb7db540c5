"""Both servers over HTTP, asked by programs that say their names as their ``User-Agent``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import h11
import trio

from benchmarks import machine
from benchmarks.daemon import Daemon
from benchmarks.models import model_path
from benchmarks.names import OURS, THEIRS
from benchmarks.setting import LARGE
from benchmarks.sides import SAMPLING, SETTLE_S, ServerSetting, Theirs
from benchmarks.timeline import Session
from umaserve.bench.prompts import Prompts

_PIECE = 1 << 16
CPU_CELLS, CELLS, CELLS_OF_LARGE = 16384, 49152, 32768
"""KV cells on a processor, on an accelerator, and there of a large model, which runs twice."""


class RequestFailed(Exception):
    """A server refused a request or ended it early; the text is what it said."""


class Server(NamedTuple):
    """A running server; ``daemon`` is None for llama-server."""

    name: str
    port: int
    daemon: Daemon | None


class Model(NamedTuple):
    """``name`` as the options have it, the file, and the KV cells of each server."""

    name: str
    path: str
    n_ctx: int
    accelerator: bool


def find_model(name: str, quant: str, n_ctx: int) -> Model:
    """Return a model of ``benchmarks.models``; ``n_ctx`` 0: by device and size."""
    path = str(model_path(name, quant))
    accelerator = machine.build().backend != "cpu"
    if not n_ctx:
        n_ctx = CELLS_OF_LARGE if os.path.getsize(path) > LARGE else CELLS
        n_ctx = n_ctx if accelerator else CPU_CELLS
    return Model(name, path, n_ctx, accelerator)


@contextlib.contextmanager
def servers(
    model: Model, parallel: int, options: argparse.Namespace
) -> Iterator[list[Server]]:
    """Start our daemon and llama-server, with its own cache of prompts.

    Both keep their defaults apart from cells and sequences.  Of the ``options`` of
    `benchmarks.desk`, ``flags`` are more of ours, ``ablated`` names mechanisms that ours lacks, and
    ``without_peer`` leaves llama-server out.
    """
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(
            Daemon(
                "--model", model.path, "--parallel", str(parallel), "--n-ctx", str(model.n_ctx),
                "--http", "127.0.0.1:0", *options.flags.split(),
                module=["benchmarks.ablated", options.ablated] if options.ablated else None,
            )
        )  # fmt: skip
        found = [Server(OURS, daemon.http_port(), daemon)]
        if not options.without_peer:
            theirs = Theirs(model.path, ServerSetting(parallel, model.n_ctx), cached=True)
            stack.callback(theirs.close)
            theirs.wait_ready()
            found.append(Server(THEIRS, theirs.port, None))
        yield found


@dataclass
class Caller:
    """Programs on a server, and what each of them asked.

    ``agent``: the ``User-Agent`` of all of them; each says its own name if it is empty.
    ``scale`` multiplies the words of every prompt; prompts follow from ``seed``.
    """

    server: Server
    seed: int
    scale: float = 1.0
    agent: str = ""
    sessions: list[Session] = field(default_factory=list)

    def documents(self, program: str) -> Prompts:
        """Return a program's source of prompts, the same on every server."""
        return Prompts(int.from_bytes(f"{self.seed} {program}".encode()))

    def words(self, at_full: int) -> int:
        return max(4, round(at_full * self.scale))

    async def ask(self, program: str, prompt: str, n: int, **fields: Any) -> Session:
        """Run one request to its end; cancelling closes the connection.

        ``fields`` are more fields of the body.  Raises RequestFailed.
        """
        session = Session(program, True, sent_s=time.perf_counter())
        self.sessions.append(session)
        body = {
            "prompt": prompt, "n_predict": n, "stream": True, "ignore_eos": True, **SAMPLING,
            **fields,
        }  # fmt: skip
        await _post(self.server, self.agent or program, body, session)
        return session


async def _post(server: Server, agent: str, body: dict[str, Any], session: Session) -> None:
    """Send a completion request, and write times and texts of the answer into ``session``."""
    data = json.dumps(body).encode()
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 24)
    headers = [
        ("Host", "localhost"), ("User-Agent", f"{agent}/1.0"), ("Connection", "close"),
        ("Content-Type", "application/json"), ("Content-Length", str(len(data))),
    ]  # fmt: skip
    request = h11.Request(method="POST", target="/completion", headers=headers)
    sent = (http.send(request), http.send(h11.Data(data)), http.send(h11.EndOfMessage()))
    status, pending, texts = 0, b"", []
    async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await stream.send_all(b"".join(part or b"" for part in sent))
        now = session.sent_s
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                http.receive_data(await stream.receive_some(_PIECE))
                now = time.perf_counter()
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                pending += bytes(event.data)
                if status == 200 and body["stream"]:
                    *events, pending = pending.split(b"\n\n")
                    for each in events:
                        _take(each, session, texts, now)
    if status == 200 and not body["stream"]:
        answer = json.loads(pending)
        texts.append(answer["content"])
        session.prompt_tokens = answer["timings"]["prompt_n"]
    elif status != 200:
        raise RequestFailed(f"{server.name}: {status} {pending[-600:].decode(errors='replace')}")
    session.end_s = now
    session.text = "".join(texts)


def _take(event: bytes, session: Session, texts: list[str], now: float) -> None:
    """Write down an event of a stream.

    A part without text is no token: llama-server keeps a character's first bytes to itself.
    """
    if not event.startswith(b"data: {"):
        return
    told = json.loads(event[6:])
    if "error" in told:
        raise RequestFailed(str(told["error"]))
    if told["content"]:
        session.times_s.append(now)
        texts.append(told["content"])
    if told["stop"]:
        session.prompt_tokens = told["timings"]["prompt_n"]


async def settle(server: Server) -> None:
    """Return once the server has nothing left to do."""
    with trio.move_on_after(SETTLE_S):
        while True:
            await trio.sleep(0.05)
            if await _idle(server):
                return
    raise RuntimeError(f"{server.name} is still busy {SETTLE_S:.0f} s after its clients left")


async def _idle(server: Server) -> bool:
    head = b"GET /slots HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
        await stream.send_all(head)
        body = b"".join([bytes(part) async for part in stream])
    if b" 200 " not in body[:20]:
        raise RuntimeError(body[:300].decode(errors="replace"))
    return b'"is_processing":true' not in body


def warm_up(server: Server, seed: int) -> None:
    """Let a server answer a few requests that do not count."""

    async def run() -> None:
        caller = Caller(server, seed)
        for words, n in ((16, 24), (600, 24), (16, 24)):
            prompt = caller.documents(f"warm {words}").words(words)
            async with trio.open_nursery() as nursery:
                for i in range(3):
                    nursery.start_soon(caller.ask, f"warm{i}", prompt, n)
        await settle(server)

    trio.run(run)
