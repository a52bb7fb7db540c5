"""Fast path for most ticks: one more token for each row, and nothing else to do.

The engine's threads keep all cores of a small machine busy.  Work of the front takes a core away
from a decode, whose other threads wait for that core.  A pass of trio's loop costs twice as much as
waking a thread.  A separate thread therefore reads and sends the tokens of rows that go on
(`EngineHandle`).  Meanwhile the loop waits for events (`LoopLock`).  Nothing here may touch trio.
Everything else is left to the loop: ends, stop strings, log-probabilities, answers that do not
stream, sockets that are full.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from umaserve.server.engines.handle import EngineHandle
from umaserve.server.requests.delivery import read_row
from umaserve.server.requests.meters import Meters
from umaserve.server.requests.request import Request, Sink
from umaserve.wire import table as t
from umaserve.wire.memory_order import loads_first


class QuickTokens:
    """``accept(engine, request)`` looks whether the engine has taken a request in, and marks it."""

    def __init__(self, meters: Meters, accept: Callable[[EngineHandle, Request], None]) -> None:
        self._meters = meters
        self._accept = accept
        self._unsent: dict[Sink, None] = {}  # they have frames that their socket did not take
        self._faults: list[tuple[Request | None, Exception]] = []

    def take_unsent(self) -> list[Sink]:
        """Sinks that only the loop can flush; they are the caller's now."""
        sinks = list(self._unsent)
        self._unsent.clear()
        return sinks

    def take_faults(self) -> list[tuple[Request | None, Exception]]:
        """Return and clear the exceptions of our own code, by request; ``None``: while counting."""
        faults, self._faults = self._faults, []
        return faults

    def read(self, engine: EngineHandle) -> bool:
        """Read and send what is quick to; True: there is more, for `Sessions.on_wake`."""
        if engine.ready is None:
            return False
        baseline_ns = engine.table.header.baseline_ns
        touched: dict[Sink, list[Request]] = {}
        left = self._read_rows(engine, touched, baseline_ns)
        for sink, requests in touched.items():
            self._send(sink, requests, baseline_ns)
        return left or bool(self._unsent) or bool(self._faults)

    def _read_rows(
        self, engine: EngineHandle, touched: dict[Sink, list[Request]], baseline_ns: int
    ) -> bool:
        table = engine.table
        serials, states, counts = table.quick_serial, table.quick_state, table.quick_n_tokens
        left = False
        for request in engine.requests.values():
            try:
                if not request.accepted:
                    if request.cancelled:
                        left = True
                        continue
                    self._accept(engine, request)
                    if not request.accepted:
                        continue
                slot = request.slot
                if serials[slot] != request.serial:
                    continue
                # the state before the count: a row that is DONE publishes no more tokens
                done = states[slot] in (t.DONE, t.FULL)
                loads_first()
                end = counts[slot]
                if not request.quick or request.cancelled or request.told or request.record.strikes:
                    left = left or done or end > request.stored
                    continue
                if not request.emitted:  # somebody waits for this one: it goes ahead of all others
                    left = left or done
                    self._first(engine, request, baseline_ns)
                    continue
                start = request.stored
                if done or end > start and self._ends(engine, request, end):
                    left = True  # the last token goes out with the end
                elif end > start:
                    touched.setdefault(request.sink, []).append(request)
                    self._more(engine, request, start, end)
            except Exception as error:
                self._faults.append((request, error))
        return left

    def _first(self, engine: EngineHandle, request: Request, baseline_ns: int) -> None:
        read = len(request.tokens)
        read_row(request, engine)
        self._meters.tokens_total += len(request.tokens) - read
        if request.emitted:
            self._send(request.sink, [request], baseline_ns)

    @staticmethod
    def _ends(engine: EngineHandle, request: Request, end: int) -> bool:
        """Whether the newest token is the last one because of its number."""
        assert engine.ready is not None
        generated = len(request.tokens) + end - request.stored
        return generated >= request.max_tokens or end >= engine.ready.n_positions

    def _more(self, engine: EngineHandle, request: Request, start: int, end: int) -> None:
        loads_first()  # the count before what it counts
        table, slot = engine.table, request.slot
        ids, times = table.quick_tokens, table.quick_token_ns
        sink, assembler, pieces = request.sink, request.assembler, engine.pieces
        for at in range(start, end):
            token = ids[slot, at]
            if token < 0:  # not visible yet; the next wake reads it
                return
            request.tokens.append(token)
            request.token_ns.append(times[slot, at])
            sink.token(request, assembler.push(pieces.piece(token))[0], token, None)
            request.emitted += 1
            self._meters.tokens_total += 1

    def _send(self, sink: Sink, requests: list[Request], baseline_ns: int) -> None:
        # before: who is woken by it may run in our place until it has read
        now_ns = time.monotonic_ns()
        try:
            sent = sink.send_now()
        except Exception:  # the loop tries again, and says what is wrong
            sent = False
        if not sent:
            self._unsent[sink] = None
        try:
            for request in requests:
                self._meters.sent(request, now_ns, baseline_ns)
        except Exception as error:
            self._faults.append((None, error))
