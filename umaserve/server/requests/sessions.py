"""All requests between their arrival and their last event: the queues, the rows, the tokens.

Requests beyond the rows of the session table wait (`umaserve.server.requests.waiting`).  Those that
a dead engine left behind go before all of them, to its successor alone.  They go on with the model
that they began with.

Long: the one owner of all requests.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import trio

from umaserve.app_settings import AppSettings
from umaserve.chat.questions import Abilities, Rendered
from umaserve.protocol import (
    E_LIMIT_002,
    E_PROTO_003,
    E_PROTO_005,
    E_RUNTIME_001,
    Generate,
    Overflow,
    ProtocolError,
)
from umaserve.protocol.chat import must_call
from umaserve.server.engines.descriptors import Reserve
from umaserve.server.engines.handle import EngineHandle
from umaserve.server.log.lines import trace
from umaserve.server.requests.chat import ChatLayer, Outcome, conversation
from umaserve.server.requests.delivery import read_row, tell_begin, tell_progress, tell_prompt
from umaserve.server.requests.ends import Ends
from umaserve.server.requests.meters import Meters
from umaserve.server.requests.quick_tokens import QuickTokens
from umaserve.server.requests.reply import Reply
from umaserve.server.requests.request import MOVED, Request, Sink
from umaserve.server.requests.service import Service, Services
from umaserve.server.requests.waiting import WaitingRoom
from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.memory_order import loads_first

FIRST, MORE = 1, 2  # events that reading a row made: its first token among them, or not
NUDGE_EVERY_S = 0.01  # while no request comes: an engine looks out for one most of a millisecond

ONLY_EMBEDS = (
    "this model makes embeddings only (it is an encoder) and generates no text; "
    'ask it with {"type":"embed"}, or load a model that generates'
)

NO_SHIFT = (
    '"context_shift" cannot be true with this model ({}); leave it out, and a full context ends '
    "the answer"
)

NO_CALLS = (
    '"tool_choice" requires a call, and llama.cpp knows no calls of tools in this model\'s chat '
    'template; leave it out, or ask for the arguments with a "response_format"'
)

REASONS = {
    t.REASON_STOP: "stop",
    t.REASON_LENGTH: "length",
    t.REASON_CANCEL: "cancel",
    t.REASON_ERROR: "error",
}


class Sessions:
    """``services`` are the models that requests can ask for; ``closed`` is why none are taken for
    any of them.  ``apps``: what the configuration says of programs, by name; ``n_seq``: requests
    that run at once."""

    def __init__(
        self,
        max_sessions: int,
        max_queue: int,
        max_tokens: int,
        meters: Meters,
        log: Callable[..., None],
        reserve: Reserve | None = None,
        apps: Mapping[str, AppSettings] | None = None,
        n_seq: int = 0,
    ) -> None:
        self.closed: tuple[str, str] | None = None
        self.ends = Ends(meters, log)
        self.live = self.ends.live
        self.meters = meters
        self._max_tokens = max_tokens
        # background work never takes the last rows, so that an interactive request finds one
        reserved = max_sessions // 8
        # a program that is alone has as many rows as can run at once
        spare = max(min(reserved, max_sessions - n_seq), 0)
        self.services = Services(lambda: WaitingRoom(max_queue, reserved, spare))
        self._apps = apps or {}
        self.ends.on_over = self._over
        self._serial = itertools.count(1)
        self.chat = ChatLayer(log, reserve)
        self.replies = ChatLayer(log, reserve)  # no template makes these wait
        self.log = log
        self._nudge_again_s = 0.0
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
        service = self.services.find(message.model)
        closed = self.closed or service.closed
        if closed is not None:
            raise ProtocolError(*closed, id=message.id)
        self._see_who_began(service)
        serial = next(self._serial)
        request = Request.create(
            serial, sink, message, arrived_ns, self._max_tokens, self._apps
        )  # fmt: skip
        request.service = service
        self._find_room(request)
        self._nudge_again_s = 0.0
        self.meters.requests_total += 1
        self.live[request.serial] = request
        service.room.take_turn(request)
        service.room.enter(request)
        begin(request)
        service.used_s = time.monotonic()
        if service.engine is None and not service.holding:
            service.wake()
        self.pump(service.engine)
        self.count(self.meters.came, request)  # when it is on its way: names cost time
        return request

    def _find_room(self, request: Request) -> None:
        """Raises ``ProtocolError`` where a new request can neither start nor wait."""
        service, room = request.service, request.service.room
        waiting, engine = len(room), service.engine
        if waiting < room.most:
            return
        if service.is_ready and engine and room.could_start(request, len(engine.free_slots)):
            return
        other = room.who_makes_room(request)
        if other is None:
            text = f"{waiting} requests are waiting already; try again later"
            raise ProtocolError(E_LIMIT_002, text, id=request.id)
        text = f"{waiting} requests wait, most of them this program's: this one makes room"
        self.fail_waiting([other], E_LIMIT_002, text)

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
            return
        request.stop_waiting()
        try:
            self.ends.end(request, "cancel")
        except Exception as error:
            self.ends.broke(request, error)
        self.ends.flush(request.sink)

    def set_lane(self, request: Request, lane: int) -> None:
        if lane == request.lane and not request.auto:
            return
        request.auto = False
        if lane != request.lane:
            request.service.room.change_lane(request, lane)
        request.lane_reason = MOVED
        if request.engine is not None:
            request.engine.send(m.SetLane(request.serial, lane))
        self.pump(request.service.engine)

    def expect_request(self) -> None:
        """Wake the default model's engine, since somebody connects or sends a message."""
        engine, now_s = self.services.default.engine, time.monotonic()
        if engine is not None and not engine.requests and now_s >= self._nudge_again_s:
            self._nudge_again_s = now_s + NUDGE_EVERY_S
            engine.nudge()

    def queued(self) -> tuple[int, int]:
        """Requests that wait for a row, per lane."""
        interactive, background = zip(*(each.room.counts() for each in self.services), strict=True)
        return sum(interactive), sum(background)

    # --- to the engine ----------------------------------------------------------------------------

    def pump(self, engine: EngineHandle | None) -> None:
        """Give free rows of an engine to requests that wait for its model."""
        if engine is None or engine.ready is None or not engine.alive:
            return
        service = self.services[engine.service]
        takes_new = engine is service.engine and engine.accepting and not service.holding
        while engine.free_slots:
            request: Request | None = None
            if engine.backlog:
                request = engine.backlog[next(iter(engine.backlog))]
            elif takes_new:
                request = service.room.next(len(engine.free_slots), engine.requests.values())
            if request is None:
                return
            request.stop_waiting()
            if not engine.ready.generates:
                self._not_taken(request, (E_PROTO_003, ONLY_EMBEDS))
            elif request.message.context_shift and engine.ready.why_no_shift:
                self._not_taken(request, (E_PROTO_003, NO_SHIFT.format(engine.ready.why_no_shift)))
            elif self._needs_text(request, engine):
                self._render(request, engine)
            else:
                self._start(engine, request)

    @staticmethod
    def _see_who_began(service: Service) -> None:
        """Turns go on from the newest request that the engine has given a sequence."""
        engine = service.engine
        if engine is None:
            return
        for request in engine.requests.values():
            if request.accepted and engine.table.t_admit_ns.item(request.slot):
                service.room.begin(request)

    def _start(self, engine: EngineHandle, request: Request) -> None:
        request.engine, request.slot = engine, engine.free_slots.pop()
        request.model = engine.ready.model_name if engine.ready is not None else ""
        request.accepted, request.row_shifts = False, 0
        engine.requests[request.serial] = request
        try:
            engine.send(request.submit_message())
        except Exception as error:
            # nothing is taken for a request that could not be sent
            self._free_row(request, release=False)
            self.ends.broke(request, error)

    # --- conversations ----------------------------------------------------------------------------

    @staticmethod
    def _needs_text(request: Request, engine: EngineHandle) -> bool:
        """Whether its conversation has not been rendered by this model's template yet."""
        if request.message.messages is None or request.prompt_ids is not None:
            return False
        return request.rendered is None or request.rendered_by != engine.chat

    def _render(self, request: Request, engine: EngineHandle) -> None:
        """Have its text made; it takes a row when that is there."""
        assert request.message.messages is not None
        is_wanted = True

        def done(outcome: Outcome) -> None:
            if not is_wanted:
                return
            request.stop_waiting()
            try:
                self._rendered(request, outcome, engine)
            except Exception as error:
                self.ends.broke(request, error)

        def forget() -> None:
            nonlocal is_wanted
            is_wanted = False
            drop()

        request.rendered, request.rendered_by = None, engine.chat
        drop = self.chat.put(
            engine.chat,
            conversation(request.message.messages, request.message.chat),
            Rendered,
            done,
            lane=request.lane,
            asker=request.asker,
        )
        request.service.room.wait_for_text(request, forget)

    def _rendered(self, request: Request, outcome: Outcome, engine: EngineHandle) -> None:
        """The text of a conversation, or why there is none."""
        if isinstance(outcome, ProtocolError):
            self._not_taken(request, (outcome.code, outcome.message))
            return
        assert isinstance(outcome, Rendered)
        found = engine.chat_abilities  # not there yet: then its answer is read
        thinks = found is None or found.thinks
        chat = request.message.chat
        if must_call(chat) and not outcome.grammar:
            self._not_taken(request, (E_PROTO_005, NO_CALLS))
            return
        if not chat.add_generation_prompt:
            outcome = outcome.without_generation_prompt()
        is_read = chat.parsed or chat.deltas and thinks
        if chat.bound and outcome.thoughts is None and not outcome.calls:
            is_read = False  # it is all content
        request.take_rendered(outcome, self._reply(request, outcome) if is_read else None)
        request.service.room.enter(request)
        self.pump(request.service.engine)

    def _reply(self, request: Request, rendered: Rendered) -> Reply:
        message, model = request.message, request.rendered_by
        assert model is not None

        def tell(deltas: list[dict[str, Any]]) -> None:
            try:
                for delta in deltas:
                    request.sink.delta(request, delta)
            except Exception as error:
                self.ends.broke(request, error)
            self.ends.flush(request.sink)

        on_delta = tell if message.stream else None
        stops = (*message.stop, *rendered.stops)
        return Reply(
            self.replies, model, rendered, stops, on_delta,
            lane=request.lane, asker=request.asker,
        )  # fmt: skip

    def check_template(self, engine: EngineHandle) -> None:
        """Have it said now where the model's template cannot be used."""
        if engine.ready is None or not engine.ready.generates:
            return

        def done(outcome: Outcome) -> None:
            if isinstance(outcome, ProtocolError):
                engine.chat_error = outcome.message
                self.log("warn", f"conversations are refused: {outcome.message}")
            else:
                assert isinstance(outcome, Abilities)
                engine.chat_abilities = outcome

        self.chat.put(engine.chat, None, Abilities, done)

    # --- from the engine --------------------------------------------------------------------------

    def on_message(self, engine: EngineHandle, message: m.ToFront) -> None:
        match message:
            case m.Rejected():
                request = engine.requests.get(message.serial)
                if request is not None:
                    if message.n_prompt and engine.ready is not None:
                        request.overflow = Overflow(message.n_prompt, engine.ready.n_positions)
                    self._free_row(request, release=False)
                    self._not_taken(request, (message.code, message.message))
                    self.pump(engine)
            case m.PromptLogprobs():
                request = engine.requests.get(message.serial)
                if request is not None:
                    self._rated(engine, request, message)
            case m.Failed():
                failed = [engine.requests[s] for s in message.serials if s in engine.requests]
                for request in failed:
                    request.failure = (message.code, message.message)
                self.read(failed, engine)

    def _not_taken(self, request: Request, why: tuple[str, str] | None) -> None:
        """End a request that the engine has put into no row; ``None``: it was cancelled."""
        try:
            if why is None or request.cancelled:
                self.ends.end_cancelled(request)
            else:
                self.ends.fail(request, *why)
        except Exception as error:
            self.ends.broke(request, error)
        self.ends.flush(request.sink)

    def _rated(self, engine: EngineHandle, request: Request, message: m.PromptLogprobs) -> None:
        """Log-probabilities of tokens of its prompt; the row follows the last ones."""
        try:
            if request.rated is not None:
                new = request.rated.take(message, engine.pieces)
                if new and not request.told:
                    request.sink.prompt_logprobs(request, new)
        except Exception as error:
            self.ends.broke(request, error)
        self.ends.flush(request.sink)
        if message.last:
            self.read([request], engine)

    def _look_for_row(self, engine: EngineHandle, request: Request) -> None:
        """Find out whether the engine has tokenised a request and put it into the table."""
        if request.rated is not None and not request.rated.is_whole:
            return  # what is on the way about its prompt goes first
        table, slot = engine.table, request.slot
        if table.state.item(slot) == t.FREE or table.serial.item(slot) != request.serial:
            return
        loads_first()
        if not table.n_tokens.item(slot):  # it was cancelled before
            return
        if request.message.context_shift and table.shifts.item(slot) != request.row_shifts:
            return  # its tokens are being moved
        loads_first()
        request.accepted = True
        if request.prompt_ids is None:
            n_prompt = table.n_prompt.item(slot)
            request.prompt_ids = table.tokens[slot, :n_prompt].tolist()
            request.max_tokens = self._most_tokens(engine, request)
            self.meters.prompt_tokens_total += n_prompt
            if request.message.echo and not request.told:
                tell_prompt(request, engine)
        if request.cancelled:  # the engine may not have known it yet when it was told
            engine.send(m.Cancel(request.serial))

    def _most_tokens(self, engine: EngineHandle, request: Request) -> int:
        """How many tokens it may get, now that it is known what its context leaves."""
        if not request.message.context_shift:
            return int(engine.table.max_tokens.item(request.slot))
        named = request.message.max_tokens
        if named is not None:
            return named
        assert engine.ready is not None
        return self._max_tokens or engine.ready.n_positions

    def on_tokens(self, engine: EngineHandle) -> bool:
        """Read and send what is quick to; True: `on_wake` has more to do.  Does not touch trio."""
        return self._quick.read(engine)

    def on_wake(self, engine: EngineHandle) -> None:
        """Read every row of an engine that changed, and send what came of it."""
        for request, error in self._quick.take_faults():
            self._fault(request, error)
        for sink in self._quick.take_unsent():
            self.ends.flush(sink)
        if engine.ready is None:
            return
        self.read(list(engine.requests.values()), engine)
        self.count(self.meters.read_ticks, engine)

    def count(self, meter: Callable[..., None], *args: Any) -> None:
        """Call something that only counts: if it fails, serving goes on."""
        try:
            meter(*args)
        except Exception as error:
            self._fault(None, error)

    def _fault(self, request: Request | None, error: Exception) -> None:
        """Our own code failed, on a request or (``None``) on counting what was sent."""
        if request is not None:
            self.ends.broke(request, error)
        else:
            self.log("error", f"something was not counted, serving goes on: {trace(error)}")

    def read(self, requests: Iterable[Request], engine: EngineHandle) -> None:
        """Take what the rows have published; send it, one flush for each sink."""
        baseline_ns = engine.table.header.baseline_ns
        touched: dict[Sink, list[Request]] = {}
        ended = False
        for request in requests:
            try:
                events, over = self._read_one(request, engine)
            except Exception as error:
                self.ends.broke(request, error)
                events, over = 0, request.engine is None
            ended = ended or over
            if events == FIRST:  # somebody waits for this one: it goes ahead of all bookkeeping
                self._flush(request.sink, [request], baseline_ns)
            if events:
                touched.setdefault(request.sink, []).append(request)
        for sink, sharing in touched.items():
            self._flush(sink, sharing, baseline_ns)
        if ended:
            self.pump(engine)

    def _flush(self, sink: Sink, sharing: list[Request], baseline_ns: int) -> None:
        # before: who is woken by it may run in our place until it has read
        now_ns = time.monotonic_ns()
        self.ends.flush(sink)
        try:
            for request in sharing:
                self.meters.sent(request, now_ns, baseline_ns)
        except Exception as error:
            self._fault(None, error)

    def _read_one(self, request: Request, engine: EngineHandle) -> tuple[int, bool]:
        """Whether events were made of it (``FIRST``, ``MORE`` or 0), and whether its row ended."""
        if not request.accepted:
            self._look_for_row(engine, request)
        if request.begin_due and request.lane_is_known() and not request.told:
            self._tell_begin(request, engine)
        if request.message.progress and not request.tokens and tell_progress(request, engine.table):
            self.ends.flush(request.sink)
        read, emitted = len(request.tokens), request.emitted
        reason, stopped = read_row(request, engine)
        self.meters.tokens_total += len(request.tokens) - read
        events = 0
        if request.emitted > emitted:
            events = MORE if emitted else FIRST
        if stopped and not request.told:
            self.ends.tell(request, "length" if request.is_late else "stop")
            events = events or MORE
            if reason is None:
                engine.send(m.Cancel(request.serial))
        if reason is None:
            return events, False
        if reason == t.REASON_LENGTH and request.outlives_context:
            if not (request.told or request.cancelled):
                assert engine.ready is not None
                engine.send(request.shift(engine.ready.adds_bos))
                return events, False
            reason = t.REASON_CANCEL
        if reason == t.REASON_ERROR and self._awaits_failure(request, engine):
            return events, False
        self._free_row(request, release=True)
        name = REASONS[reason]
        if name == "error":
            code, text = request.failure or (E_RUNTIME_001, "the model failed to decode")
            self.ends.fail(request, code, text)
        elif name == "cancel":
            self.ends.end_cancelled(request)
        else:
            self.ends.end(request, name)
        return events or MORE, True

    def _tell_begin(self, request: Request, engine: EngineHandle) -> None:
        """While its prompt is computed; the first token may be long in coming."""
        if engine.table.t_admit_ns.item(request.slot):
            tell_begin(request, engine.table)
            self.ends.flush(request.sink)

    @staticmethod
    def _awaits_failure(request: Request, engine: EngineHandle) -> bool:
        """The row may be seen before the message that says why it failed: give that three more
        wakes."""
        if request.failure is not None or request.failing > 2 or not engine.alive:
            return False
        request.failing += 1
        return True

    def _free_row(self, request: Request, *, release: bool) -> None:
        engine, slot = request.engine, request.slot
        assert engine is not None
        request.leave_row()
        if release:
            # the cells of a row that is full wait for it
            send = engine.send if request.message.context_shift else engine.send_along
            send(m.Release(request.serial, slot))
        engine.requests.pop(request.serial, None)
        engine.note_app(request.serial, request.app)
        engine.free_slots.append(slot)

    # --- ends -------------------------------------------------------------------------------------

    def fail_waiting(self, requests: Iterable[Request], code: str, message: str) -> None:
        """End requests that have no engine; ``E_RUNTIME_001`` for those that had begun."""
        self.ends.fail_waiting(requests, code, message)

    def fail_queued(self, code: str, message: str, service: Service | None = None) -> None:
        """End everything that waits to begin, of one model or of all."""
        for each in self.services if service is None else (service,):
            self.fail_waiting(each.room.all(), code, message)

    @staticmethod
    def _over(request: Request) -> None:
        request.service.room.over(request)
        request.service.used_s = time.monotonic()

    # --- waiting for the end ----------------------------------------------------------------------

    async def drain(
        self, engine: EngineHandle | None, limit_s: float, why: tuple[str, str]
    ) -> None:
        """Wait until an engine and its replacement have no request left; None: the whole daemon.

        After ``limit_s`` the rest is ended with the code and the text of ``why``.
        """
        with trio.move_on_after(limit_s):
            await self._until_idle(engine)
            return
        for request in self._of(engine):
            self._cut(request, why)
        with trio.move_on_after(2.0):
            await self._until_idle(engine)
            return
        for request in self._of(engine):  # the engine does not even get to the next token
            request.reply = None
            try:
                self.ends.tell_failure(request, *why)
                self.ends.tell(request, "error")
            except Exception as error:
                self.ends.broke(request, error)
            self.ends.flush(request.sink)

    def _cut(self, request: Request, why: tuple[str, str]) -> None:
        """End a request at its next token, and tell its client why."""
        if request.cancelled:
            return
        if request.engine is None:
            self.ends.fail_waiting([request], *why)
            return
        request.failure = why
        self.cancel(request)

    async def _until_idle(self, engine: EngineHandle | None) -> None:
        while self._of(engine):
            await self.ends.next()

    def _of(self, engine: EngineHandle | None) -> list[Request]:
        if engine is None:
            return list(self.live.values())
        newest = engine.newest
        return [*newest.requests.values(), *newest.backlog.values()]
