"""Rows of the session table: given to requests that wait, and taken back at their end."""

from __future__ import annotations

import time

from umaserve.protocol import E_PROTO_003
from umaserve.server.engines.handle import EngineHandle
from umaserve.server.requests.conversations.prompts import Prompts
from umaserve.server.requests.ends import Ends
from umaserve.server.requests.life import Answer, Stage
from umaserve.server.requests.meters.meters import Meters
from umaserve.server.requests.request import Request
from umaserve.server.requests.roles import CHAT, why_not
from umaserve.server.requests.service import Service, Services
from umaserve.server.requests.submission import submission
from umaserve.server.requests.tokens.delivery import tell_prompt
from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.memory_order import loads_first

NUDGE_EVERY_S = 0.01  # while no request comes: an engine looks out for one most of a millisecond

NO_SHIFT = (
    '"context_shift" cannot be true with this model ({}); leave it out, and a full context ends '
    "the answer"
)


class Rows:
    """``max_tokens`` holds where a client names no limit; 0 = as many as the context has."""

    def __init__(
        self, services: Services, prompts: Prompts, ends: Ends, meters: Meters, max_tokens: int
    ) -> None:
        self._services = services
        self._prompts = prompts
        self._ends = ends
        self._meters = meters
        self._max_tokens = max_tokens
        self._nudge_again_s = 0.0
        self._pumped: EngineHandle | None = None  # whose rows are being given away

    def expect_request(self) -> None:
        """Wake the default model's engine, since somebody connects or sends a message."""
        engine, now_s = self._services.default.engine, time.monotonic()
        if engine is not None and not engine.requests and now_s >= self._nudge_again_s:
            self._nudge_again_s = now_s + NUDGE_EVERY_S
            engine.nudge()

    def has_come(self, request: Request) -> None:
        """Let a new request wait for a row, and start an engine where its model is asleep."""
        service = request.service
        self._nudge_again_s = 0.0
        service.used_s = time.monotonic()
        if service.engine is None and not service.holding:
            service.wake()
        self.pump(service.engine)

    def pump(self, engine: EngineHandle | None) -> None:
        """Give free rows of an engine to requests that wait for its model.

        Requests that a dead engine left go first: they are in the backlog of its successor.
        """
        if engine is None or engine.ready is None or not engine.alive:
            return
        if engine is self._pumped:
            return  # the loop that has called this goes on with what has come
        former, self._pumped = self._pumped, engine
        try:
            self._fill(engine, engine.ready)
        finally:
            self._pumped = former

    def _fill(self, engine: EngineHandle, ready: m.Ready) -> None:
        """Give free rows away, until there is none or nobody waits."""
        service = self._services[engine.service]
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
            if why := why_not(service, ready, CHAT, self._services):
                self._ends.refuse([request], E_PROTO_003, why)
            elif request.message.context_shift and ready.why_no_shift:
                text = NO_SHIFT.format(ready.why_no_shift)
                self._ends.refuse([request], E_PROTO_003, text)
            elif self._prompts.is_needed(request, engine):
                self._prompts.make(request, engine, self._has_prompt)
            else:
                self._start(engine, request)

    def _has_prompt(self, request: Request) -> None:
        request.service.room.enter(request)
        self.pump(request.service.engine)

    @staticmethod
    def see_who_began(service: Service) -> None:
        """Let turns go on from the newest request that the engine has given a sequence."""
        engine = service.engine
        if engine is None:
            return
        for request in engine.requests.values():
            if request.stage is Stage.RUNNING and engine.table.t_admit_ns.item(request.slot):
                service.room.begin(request)

    def _start(self, engine: EngineHandle, request: Request) -> None:
        request.engine, request.slot = engine, engine.free_slots.pop()
        request.model = engine.ready.model_name if engine.ready is not None else ""
        request.row_shifts = 0
        request.enter(Stage.SUBMITTED)
        engine.requests[request.serial] = request
        try:
            engine.send(submission(request))
        except Exception as error:
            # nothing is taken for a request that could not be sent
            self.free(request, release=False)
            self._ends.broke(request, error)

    def accept(self, engine: EngineHandle, request: Request) -> None:
        """Find out whether the engine has tokenised a request and put it into the table."""
        if request.rated is not None and not request.rated.is_whole:
            return  # what is on the way about its prompt goes first
        table, slot = engine.table, request.slot
        # The serial goes first: the row may be its former request's, whose state is none of ours.
        # The engine writes the new serial behind FREE, and what comes after FREE is ours.
        if table.serial.item(slot) != request.serial:
            return
        loads_first()
        if table.state.item(slot) == t.FREE:
            return
        loads_first()
        if not table.n_tokens.item(slot):  # it was cancelled before
            return
        if request.message.context_shift and table.shifts.item(slot) != request.row_shifts:
            return  # its tokens are being moved
        loads_first()
        request.enter(Stage.RUNNING)
        if request.prompt_ids is None:
            n_prompt = table.n_prompt.item(slot)
            request.prompt_ids = table.tokens[slot, :n_prompt].tolist()
            request.max_tokens = self._most_tokens(engine, request)
            self._meters.prompt_tokens_total += n_prompt
            if request.message.echo and not request.told:
                tell_prompt(request, engine)
        if request.answer is not Answer.OPEN:  # the engine may not have known it yet
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

    @staticmethod
    def free(request: Request, *, release: bool) -> None:
        """Take the row from a request; ``release``: the engine has used it."""
        engine, slot = request.engine, request.slot
        assert engine is not None
        request.leave_row()
        if release:
            engine.send(m.Release(request.serial, slot))
        engine.requests.pop(request.serial, None)
        engine.note_app(request.serial, request.app)
        engine.free_slots.append(slot)
