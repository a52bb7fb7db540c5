"""Answers to everything that is not a request for text.

Long: a method for each kind of message.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar

import trio

import umaserve
from umaserve.chat.questions import Rendered
from umaserve.protocol import (
    E_LIMIT_001,
    E_LIMIT_002,
    E_LIMIT_003,
    E_MODEL_001,
    E_PROTO_003,
    E_RUNTIME_001,
    STOPPING,
    AdminMessage,
    AskCache,
    AskModels,
    Cancel,
    DetokenizeRequest,
    Embed,
    Info,
    Load,
    Metrics,
    Overflow,
    Ping,
    ProtocolError,
    Render,
    SetPriority,
    TokenizeRequest,
    Unload,
    admin_event,
)
from umaserve.server.clients.questions import Questions
from umaserve.server.engines.handle import EngineHandle, TextFault
from umaserve.server.figures.cache_report import cache_report
from umaserve.server.figures.session_rows import session_rows
from umaserve.server.model_rows import model_of
from umaserve.server.overview import Overview, Watched, models_of, state
from umaserve.server.requests.chat import Outcome, conversation
from umaserve.server.requests.request import LANES, Request, sharer_of
from umaserve.server.requests.service import Service
from umaserve.server.requests.turns import Asker
from umaserve.server.requests.vectors import in_json, json_bytes
from umaserve.wire.messages import Embedded, Ready

if TYPE_CHECKING:
    from umaserve.server.clients.connection import Connection

SUCCESSOR_POLL_S = 0.02
TOKENIZE_TRIES = 4  # engines that may end one after the other
TOKENS_AT_ONCE = 4096  # that are spelled before others have their turn
MAX_AT_ONCE = 64  # admin answers under way on one connection
WITHOUT_ENGINE = "the engine ended meanwhile; ask again"

Answer = TypeVar("Answer")


class Admin:
    """Cheap answers are sent at once; the others run as tasks of the connection that asked."""

    def __init__(self, daemon: Watched) -> None:
        self._daemon = daemon
        # by the number of the model's service: an engine has one question of a kind at a time
        self._questions = defaultdict[int, Questions](Questions)
        self._embeds = defaultdict[int, Questions](lambda: Questions("embedded"))
        self._caches = defaultdict[int, Questions](lambda: Questions("looked up"))
        self.overview = Overview(daemon)

    def handle(self, connection: Connection, message: AdminMessage) -> None:
        """Raises ``ProtocolError`` for what cannot be done."""
        match message:
            case Ping():
                connection.send(admin_event("pong", message.id))
            case Info():
                connection.relays = connection.relays or message.relays
                info = self.info(message.model, message.template)
                connection.send(admin_event("info", message.id, info=info))
            case AskModels():
                models = models_of(self._daemon)
                connection.send(admin_event("models", message.id, models=models))
            case Cancel() if message.serial is None and message.id in connection.questions:
                connection.questions[message.id].cancel()
                connection.send(admin_event("cancelled", message.id, found=True))
            case Cancel():
                request = self._find(connection, message)
                found = request is not None and not request.told
                connection.send(admin_event("cancelled", message.id, found=found))
                if request is not None:
                    self._daemon.sessions.cancel(request)
            case SetPriority():
                self._set_priority(connection, message)
            case Metrics() if message.interval_ms is None:
                connection.send(self._metrics(message))
            case Metrics():
                self._start(connection, message, self._stream_metrics)
            case TokenizeRequest():
                self._start(connection, message, self._tokenize)
            case Embed():
                self._start(connection, message, self._embed)
            case Render():
                self._start(connection, message, self._render)
            case AskCache():
                self._start(connection, message, self._cache)
            case DetokenizeRequest():
                self._start(connection, message, self._detokenize)
            case Load():
                self._start(connection, message, self._load)
            case Unload():
                self._start(connection, message, self._unload)

    def _metrics(self, message: Metrics) -> bytes:
        if message.sessions:
            return admin_event("metrics", message.id, **self.overview.read())
        return admin_event("metrics", message.id, metrics=self._daemon.scorecard.read())

    def _find(self, connection: Connection, message: Cancel | SetPriority) -> Request | None:
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
        program = connection.program
        found = [
            r
            for r in live.values()
            if r.id == message.id and not r.told and r.sink.program == program
        ]
        return found[0] if len(found) == 1 else None

    def _set_priority(self, connection: Connection, message: SetPriority) -> None:
        request = self._find(connection, message)
        if request is None:
            field = "id" if message.serial is None else "serial"
            value = getattr(message, field)
            text = f'"{field}" must name one request that runs or waits; {value!r} does not'
            raise ProtocolError(E_PROTO_003, text, id=message.id)
        self._daemon.sessions.set_lane(request, LANES[message.priority])
        connection.send(admin_event("priority", message.id, priority=message.priority))

    def _start(self, connection: Connection, message: Any, answer: Any) -> None:
        program = _program(connection, message)
        if connection.answering[program] >= MAX_AT_ONCE:
            text = f"{MAX_AT_ONCE} admin messages of this connection are being answered already"
            raise ProtocolError(E_LIMIT_002, text, id=message.id)
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
        except ProtocolError as error:
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

    async def _stream_metrics(self, connection: Connection, message: Metrics) -> None:
        assert message.interval_ms is not None
        due = trio.current_time()
        while True:
            began_s = time.monotonic()
            connection.send(self._metrics(message))
            await connection.use_front(began_s)
            due = max(due + message.interval_ms / 1000, trio.current_time())
            await trio.sleep_until(due)

    async def _tokenize(self, connection: Connection, message: TokenizeRequest) -> None:
        answer = await self._by_engine(
            self._service(message),
            self._questions,
            _program(connection, message),
            lambda engine: engine.tokenize(
                message.texts, message.add_special, message.parse_special
            ),
        )
        if answer.error:
            raise ProtocolError(E_PROTO_003, f'"text" cannot be tokenised: {answer.error}')
        counts = {"counts": answer.counts} if message.several else {}
        connection.send(admin_event("tokens", message.id, tokens=answer.tokens, **counts))

    async def _detokenize(self, connection: Connection, message: DetokenizeRequest) -> None:
        engine, ready = await self._ready_engine(self._service(message))
        tokens, n_vocab, pieces = message.tokens, ready.n_vocab, engine.pieces
        if tokens and max(tokens) >= n_vocab:
            text = f'"tokens" names token {max(tokens)}; the vocabulary has {n_vocab}'
            raise ProtocolError(E_PROTO_003, text)
        found: list[bytes] = []
        listed: list[list[int]] = []
        size, most = 0, self._daemon.limits.max_prompt_bytes
        for at in range(0, len(tokens), TOKENS_AT_ONCE):
            began_s = time.monotonic()
            some = [*map(pieces.spelled, tokens[at : at + TOKENS_AT_ONCE])]
            found += some
            listed += [[*piece] for piece in some] if message.with_pieces else []
            size += sum(map(len, some))
            if size > most:  # some tokens are a hundred spaces
                text = f"the text of these tokens is longer than {most} bytes"
                raise ProtocolError(E_LIMIT_001, f"{text}; the limit is that of a prompt")
            await connection.use_front(began_s)
            await trio.lowlevel.checkpoint()
        more = {"pieces": listed} if message.with_pieces else {}
        text = b"".join(found).decode("utf-8", "replace")
        connection.send(admin_event("text", message.id, text=text, **more))

    def _service(self, message: Any, role: str = "") -> Service:
        """The model that a message names; else the first of the ``role``, or the default."""
        return self._daemon.sessions.services.find(message.model, role)

    async def _ready_engine(self, service: Service) -> tuple[EngineHandle, Ready]:
        """The engine that serves a model, once it is ready.  Raises ``ProtocolError``."""
        engine = await self._daemon.models.engine(service)
        await engine.settled.wait()
        if engine.ready is None:
            raise ProtocolError(E_MODEL_001, WITHOUT_ENGINE)
        return engine, engine.ready

    async def _by_engine(
        self,
        service: Service,
        questions: dict[int, Questions],
        program: Hashable,
        ask: Callable[[EngineHandle], Awaitable[Answer | None]],
    ) -> Answer:
        """By the engine that serves a model, or by the next one where it ends meanwhile."""
        for _ in range(TOKENIZE_TRIES):
            engine = await self._daemon.models.engine(service)
            await engine.settled.wait()
            if engine.ready is not None:
                try:
                    async with questions[service.number].turn(program):
                        answer = await ask(engine)
                except TextFault as fault:
                    text = f"this text brought the engine down: it {fault}"
                    raise ProtocolError(E_RUNTIME_001, text) from None
                if answer is not None:
                    return answer
            await engine.exited.wait()
            closed = self._daemon.sessions.closed
            while service.engine is engine and closed is None and service.closed is None:
                await trio.sleep(SUCCESSOR_POLL_S)
                closed = self._daemon.sessions.closed
        raise ProtocolError(E_MODEL_001, WITHOUT_ENGINE)

    async def _embed(self, connection: Connection, message: Embed) -> None:
        vectors: list[Any] = []
        tokens = 0
        service = self._service(message, "embed")
        self._refuse_large((await self._ready_engine(service))[1].n_embd, message)
        for what in message.inputs:
            answer: Embedded = await self._by_engine(
                service,
                self._embeds,
                _program(connection, message),
                lambda engine, what=what: engine.embed(what, message.truncate),  # type: ignore[misc]
            )
            if answer.error:
                number = f"input {len(vectors)}: " if len(message.inputs) > 1 else ""
                overflow = Overflow(answer.n_tokens, answer.most)
                is_long = answer.code == E_LIMIT_003
                raise ProtocolError(
                    answer.code, number + answer.error, overflow=overflow if is_long else None
                )
            vectors.append(in_json(answer.vector, message.base64))
            tokens += answer.n_tokens
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        more = {"model": service.label}
        connection.send(
            admin_event("embeddings", message.id, embeddings=vectors, usage=usage, **more)
        )

    def _refuse_large(self, n_embd: int, message: Embed) -> None:
        """An answer has to fit into what may wait for a client unread."""
        size = json_bytes(n_embd, message.base64) * len(message.inputs)
        most = self._daemon.config.max_unsent_bytes
        if size > most:
            text = f"the vectors of {len(message.inputs)} texts are about {size} bytes of JSON"
            text += f"; the limit is {most} (--max-unsent-bytes): send fewer texts at once"
            raise ProtocolError(E_LIMIT_001, text + ', or ask for "base64"' * (not message.base64))

    async def _render(self, connection: Connection, message: Render) -> None:
        engine, _ = await self._ready_engine(self._service(message))
        outcomes: list[Outcome] = []
        answered = trio.Event()

        def done(outcome: Outcome) -> None:
            outcomes.append(outcome)
            answered.set()

        question = conversation(message.messages, message.chat, spans=True)
        chat = self._daemon.sessions.chat
        program = _program(connection, message)
        forget = chat.put(engine.chat, question, Rendered, done, asker=Asker(program))
        try:
            await answered.wait()
        finally:
            forget()
        outcome = outcomes[0]
        if isinstance(outcome, ProtocolError):
            raise outcome
        assert isinstance(outcome, Rendered)
        if not message.chat.add_generation_prompt:
            outcome = outcome.without_generation_prompt()
        connection.send(
            admin_event(
                "rendered",
                message.id,
                prompt=outcome.prompt,
                markup=outcome.markup,
                plain=outcome.plain,
                stop=outcome.stops,
                **({"unread": message.chat.unread} if message.chat.unread else {}),
            )
        )

    async def _cache(self, connection: Connection, message: AskCache) -> None:
        async def ask(engine: EngineHandle) -> dict[str, Any] | None:
            report = await engine.cache()
            if report is None:
                return None
            return cache_report(report, engine.pieces.spelled, engine.app_of)

        service = self._daemon.models.named(message.model).service
        cache = await self._by_engine(service, self._caches, connection.program, ask)
        connection.send(admin_event("cache", message.id, cache=cache))

    async def _load(self, connection: Connection, message: Load) -> None:
        def report(fraction: float, stage: str) -> None:
            fraction = round(fraction, 4)
            connection.send(admin_event("progress", message.id, fraction=fraction, stage=stage))

        path = await self.serve(message.model, report)
        connection.send(admin_event("loaded", message.id, model=path))

    async def serve(self, model: str, report: Callable[[float, str], None]) -> str:
        """Load another model and return its path.  Raises ``ProtocolError``."""
        self._refuse_when_stopping()
        ready = await self._daemon.models.load(model, report)
        self._daemon.log("info", f"now serving {ready.model_name} ({ready.model_path})")
        return ready.model_path

    async def _unload(self, connection: Connection, message: Unload) -> None:
        self._refuse_when_stopping()
        supervisor = self._daemon.models.named(message.model)
        name = supervisor.service.name or "the model"
        await supervisor.unload()
        self._daemon.log("info", f"{name} was unloaded")
        connection.send(admin_event("unloaded", message.id))

    def _refuse_when_stopping(self) -> None:
        if self._daemon.stopping:
            raise ProtocolError(E_LIMIT_002, STOPPING)

    def info(self, name: str | None = None, template: bool = False) -> dict[str, Any]:
        """``model`` is that of this name, else the default; ``None`` while it is not loaded, with
        ``state`` saying what is going on.  ``models`` has all of them.
        ``template``: its ``template`` is the text of the chat template.
        ``next_try`` is when one that cannot be served now is tried again."""
        daemon = self._daemon
        service = daemon.sessions.services.find(name)
        next_try = daemon.models.all[service.number].next_try
        model = model_of(service.engine) if service.engine is not None else None
        ready = service.engine.ready if service.engine is not None else None
        if template and model is not None and ready is not None:
            model["template"] = ready.chat_template
        config = daemon.config
        names = (
            "max_sessions", "max_queue", "idle_timeout_s", "max_unsent_bytes", "max_connections",
            "drain_s",
        )  # fmt: skip
        limits = {name: getattr(config, name) for name in names} | daemon.limits._asdict()
        return {
            "version": umaserve.__version__,
            "pid": os.getpid(),
            "socket": config.socket,
            "http": daemon.http or None,
            "state": state(daemon, service),
            "model": model,
            "models": models_of(daemon),
            "next_try": next_try.state() if next_try is not None else None,
            "limits": limits,
            "sessions": session_rows(daemon.sessions),
            "recent": daemon.meters.recent_requests.read(),
        }


def _program(connection: Connection, message: Any) -> int:
    """Return the number of the program whose share of answers a message takes."""
    return sharer_of(connection, getattr(message, "key", ""), None)
