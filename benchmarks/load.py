"""What clients do: streams, storms, chains, all from one process under trio."""

from __future__ import annotations

import bisect
import json
import re
import time
from collections.abc import Callable

import trio

from benchmarks.sides import Side
from benchmarks.timeline import Phase, Session
from umaserve.bench.prompts import Prompts

POLL_S = 0.005
SAME_S = 1e-6  # before an arrival, and after all that came before it
_TEXT = re.compile(rb'"(?:text|content)":("(?:[^"\\]|\\.)*")')


class RequestFailed(Exception):
    """A server refused a request or ended it early; the text is what it said."""


async def ask(
    side: Side,
    session: Session,
    prompt: str,
    n: int,
    *,
    keep_text: bool = False,
    chain: bool = False,
    on_token: Callable[[int], object] | None = None,
) -> None:
    """Run one request to its end, writing what happens into ``session``.

    ``on_token`` is called with the number of tokens so far.  Cancelling closes the connection,
    which ends the request on both servers.
    """
    marks = side.marks
    request = side.request(session.session_id, prompt, n, session.interactive, chain)
    overlap = max(len(marks.token), len(marks.end), len(marks.error)) - 1
    tail, kept, ended = b"", [], b""
    session.sent_s = time.perf_counter()
    async with await side.connect() as stream:
        await stream.send_all(request)
        while True:
            new = bytes(await stream.receive_some(1 << 16))
            now = time.perf_counter()
            if not new:
                raise RequestFailed(f"{side.name} closed a connection: {(tail + new)[-300:]!r}")
            data = tail + new
            if ended:
                ended += new
            else:
                arrived = data.count(marks.token) - tail.count(marks.token)
                if marks.error in data:
                    raise RequestFailed(f"{side.name}: {data[-600:].decode(errors='replace')}")
                if keep_text:
                    kept.append(new)
                if marks.end in data:
                    ended = data
                    arrived -= marks.events_without_token
                if arrived > 0:
                    session.times_s += [now] * arrived
                    if on_token is not None:
                        on_token(len(session.times_s))
            if ended and (found := marks.computed.search(ended)) is not None:
                cached = marks.cached.search(ended) if marks.cached else None
                if cached is not None or marks.cached is None:
                    session.prompt_tokens = int(found[1]) - (int(cached[1]) if cached else 0)
                    session.end_s = now
                    break
            tail = data[-overlap:]
    if keep_text:
        session.text = "".join(json.loads(t) for t in _TEXT.findall(b"".join(kept)))


class Crowd:
    """Clients of one server, and all that they have asked so far."""

    def __init__(self, side: Side, documents: Prompts) -> None:
        self.side, self.documents = side, documents
        self.sessions: list[Session] = []

    def new(self, client: str, interactive: bool) -> Session:
        session = Session(f"{client}.{len(self.sessions)}", interactive)
        self.sessions.append(session)
        return session

    async def keep_asking(
        self,
        client: str,
        words: int,
        n: int,
        interactive: bool,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Send one unique prompt after another until cancelled.

        With ``nursery.start``: returns when the first token has come.
        """
        started = False

        def first(_: int) -> None:
            nonlocal started
            if not started:
                started = True
                task_status.started()

        while True:
            session = self.new(client, interactive)
            await ask(self.side, session, self.documents.words(words), n, on_token=first)

    def phase(self, name: str, begin_s: float, end_s: float | None = None) -> Phase:
        """The requests that were alive from ``begin_s`` on, until now."""
        end = time.perf_counter() if end_s is None else end_s
        alive = [
            s
            for s in self.sessions
            if s.sent_s and s.sent_s <= end and (s.end_s is None or s.end_s > begin_s)
        ]
        return Phase(name, begin_s, end, alive)


async def next_arrival(crowd: Crowd, most: float) -> float:
    """Wait for a token that comes after now; when the first of them came, or now after ``most``."""
    began = time.perf_counter()
    while (now := time.perf_counter()) - began < most:
        await trio.sleep(POLL_S)
        later = [
            session.times_s[bisect.bisect_right(session.times_s, began)]
            for session in crowd.sessions
            if session.times_s and session.times_s[-1] > began
        ]
        if later:
            return min(later)
    return now


async def window_of_ticks(crowd: Crowd, name: str, seconds: float, most: float = 10.0) -> Phase:
    """Watch for some time, from one arrival of tokens to another.

    All streams of a server get their tokens together, and a few such times are all that a short
    stretch has, so that the end of a stretch of fixed length is a tick more or less.  The phase has
    the tokens of its beginning and not those of its end.
    """
    began = await next_arrival(crowd, most)
    await trio.sleep(seconds)
    ended = await next_arrival(crowd, most)
    return crowd.phase(name, began - SAME_S, ended - SAME_S)


async def window(crowd: Crowd, name: str, seconds: float) -> Phase:
    """Watch for some time."""
    began = time.perf_counter()
    await trio.sleep(seconds)
    return crowd.phase(name, began)
