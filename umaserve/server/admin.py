"""Answers to everything that is not a request for text."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio

from umaserve import protocol as p
from umaserve.server.encoding import Encoding
from umaserve.server.overview import Overview, Watched, info, models_of
from umaserve.server.requests.request import LANES, Request
from umaserve.server.supervision.model_rows import adapters_of
from umaserve.server.text_answers import TextAnswers, program_asking

if TYPE_CHECKING:
    from umaserve.server.clients.connection import Connection

MAX_AT_ONCE = 64  # admin answers under way on one connection


class Admin:
    """Cheap answers are sent at once; the others run as tasks of the connection that asked."""

    def __init__(self, daemon: Watched) -> None:
        self._daemon = daemon
        self._texts = TextAnswers(daemon)
        encoding = Encoding(daemon, self._texts)
        self._answers: dict[type, Any] = {
            p.AskAdapters: self._adapters,
            p.AskCache: self._texts.cache,
            p.DetokenizeRequest: self._texts.detokenize,
            p.Embed: encoding.embed,
            p.Load: self._load,
            p.Render: self._texts.render,
            p.Rerank: encoding.rerank,
            p.TokenizeRequest: self._texts.tokenize,
            p.Unload: self._unload,
        }
        self.overview = Overview(daemon)

    def handle(self, connection: Connection, message: p.AdminMessage) -> None:
        """Raises ``ProtocolError`` for what cannot be done."""
        match message:
            case p.Ping():
                connection.send(p.admin_event("pong", message.id))
            case p.Info():
                connection.relays = connection.relays or message.relays
                told = info(self._daemon, message.model, template=message.template)
                connection.send(p.admin_event("info", message.id, info=told))
            case p.AskModels():
                models = models_of(self._daemon)
                connection.send(p.admin_event("models", message.id, models=models))
            case p.Cancel() if message.serial is None and message.id in connection.questions:
                connection.questions[message.id].cancel()
                connection.send(p.admin_event("cancelled", message.id, found=True))
            case p.Cancel():
                request = self._find(connection, message)
                found = request is not None and not request.told
                connection.send(p.admin_event("cancelled", message.id, found=found))
                if request is not None:
                    self._daemon.sessions.ends.cancel(request)
            case p.SetPriority():
                self._set_priority(connection, message)
            case p.Metrics() if message.interval_ms is None:
                connection.send(self._metrics(message))
            case p.Metrics():
                self._start(connection, message, self._stream_metrics)
            case _:
                self._start(connection, message, self._answers[type(message)])

    def _metrics(self, message: p.Metrics) -> bytes:
        if message.sessions:
            return p.admin_event("metrics", message.id, **self.overview.read())
        return p.admin_event("metrics", message.id, metrics=self._daemon.scorecard.read())

    def _find(self, connection: Connection, message: p.Cancel | p.SetPriority) -> Request | None:
        """The request of that serial; else the asker's own of that id, else the only one of its
        program.

        Other programs' requests are found by serial alone: two that both call a request "1" are
        not to end each other's.
        """
        live = self._daemon.sessions.live
        if message.serial is not None:
            return live.get(message.serial)
        own = connection.requests.get(message.id or "")
        if own is not None:
            return own
        of_id = [r for r in live.values() if r.id == message.id and not r.told]
        found = [r for r in of_id if r.sink.program == connection.program]
        return found[0] if len(found) == 1 else None

    def _set_priority(self, connection: Connection, message: p.SetPriority) -> None:
        request = self._find(connection, message)
        if request is None:
            field = "id" if message.serial is None else "serial"
            value = getattr(message, field)
            text = f'"{field}" must name one request that runs or waits; {value!r} does not'
            raise p.ProtocolError(p.E_PROTO_003, text, id=message.id)
        self._daemon.sessions.set_lane(request, LANES[message.priority])
        connection.send(p.admin_event("priority", message.id, priority=message.priority))

    def _start(self, connection: Connection, message: Any, answer: Any) -> None:
        program = program_asking(connection, message)
        if connection.answering[program] >= MAX_AT_ONCE:
            text = f"{MAX_AT_ONCE} admin messages of this connection are being answered already"
            raise p.ProtocolError(p.E_LIMIT_002, text, id=message.id)
        connection.answering[program] += 1
        connection.keeps_alive += 1
        scope = trio.CancelScope()  # a cancel may come before the task begins
        if message.id is not None:
            connection.questions[message.id] = scope
        connection.nursery.start_soon(self._answer, connection, message, answer, program, scope)

    async def _answer(
        self, connection: Connection, message: Any, answer: Any, program: int,
        scope: trio.CancelScope,
    ) -> None:  # fmt: skip
        try:
            with scope:
                await answer(connection, message)
        except p.ProtocolError as error:
            error.id = message.id
            connection.refuse(error)
        except Exception as error:
            connection.broke(error, message.id)
        finally:
            if connection.questions.get(message.id) is scope:
                del connection.questions[message.id]
            connection.keeps_alive -= 1
            connection.answering[program] -= 1
            if not connection.answering[program]:
                del connection.answering[program]

    async def _stream_metrics(self, connection: Connection, message: p.Metrics) -> None:
        assert message.interval_ms is not None
        due = trio.current_time()
        while True:
            began_s = time.monotonic()
            connection.send(self._metrics(message))
            await connection.use_front(began_s)
            due = max(due + message.interval_ms / 1000, trio.current_time())
            await trio.sleep_until(due)

    async def _load(self, connection: Connection, message: p.Load) -> None:
        def report(fraction: float, stage: str) -> None:
            fraction = round(fraction, 4)
            connection.send(p.admin_event("progress", message.id, fraction=fraction, stage=stage))

        path = await self.serve(message.model, report)
        connection.send(p.admin_event("loaded", message.id, model=path))

    async def serve(self, model: str, report: Callable[[float, str], None]) -> str:
        """Load another model and return its path.  Raises ``ProtocolError``."""
        self._refuse_when_stopping()
        ready = await self._daemon.models.load(model, report)
        self._daemon.log("info", f"now serving {ready.model_name} ({ready.model_path})")
        return ready.model_path

    async def _unload(self, connection: Connection, message: p.Unload) -> None:
        self._refuse_when_stopping()
        supervisor = self._daemon.models.named(message.model)
        name = supervisor.service.name or "the model"
        await supervisor.changes.unload()
        self._daemon.log("info", f"{name} was unloaded")
        connection.send(p.admin_event("unloaded", message.id))

    async def _adapters(self, connection: Connection, message: p.AskAdapters) -> None:
        """Tell a model's adapters; before that, change the scales where the message names some."""
        service = self._daemon.models.named(message.model).service
        await self._texts.ready_engine(service)
        found = adapters_of(service)
        if message.lora is not None:
            named = dict(message.lora)
            if strangers := [i for i, scale in named.items() if scale and i >= len(found)]:
                text = f'"lora" names adapter {strangers[0]}; the model has {len(found)}'
                raise p.ProtocolError(p.E_PROTO_003, text)
            service.lora = tuple((i, named.get(i, 0.0)) for i in range(len(found)))
            found = adapters_of(service)
        connection.send(p.admin_event("adapters", message.id, adapters=found))

    def _refuse_when_stopping(self) -> None:
        if self._daemon.stopping:
            raise p.ProtocolError(p.E_LIMIT_002, p.STOPPING)
