"""The clients: streams that ask and read, each with a connection of its own, and one that watches
the daemon's metrics.

One thread and one selector read everything.  A token's time is read before its frame.  What costs
the client time (a redraw) follows tokens that have been read, when the next ones are furthest away.
"""

from __future__ import annotations

import gc
import os
import selectors
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from umaserve.bench import BenchError
from umaserve.bench.timeline import Answer, Gap, Phase
from umaserve.client import ConnectionFailed, Eos, ServerError
from umaserve.client.connect import connect, gone
from umaserve.client.wire import Router, generate_message, pack
from umaserve.metrics.window import quantile

WATCH_MS = 500.0  # between two readings of the daemon's metrics
REPORT_S = 0.5
READ_BYTES = 1 << 18
# kinds of streams: whether somebody reads along, and the program's name where it names no lane
KINDS: dict[str, tuple[bool, str | None]] = {
    "interactive": (True, None),
    "background": (False, None),
    "unlabelled": (True, "bench stream"),
    "storm": (False, "bench storm"),
    "chat": (True, "bench chat"),
    "editor": (True, "bench editor"),
    "agent": (True, "bench agent"),
    "documents": (False, "bench documents"),
}


class Sample(NamedTuple):
    """Reading of the daemon's metrics (histograms left out) and of its last second's ticks.

    ``others_now`` counts the requests of other clients at the reading.  At least ``others_total``
    requests of other clients have come since the load began.
    """

    at_s: float
    metrics: dict[str, Any]
    ticks: dict[str, Any]
    others_now: int
    others_total: int


class _Connection:
    """A socket whose bytes go through the client's router."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.router = Router()
        self.socket = connect(path)

    def send(self, message: dict[str, Any]) -> None:
        try:
            self.socket.sendall(pack(message))
        except OSError:
            raise ConnectionFailed(gone(self.path)) from None

    def receive(self) -> float:
        """Route what is there; returns when it was read."""
        try:
            data = self.socket.recv(READ_BYTES)
        except OSError:
            data = b""
        now_s = time.monotonic()
        if not data:
            raise ConnectionFailed(gone(self.path))
        self.router.feed(data)
        return now_s


class _Stream(_Connection):
    """An application that asks, reads the answer to its end, and asks again.

    Its requests name their lane, or the program alone, by its kind in `KINDS`.  With ``more``, each
    prompt is the previous prompt and ``more`` words, which the cache may hold.  ``once``: it asks
    when told.
    """

    def __init__(
        self, load: Load, name: str, kind: str, words: int, tokens: int, *, once: bool,
        more: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(load.path)
        self._load, self.name = load, name
        self._interactive, self._app = KINDS[kind]
        self._words, self._tokens, self._once = words, tokens, once
        self._more, self._text, self.waits = more, "", False  # to be told to ask on
        self._number = sum(answer.stream == name for answer in load.answers)
        if self._app:  # else it is of this process, as all streams are
            self.send({"type": "info", "relays": True})
        self._answer: Answer
        self._id = ""

    def ask(self, tokens: int | None = None) -> Answer:
        """Send the next request, for ``tokens`` instead of the stream's own number if given."""
        load = self._load
        self._number += 1
        session_id = f"{self.name}.{self._number}"
        self._id = f"{load.tag}-{session_id}"
        lane = "interactive" if self._interactive else "background"
        options = {
            "max_tokens": tokens or self._tokens,
            "ignore_eos": True,
            "cache_prompt": self._more > 0,
            "priority": None if self._app else lane,
            "app": self._app,
            "seed": self._number,
        }
        if self._text and self._more:
            self._text += f" {load.prompt(self._more)}"
        else:
            self._text = load.prompt(self._words)
        message = generate_message(self._id, self._text, None, options)
        self.router.streams[self._id] = deque()
        self._answer = Answer(self.name, session_id, self._interactive, time.monotonic())
        load.answers.append(self._answer)
        self.send(message)
        return self._answer

    def leave(self) -> None:
        """End the answer that is under way."""
        if self._answer.end_s is None:
            self._answer.end_s = time.monotonic()

    def read(self) -> None:
        now_s = self.receive()
        events, answer = self.router.streams.get(self._id, deque()), self._answer
        for event in events:
            if isinstance(event, ServerError):
                raise event
            if isinstance(event, Eos):
                if event.reason == "error":
                    raise BenchError(f"the daemon ended {self._id} with an error; see its log")
                answer.end_s = now_s
                continue
            if self._interactive and answer.times_s:
                gap = Gap(now_s, 1e3 * (now_s - answer.times_s[-1]))
                self._load.gaps.append(gap)
            answer.times_s.append(now_s)
        events.clear()
        if answer.end_s is not None and self._id in self.router.streams:
            del self.router.streams[self._id]
            self.waits = self._once
            if not self._once:
                self.ask()


class _Watch(_Connection):
    """Takes a ``Sample`` every ``WATCH_MS``."""

    def __init__(self, load: Load) -> None:
        super().__init__(load.path)
        self._load = load
        self._came: int | None = None  # requests before ours
        self.router.asked.add("watch")
        self.send({"type": "metrics", "sessions": True, "interval_ms": WATCH_MS, "id": "watch"})

    def read(self) -> None:
        now_s = self.receive()
        load = self._load
        while (overview := self.router.answer_to("watch")) is not None:
            metrics = {
                name: value
                for name, value in overview["metrics"].items()
                if not isinstance(value, dict)
            }
            mine = f"{load.tag}-"
            others = sum(not s["id"].startswith(mine) for s in overview.get("sessions") or ())
            # a request is counted here before the daemon sees it, so that none of ours ever
            # passes for somebody else's
            came = metrics["requests_total"] - len(load.answers)
            if self._came is None:
                self._came = came
            total = max(came - self._came, load.samples[-1].others_total if load.samples else 0)
            load.samples.append(Sample(now_s, metrics, overview.get("ticks") or {}, others, total))


class Load:
    """Clients of the daemon at ``path``; all that they saw is in ``answers`` and ``samples``.

    ``report`` is called about every ``REPORT_S``.  Leaving the block closes all connections, on
    which the daemon cancels what was under way.  Raises ``ConnectionFailed``, ``ServerError``,
    ``ProtocolError`` and ``BenchError``.
    """

    def __init__(
        self, path: str, prompt: Callable[[int], str], report: Callable[[Load], None]
    ) -> None:
        self.path, self.prompt = path, prompt
        self.tag = f"bench-{os.urandom(3).hex()}"
        self.answers: list[Answer] = []
        self.samples: list[Sample] = []
        self.gaps: list[Gap] = []  # between interactive tokens, the newest last
        self._report = report
        self._report_s = 0.0
        self._selector = selectors.DefaultSelector()
        self._open: list[_Connection] = []

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for connection in self._open:
            connection.socket.close()

    def watch(self) -> None:
        """Begin to read the daemon's metrics, before the first request."""
        self._add(_Watch(self))

    def start(self, kind: str, count: int, words: int, tokens: int, more: int = 0) -> None:
        """Start ``count`` streams of a kind of `KINDS`, with prompts of ``words`` words.

        The first answers of interactive streams are of different lengths, so that they do not ask
        all at once ever after.  ``more``: see `_Stream`, which `ask_again` tells.
        """
        interactive, _ = KINDS[kind]
        for i in range(count):
            name = f"{kind}{i + 1}"
            stream = _Stream(self, name, kind, words, tokens, once=more > 0, more=more)
            self._add(stream)
            stream.ask(max(1, tokens * (i + 1) // count) if interactive else None)

    def ask_again(self) -> None:
        """Have streams ask on that wait to be told."""
        for stream in [c for c in self._open if isinstance(c, _Stream) and c.waits]:
            stream.waits = False
            stream.ask()

    def ask_once(self, name: str, interactive: bool, words: int) -> Answer:
        """Send a request for one token on a connection of its own, and return its answer."""
        kind = "interactive" if interactive else "background"
        stream = _Stream(self, name, kind, words, 1, once=True)
        self._add(stream)
        return stream.ask()

    def stop_streams(self) -> None:
        """Close the streams' connections, which ends their answers."""
        for stream in [c for c in self._open if isinstance(c, _Stream)]:
            stream.leave()
            self._selector.unregister(stream.socket)
            stream.socket.close()
            self._open.remove(stream)

    def _add(self, connection: _Stream | _Watch) -> None:
        self._open.append(connection)
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)

    def run(self, name: str, seconds: float, done: Callable[[], bool] = lambda: False) -> Phase:
        """Read for some time, or until ``done()``."""
        begin_s = time.monotonic()
        end_s = begin_s + seconds
        with _no_collection():
            while (now_s := time.monotonic()) < end_s and not done():
                wait_s = min(end_s, max(self._report_s, now_s)) - now_s
                ready = self._selector.select(wait_s or REPORT_S / 10)
                for key, _ in ready:
                    key.data.read()
                now_s = time.monotonic()
                if now_s >= self._report_s and not self._selector.select(0):
                    self._report_s = now_s + REPORT_S
                    self._report(self)
        return Phase(name, begin_s, time.monotonic())

    def p95_since_ms(self, begin_s: float) -> float | None:
        """95th percentile in ms of interactive token gaps that ended after ``begin_s``."""
        first = bisect_right(self.gaps, begin_s, key=lambda gap: gap.end_s)
        return quantile([gap.ms for gap in self.gaps[first:]], 0.95)

    def streaming(self, kind: str, count: int, since_s: float) -> bool:
        """Whether ``count`` streams of a kind have had a token since then."""
        found = (a for a in self.answers if a.stream.startswith(kind) and a.times_s)
        return len({a.stream for a in found if a.times_s[-1] > since_s}) >= count


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without the garbage collector, whose pauses would pass for the daemon's."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
