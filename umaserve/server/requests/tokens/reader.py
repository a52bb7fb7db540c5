"""Reader of the session table: new tokens go to the clients, ended rows are given back.

Two threads read, and both call `advance`.  The engine's threads keep all cores of a small machine
busy.  Work of the front takes a core away from a decode, whose other threads wait for that core.  A
pass of trio's loop costs twice as much as waking a thread.  In most ticks each row has a token
more, and nothing else is to do.  A thread of each engine (`EngineHandle`) reads and sends these in
`Reader.on_tokens`, while the loop waits for events (`LoopLock`).  It must not touch trio.  All else
is left to the loop: ends, stop strings, log-probabilities, whole answers, sockets that are full.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from umaserve.protocol import E_RUNTIME_001
from umaserve.server.engines.handle import EngineHandle
from umaserve.server.log.lines import trace
from umaserve.server.requests.ends import Ends
from umaserve.server.requests.life import Answer, Stage
from umaserve.server.requests.meters.meters import Meters
from umaserve.server.requests.request import Request, Sink
from umaserve.server.requests.rows import Rows
from umaserve.server.requests.tokens import delivery
from umaserve.wire import messages as m
from umaserve.wire import table as t

FIRST, MORE = 1, 2  # events that reading a row made: its first token among them, or not

REASONS = {
    t.REASON_STOP: "stop",
    t.REASON_LENGTH: "length",
    t.REASON_CANCEL: "cancel",
    t.REASON_ERROR: "error",
}


class Reader:
    """The only reader of rows, for the loop and for the engines' threads."""

    def __init__(self, rows: Rows, ends: Ends, meters: Meters, log: Callable[..., None]) -> None:
        self._rows = rows
        self._ends = ends
        self._meters = meters
        self._log = log
        self._unsent: dict[Sink, None] = {}  # they have frames that their socket did not take
        self._faults: list[tuple[Request | None, Exception]] = []  # of the thread

    # --- on an engine's thread ------------------------------------------------------------------

    def on_tokens(self, engine: EngineHandle) -> bool:
        """Read and send what is quick to; True: `on_wake` has more to do.  Does not touch trio."""
        if engine.ready is None:
            return False
        baseline_ns = engine.table.header.baseline_ns
        touched: dict[Sink, list[Request]] = {}
        left = False
        for request in engine.requests.values():
            try:
                left = self._read_quick(engine, request, touched, baseline_ns) or left
            except Exception as error:
                self._faults.append((request, error))
        for sink, requests in touched.items():
            self._send(sink, requests, baseline_ns)
        return left or bool(self._unsent) or bool(self._faults)

    def _read_quick(
        self, engine: EngineHandle, request: Request, touched: dict[Sink, list[Request]],
        baseline_ns: int,
    ) -> bool:  # fmt: skip
        """Read a row that has nothing but more tokens; True: it is left to the loop."""
        if request.stage is not Stage.RUNNING:
            if request.answer is not Answer.OPEN:
                return True
            self._rows.accept(engine, request)
            if request.stage is not Stage.RUNNING:
                return False
        if engine.table.quick_serial[request.slot] != request.serial:
            return False
        is_ended, end = delivery.published(engine.table, request.slot)
        if not request.quick or request.answer is not Answer.OPEN or request.record.strikes:
            return is_ended or end > request.stored
        start = request.stored
        if end <= start:
            return is_ended
        is_last = delivery.may_end(request, engine, start, end)
        if not request.emitted:  # somebody waits for this one: it goes ahead of all others
            read = delivery.advance(request, engine, start, end, plain=not is_last)[0]
            self._meters.tokens_total += read
            if request.emitted:
                self._send(request.sink, [request], baseline_ns)
            return is_ended
        if is_ended or is_last:
            return True  # the last token goes out with the end
        touched.setdefault(request.sink, []).append(request)
        read = delivery.advance(request, engine, start, end, plain=True)[0]
        self._meters.tokens_total += read
        return False

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

    # --- in the loop ------------------------------------------------------------------------------

    def on_wake(self, engine: EngineHandle) -> None:
        """Read every row of an engine that changed, and send what came of it."""
        faults, self._faults = self._faults, []
        for request, error in faults:
            self._fault(request, error)
        unsent, self._unsent = self._unsent, {}
        for sink in unsent:
            self._ends.flush(sink)
        if engine.ready is None:
            return
        self.read(list(engine.requests.values()), engine)
        self.count(self._meters.read_ticks, engine)

    def count(self, meter: Callable[..., None], *args: Any) -> None:
        """Call something that only counts: if it fails, serving goes on."""
        try:
            meter(*args)
        except Exception as error:
            self._fault(None, error)

    def _fault(self, request: Request | None, error: Exception) -> None:
        """Our own code failed, on a request or (``None``) on counting what was sent."""
        if request is not None:
            self._ends.broke(request, error)
        else:
            self._log("error", f"something was not counted, serving goes on: {trace(error)}")

    def read(self, requests: Iterable[Request], engine: EngineHandle) -> None:
        """Take what the rows have published; send it, one flush for each sink."""
        baseline_ns = engine.table.header.baseline_ns
        touched: dict[Sink, list[Request]] = {}
        ended = False
        for request in requests:
            try:
                events, over = self._read_one(request, engine)
            except Exception as error:
                self._ends.broke(request, error)
                events, over = 0, request.engine is None
            ended = ended or over
            if events == FIRST:  # somebody waits for this one: it goes ahead of all bookkeeping
                self._flush(request.sink, [request], baseline_ns)
            if events:
                touched.setdefault(request.sink, []).append(request)
        for sink, sharing in touched.items():
            self._flush(sink, sharing, baseline_ns)
        if ended:
            self._rows.pump(engine)

    def _flush(self, sink: Sink, sharing: list[Request], baseline_ns: int) -> None:
        # before: who is woken by it may run in our place until it has read
        now_ns = time.monotonic_ns()
        self._ends.flush(sink)
        for request in sharing:
            self.count(self._meters.sent, request, now_ns, baseline_ns)

    def _read_one(self, request: Request, engine: EngineHandle) -> tuple[int, bool]:
        """Return the events made of it (``FIRST``, ``MORE`` or 0), and whether its row ended."""
        if request.stage is not Stage.RUNNING:
            self._rows.accept(engine, request)
        self._tell_prompt_work(request, engine)
        emitted = request.emitted
        read, stopped, reason = delivery.read_row(request, engine)
        self._meters.tokens_total += read
        events = 0
        if request.emitted > emitted:
            events = MORE if emitted else FIRST
        if stopped and not request.told:
            self._ends.tell(request, "length" if request.is_late else "stop")
            events = events or MORE
            if reason is None:
                engine.send(m.Cancel(request.serial))
        if reason is None:
            return events, False
        if reason == t.REASON_LENGTH and request.outlives_context:
            if request.answer is Answer.OPEN:
                assert engine.ready is not None
                engine.send(request.shift(engine.ready.adds_bos))
                return events, False
            reason = t.REASON_CANCEL
        if reason == t.REASON_ERROR and self._awaits_failure(request, engine):
            return events, False
        self._rows.free(request, release=True)
        self._end(request, REASONS[reason])
        return events or MORE, True

    def _tell_prompt_work(self, request: Request, engine: EngineHandle) -> None:
        """Tell the client that its prompt is being computed, and how far, where it asked."""
        table, is_told = engine.table, False
        is_due = request.begin_due and request.lane_is_known() and not request.told
        if is_due and table.t_admit_ns[request.slot]:  # the first token may be long in coming
            delivery.tell_begin(request, table)
            is_told = True
        if request.message.progress and not request.tokens:
            is_told = delivery.tell_progress(request, table) or is_told
        if is_told:
            self._ends.flush(request.sink)

    def _end(self, request: Request, reason: str) -> None:
        """End a request whose row has ended."""
        if reason == "error":
            code, text = request.failure or (E_RUNTIME_001, "the model failed to decode")
            self._ends.fail(request, code, text)
        elif reason == "cancel":
            self._ends.end_cancelled(request)
        else:
            self._ends.end(request, reason)

    @staticmethod
    def _awaits_failure(request: Request, engine: EngineHandle) -> bool:
        """The row may be seen before the message that says why it failed: give that three more
        wakes."""
        if request.failure is not None or request.failing > 2 or not engine.alive:
            return False
        request.failing += 1
        return True
