"""All requests between their arrival and their last event: the queues, the rows, the tokens.

Requests beyond the rows of the session table wait here, interactive ones first, each lane in order
of arrival.  Those that a dead engine left behind go before all of them, to its successor alone:
they go on with the model that they began with.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable

import trio

from umaserve.engine import messages as m
from umaserve.engine import table as t
from umaserve.memory_order import loads_first
from umaserve.protocol import E_LIMIT_002, E_RUNTIME_001, Generate, ProtocolError
from umaserve.server import blame, front_cores
from umaserve.server.chat_thread import ChatThread, Outcome
from umaserve.server.delivery import read_row, tell_rest
from umaserve.server.engine_handle import EngineExit, EngineHandle
from umaserve.server.meters import Meters
from umaserve.server.quick_tokens import QuickTokens
from umaserve.server.request import Request, Sink

NUDGE_EVERY_S = 0.01  # while no request comes: an engine looks out for one most of a millisecond
AGED_NS = 5_000_000_000  # a background request that waited so long goes before interactive ones

REASONS = {
    t.REASON_STOP: "stop",
    t.REASON_LENGTH: "length",
    t.REASON_CANCEL: "cancel",
    t.REASON_ERROR: "error",
}


class Sessions:
    """``engine`` is where new requests go (``None``, or ``holding``: they wait); ``closed`` is why
    none are taken."""

    def __init__(
        self,
        max_sessions: int,
        max_queue: int,
        max_tokens: int,
        meters: Meters,
        log: Callable[..., None],
    ) -> None:
        self.engine: EngineHandle | None = None
        self.holding = False
        self.closed: tuple[str, str] | None = None
        self.live: dict[int, Request] = {}
        self.meters = meters
        self._max_queue = max_queue
        self._max_tokens = max_tokens
        # background work never takes the last rows, so that an interactive request finds one
        self._reserved = max_sessions // 8
        self._queues: tuple[dict[int, Request], ...] = ({}, {})
        self._serial = itertools.count(1)
        self._chat = ChatThread()
        self._log = log
        self._nudge_again_s = 0.0
        self._changed = trio.Event()
        self._quick = QuickTokens(meters, self._look_for_row)

    # --- from clients -----------------------------------------------------------------------------

    def submit(
        self,
        sink: Sink,
        message: Generate,
        arrived_ns: int,
        begin: Callable[[Request], None],
    ) -> Request:
        """Take a request; ``begin`` hears of it before its first event.

        Raises ``ProtocolError`` (``E_LIMIT_002``, ``E_MODEL_001``) if it cannot be taken now.
        """
        if self.closed is not None:
            raise ProtocolError(*self.closed, id=message.id)
        serial = next(self._serial)
        request = Request.create(serial, sink, message, arrived_ns, self._max_tokens)
        waiting = sum(self.queued())
        if waiting >= self._max_queue and not self._could_start(request):
            text = f"{waiting} requests are waiting already; try again later"
            raise ProtocolError(E_LIMIT_002, text, id=message.id)
        self._nudge_again_s = 0.0
        self.meters.requests_total += 1
        self.live[request.serial] = request
        self._wait_in(self._queues[request.lane], request)
        begin(request)
        self.pump()
        return request

    def cancel(self, request: Request, *, gone: bool = False) -> None:
        """End a request at its next token; ``gone``: nobody is there to hear about it."""
        if gone:
            request.told = True
        if request.cancelled or request.serial not in self.live:
            return
        request.cancelled = True
        if request.engine is not None:
            if not request.ended_ns:
                request.engine.send(m.Cancel(request.serial))
        else:
            self._stop_waiting(request)
            self._end(request, "cancel")
            request.sink.flush()

    def set_lane(self, request: Request, lane: int) -> None:
        if lane == request.lane:
            return
        if request.queue is self._queues[request.lane]:
            self._stop_waiting(request)
            self._wait_in(self._queues[lane], request)
        request.lane = lane
        if request.engine is not None:
            request.engine.send(m.SetLane(request.serial, lane))
        self.pump()

    def expect_request(self) -> None:
        """Somebody connects, or sends what may be a request: let a sleeping engine wake up."""
        engine, now_s = self.engine, time.monotonic()
        if engine is not None and not engine.requests and now_s >= self._nudge_again_s:
            self._nudge_again_s = now_s + NUDGE_EVERY_S
            engine.nudge()

    def queued(self) -> tuple[int, int]:
        """Requests that wait for a row, per lane."""
        return len(self._queues[0]), len(self._queues[1])

    # --- to the engine ----------------------------------------------------------------------------

    def _could_start(self, request: Request) -> bool:
        engine = self.engine
        if engine is None or not engine.serving or self.holding or self._queues[request.lane]:
            return False
        return len(engine.free_slots) > (self._reserved if request.lane else 0)

    @staticmethod
    def _wait_in(queue: dict[int, Request], request: Request) -> None:
        queue[request.serial] = request
        request.queue = queue

    @staticmethod
    def _stop_waiting(request: Request) -> None:
        if request.queue is not None:
            request.queue.pop(request.serial, None)
            request.queue = None

    def pump(self, engine: EngineHandle | None = None) -> None:
        """Give free rows to requests that wait; ``None`` is the engine that takes new ones."""
        engine = engine or self.engine
        if engine is None or engine.ready is None or not engine.alive:
            return
        takes_new = engine is self.engine and engine.accepting and not self.holding
        while engine.free_slots:
            if engine.backlog:
                queue = engine.backlog
            elif takes_new and self._background_is_due(engine):
                queue = self._queues[1]
            elif takes_new and self._queues[0]:
                queue = self._queues[0]
            elif takes_new and self._queues[1] and len(engine.free_slots) > self._reserved:
                queue = self._queues[1]
            else:
                return
            request = queue[next(iter(queue))]
            self._stop_waiting(request)
            self._start(engine, request)

    def _background_is_due(self, engine: EngineHandle) -> bool:
        """Ageing: none has a row, and the oldest has waited long; then it goes before all."""
        if not self._queues[0] or not self._queues[1]:
            return False
        oldest = next(iter(self._queues[1].values()))
        if time.monotonic_ns() - oldest.arrived_ns < AGED_NS:
            return False
        return not any(request.lane for request in engine.requests.values())

    def _start(self, engine: EngineHandle, request: Request) -> None:
        request.engine, request.slot = engine, engine.free_slots.pop()
        request.accepted = False
        engine.requests[request.serial] = request
        front_cores.go_anywhere()
        messages = request.message.messages
        if messages is None or request.prompt_ids is not None:
            engine.send(request.submit_message(request.message.prompt, True))
        else:
            assert engine.ready is not None
            later = functools.partial(self._rendered_later, engine, request)
            outcome = self._chat.render(messages, engine.ready, later)
            if outcome is not None:
                self._rendered(engine, request, outcome)

    def _rendered_later(self, engine: EngineHandle, request: Request, outcome: Outcome) -> None:
        if request.engine is engine:  # else it is gone, and its successor's template is asked
            self._rendered(engine, request, outcome)
            self.pump(engine)

    def _rendered(self, engine: EngineHandle, request: Request, outcome: Outcome) -> None:
        if isinstance(outcome, ProtocolError):
            self._not_taken(request, outcome.code, outcome.message)
        elif request.cancelled:
            self._not_taken(request, "", "")
        else:
            engine.send(request.submit_message(*outcome))

    def _not_taken(self, request: Request, code: str, message: str) -> None:
        """End a request that the engine has put into no row."""
        self._free_row(request, release=False)
        if request.cancelled:
            self._end(request, "cancel")
        else:
            self.fail(request, code, message)
        request.sink.flush()

    # --- from the engine --------------------------------------------------------------------------

    def on_message(self, engine: EngineHandle, message: m.ToFront) -> None:
        match message:
            case m.Rejected():
                request = engine.requests.get(message.serial)
                if request is not None:
                    self._not_taken(request, message.code, message.message)
                    self.pump(engine)
            case m.Failed():
                failed = [engine.requests[s] for s in message.serials if s in engine.requests]
                for request in failed:
                    request.failure = (message.code, message.message)
                self._read(failed, engine)

    def _look_for_row(self, engine: EngineHandle, request: Request) -> None:
        """Find out whether the engine has tokenised a request and put it into the table."""
        table, slot = engine.table, request.slot
        if table.state.item(slot) == t.FREE or table.serial.item(slot) != request.serial:
            return
        loads_first()
        n_prompt = table.n_prompt.item(slot)
        if not n_prompt:  # it was cancelled before
            return
        request.accepted = True
        if request.prompt_ids is None:
            request.prompt_ids = table.tokens[slot, :n_prompt].tolist()
            request.max_tokens = table.max_tokens.item(slot)
            self.meters.prompt_tokens_total += n_prompt
        if request.cancelled:  # the engine may not have known it yet when it was told
            engine.send(m.Cancel(request.serial))

    def on_tokens(self, engine: EngineHandle) -> bool:
        """Read and send what is quick to; True: `on_wake` has more to do.  Does not touch trio."""
        return self._quick.read(engine)

    def on_wake(self, engine: EngineHandle) -> None:
        """Read every row of an engine that changed, and send what came of it."""
        for sink in self._quick.take_unsent():
            sink.flush()
        if engine.ready is not None:
            self._read(list(engine.requests.values()), engine)
            self.meters.read_ticks(engine)

    def _read(self, requests: Iterable[Request], engine: EngineHandle) -> None:
        meters = self.meters
        baseline_ns = engine.table.header.item(t.H_BASELINE_NS)
        touched: dict[int, list[Request]] = {}  # by sink
        ended = False
        for request in requests:
            if not request.accepted:
                self._look_for_row(engine, request)
            read, emitted = len(request.tokens), request.emitted
            reason, stopped = read_row(request, engine)
            meters.tokens_total += len(request.tokens) - read
            if request.emitted > emitted:
                touched.setdefault(id(request.sink), []).append(request)
                if not emitted:  # somebody waits for this one: it goes ahead of all bookkeeping
                    now_ns = time.monotonic_ns()
                    request.sink.flush()
                    meters.sent(request, now_ns, baseline_ns)
            if stopped and not request.told:
                self._tell(request, "stop")
                touched.setdefault(id(request.sink), []).append(request)
                if reason is None:
                    engine.send(m.Cancel(request.serial))
            if reason == t.REASON_ERROR and self._awaits_failure(request, engine):
                continue
            if reason is not None:
                ended = True
                touched.setdefault(id(request.sink), []).append(request)
                self._free_row(request, release=True)
                name = REASONS[reason]
                if name == "error":
                    code, text = request.failure or (E_RUNTIME_001, "the model failed to decode")
                    self.fail(request, code, text)
                else:
                    self._end(request, name)
        for sharing in touched.values():
            # before: who is woken by it may run in our place until it has read
            now_ns = time.monotonic_ns()
            sharing[0].sink.flush()
            for request in sharing:
                meters.sent(request, now_ns, baseline_ns)
        if ended:
            self.pump(engine)

    @staticmethod
    def _awaits_failure(request: Request, engine: EngineHandle) -> bool:
        """The row may be seen before the message that says why it failed: give that three more
        wakes."""
        if request.failure is not None or request.failing > 2 or not engine.alive:
            return False
        request.failing += 1
        return True

    def _free_row(self, request: Request, *, release: bool) -> None:
        engine = request.engine
        assert engine is not None
        if release:
            engine.send_along(m.Release(request.serial, request.slot))
        engine.requests.pop(request.serial, None)
        engine.free_slots.append(request.slot)
        request.engine, request.slot = None, -1
        if not engine.requests and engine.ready is not None:
            front_cores.keep_off(engine.ready.loop_cpus)

    # --- ends -------------------------------------------------------------------------------------

    def _tell(self, request: Request, reason: str) -> None:
        """The last event of a request, once."""
        if request.told:
            return
        tell_rest(request)
        request.told = True
        request.ended_ns = time.monotonic_ns()
        request.sink.end(request, reason, request.usage(), request.timings(request.ended_ns))

    def _end(self, request: Request, reason: str) -> None:
        self._tell(request, reason)
        text = f"request {request.id!r} ended ({reason}) after {len(request.tokens)} tokens"
        self._log("debug", text, request=request.id, connection=request.sink.label)
        self.live.pop(request.serial, None)
        self._changed.set()
        self._changed = trio.Event()

    def fail(self, request: Request, code: str, message: str) -> None:
        """An error, then the end for a request that had begun."""
        self.meters.error(code, message, request.id, request.sink)
        begun = request.prompt_ids is not None
        if not request.told:
            tell_rest(request)
            request.sink.error(request, code, message, final=not begun)
            request.told = not begun
        self._end(request, "error")

    def fail_waiting(self, requests: Iterable[Request], code: str, message: str) -> None:
        """End requests that have no engine; ``E_RUNTIME_001`` for those that had begun."""
        for request in list(requests):
            self._stop_waiting(request)
            begun = request.prompt_ids is not None
            self.fail(request, E_RUNTIME_001 if begun else code, message)
            request.sink.flush()

    def fail_queued(self, code: str, message: str) -> None:
        """End everything that waits to begin."""
        self.fail_waiting([r for queue in self._queues for r in queue.values()], code, message)

    # --- engines that go --------------------------------------------------------------------------

    def recover(self, engine: EngineHandle, exit: EngineExit) -> None:
        """An engine is gone: read what it had published, judge, and keep the rest in its backlog.

        Any consistent cut of the published tokens is right: what was not read is generated again.
        """
        if not engine.pid:
            return
        requests = sorted(engine.requests.values(), key=lambda r: r.serial)
        if requests:
            self._read(requests, engine)
        left = [r for r in requests if r.serial in engine.requests]
        suspects = [r for r in left if engine.table.in_tick[r.slot] == t.IN_TOKENIZER]
        if not suspects and not engine.is_tokenizing:
            suspects = [r for r in left if engine.table.in_tick[r.slot]]
        others = [r for r in left if r not in suspects]
        records = [r.record for r in suspects]
        if engine.is_tokenizing:
            records.append(blame.Record())  # its own error, which `EngineHandle` gives it
        guilty = blame.judge(exit.kind, records, [r.record for r in others])
        behind, engine.backlog = engine.backlog, {}
        for request in left:
            engine.requests.pop(request.serial, None)
            request.engine, request.slot, request.accepted = None, -1, False
            if request.told or request.cancelled:
                self._end(request, "cancel")
            elif request.record in guilty:
                text = f"this request brought the engine down repeatedly: it {exit}"
                self._log("error", f"request {request.id!r} ends: {text}", request=request.id)
                self.fail(request, E_RUNTIME_001, text)
            else:
                request.resumed_at = len(request.tokens)
                self._wait_in(engine.backlog, request)
            request.sink.flush()
        for request in behind.values():
            self._wait_in(engine.backlog, request)
        self.meters.engine_gone(engine)

    def inherit(self, successor: EngineHandle, engine: EngineHandle) -> None:
        """Let ``successor`` go on with what ``engine`` left."""
        left = sorted(engine.backlog.values(), key=lambda r: r.serial)
        engine.backlog.clear()
        for request in left:
            self._wait_in(successor.backlog, request)
        engine.successor = successor

    async def drain(self, engine: EngineHandle | None, limit_s: float) -> None:
        """Wait until an engine and what replaces it (``None``: the whole daemon) have no request
        left; after ``limit_s`` cancel the rest."""
        with trio.move_on_after(limit_s):
            await self._until_idle(engine)
            return
        for request in self._of(engine):
            self.cancel(request)
        with trio.move_on_after(2.0):
            await self._until_idle(engine)
            return
        for request in self._of(engine):  # the engine does not even get to the next token
            self._tell(request, "cancel")
            request.sink.flush()

    async def _until_idle(self, engine: EngineHandle | None) -> None:
        while self._of(engine):
            await self._changed.wait()

    def _of(self, engine: EngineHandle | None) -> list[Request]:
        if engine is None:
            return list(self.live.values())
        newest = engine.newest
        return [*newest.requests.values(), *newest.backlog.values()]
