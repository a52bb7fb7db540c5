"""All requests between their arrival and their last event.

Requests beyond the rows of the session table wait (`umaserve.server.requests.queue.waiting`).  They
get `Rows`, a `Reader` delivers their tokens, and `Ends` ends them.  Requests that a dead engine
left behind go before all others, to its successor alone: they go on with the model that they began
with.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from umaserve.app_settings import AppSettings
from umaserve.protocol import E_LIMIT_002, Generate, Overflow, ProtocolError, prompt_logprobs_event
from umaserve.server.engines.handle import EngineHandle
from umaserve.server.requests.conversations.prompts import Prompts
from umaserve.server.requests.ends import Ends
from umaserve.server.requests.meters.meters import Meters
from umaserve.server.requests.queue.waiting import WaitingRoom
from umaserve.server.requests.request import MOVED, Request, Sink
from umaserve.server.requests.rows import Rows
from umaserve.server.requests.service import Service, Services
from umaserve.server.requests.tokens.reader import Reader
from umaserve.wire import messages as m


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
        apps: Mapping[str, AppSettings] | None = None,
        n_seq: int = 0,
    ) -> None:
        self.closed: tuple[str, str] | None = None
        self.meters = meters
        self.log = log
        # background work never takes the last rows, so that an interactive request finds one
        reserved = max_sessions // 8
        # a program that is alone has as many rows as can run at once
        spare = max(min(reserved, max_sessions - n_seq), 0)
        self.services = Services(lambda: WaitingRoom(max_queue, reserved, spare))
        self.ends = Ends(meters, log)
        self.live = self.ends.live
        self.prompts = Prompts(self.ends, log)
        self.rows = Rows(self.services, self.prompts, self.ends, meters, max_tokens)
        self.reader = Reader(self.rows, self.ends, meters, log)
        self._max_tokens = max_tokens
        self._apps = apps or {}
        self._serial = itertools.count(1)

    def submit(self, sink: Sink, message: Generate, arrived_ns: int) -> Request:
        """Take a request; its sink hears of it before its first event.

        Raises ``ProtocolError`` (``E_LIMIT_002``, ``E_MODEL_001``) if it cannot be taken now.
        """
        service = self.services.find(message.model, key=message.key)
        closed = self.closed or service.closed
        if closed is not None:
            raise ProtocolError(*closed, id=message.id)
        self.rows.see_who_began(service)
        serial = next(self._serial)
        request = Request.create(
            serial, sink, message, arrived_ns, self._max_tokens, self._apps
        )  # fmt: skip
        request.service, request.lora = service, message.lora or service.lora
        self._find_room(request)
        self.meters.requests_total += 1
        self.meters.requests_of[service.number] += 1
        self.live[serial] = request
        service.room.take_turn(request)
        service.room.enter(request)
        sink.begin(request)
        self.rows.has_come(request)
        self.reader.count(self.meters.came, request)  # when it is on its way: names cost time
        return request

    def _find_room(self, request: Request) -> None:
        """Raises ``ProtocolError`` where a new request can neither start nor wait."""
        service, room = request.service, request.service.room
        waiting, engine = len(room), service.engine
        if waiting < room.most:
            return
        if engine is not None and engine.serving and not service.holding and (
            room.could_start(request, len(engine.free_slots))
        ):
            return
        other = room.who_makes_room(request)
        if other is None:
            text = f"{waiting} requests are waiting already; try again later"
            raise ProtocolError(E_LIMIT_002, text, id=request.id)
        text = f"{waiting} requests wait, most of them this program's: this one makes room"
        self.ends.refuse([other], E_LIMIT_002, text)

    def set_lane(self, request: Request, lane: int) -> None:
        if lane == request.lane and not request.auto:
            return
        request.auto = False
        if lane != request.lane:
            request.service.room.change_lane(request, lane)
        request.lane_reason = MOVED
        if request.engine is not None:
            request.engine.send(m.SetLane(request.serial, lane))
        self.rows.pump(request.service.engine)

    def queued(self) -> tuple[int, int]:
        """Requests that wait for a row, per lane."""
        interactive, background = zip(*(each.room.counts() for each in self.services), strict=True)
        return sum(interactive), sum(background)

    def refuse_queued(self, code: str, message: str, service: Service | None = None) -> None:
        """End everything that waits to begin, of one model or of all."""
        for each in self.services if service is None else (service,):
            self.ends.refuse(each.room.all(), code, message)

    def on_message(self, engine: EngineHandle, message: m.ToFront) -> None:
        """Take what an engine says of its requests."""
        match message:
            case m.Rejected():
                request = engine.requests.get(message.serial)
                if request is not None:
                    if message.n_prompt and engine.ready is not None:
                        request.overflow = Overflow(message.n_prompt, engine.ready.n_positions)
                    self.rows.free(request, release=False)
                    self.ends.refuse([request], message.code, message.message)
                    self.rows.pump(engine)
            case m.PromptLogprobs():
                request = engine.requests.get(message.serial)
                if request is not None:
                    self._rated(engine, request, message)
            case m.Failed():
                failed = [engine.requests[s] for s in message.serials if s in engine.requests]
                for request in failed:
                    request.failure = (message.code, message.message)
                self.reader.read(failed, engine)

    def _rated(self, engine: EngineHandle, request: Request, message: m.PromptLogprobs) -> None:
        """Log-probabilities of tokens of its prompt; the row follows the last ones."""
        with self.ends.telling(request):
            if request.rated is not None:
                new = request.rated.take(message, engine.pieces)
                if new and not request.told:
                    request.sink.put(prompt_logprobs_event(request.id, new))
        if message.last:
            self.reader.read([request], engine)
