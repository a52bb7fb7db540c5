"""Answers about texts: their tokens, and prompts of conversations.

An engine is asked for most of them.  Where it ends meanwhile, the next one is asked.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from umaserve import protocol as p
from umaserve.chat.questions import Rendered, render
from umaserve.protocol.history import without_pictures
from umaserve.server.clients.questions import Questions
from umaserve.server.engines.asked import TextFault
from umaserve.server.engines.handle import EngineHandle
from umaserve.server.figures.cache_report import cache_report
from umaserve.server.overview import Watched
from umaserve.server.requests.client import sharer_of
from umaserve.server.requests.conversations.layer import Outcome
from umaserve.server.requests.queue.turns import Asker
from umaserve.server.requests.service import Service
from umaserve.wire import messages as m

if TYPE_CHECKING:
    from umaserve.server.clients.connection import Connection

SUCCESSOR_POLL_S = 0.02
ENGINE_TRIES = 4  # engines that may end one after the other
TOKENS_AT_ONCE = 4096  # that are spelled before others have their turn
UNCOUNTED = "pictures are not counted here"
WITHOUT_ENGINE = "the engine ended meanwhile; ask again"

Answer = TypeVar("Answer")


class TextAnswers:
    """Each method answers one kind of message; it raises ``ProtocolError`` where it cannot."""

    def __init__(self, daemon: Watched) -> None:
        self._daemon = daemon
        # by the number of the model's service: an engine has one question of a kind at a time
        self._questions = defaultdict[int, Questions](Questions)
        self._caches = defaultdict[int, Questions](lambda: Questions("looked up"))

    async def tokenize(self, connection: Connection, message: p.TokenizeRequest) -> None:
        def asked(ref: int) -> m.Tokenize:
            first, *more = message.texts
            return m.Tokenize(ref, first, message.add_special, message.parse_special, more)

        answer = await self.by_engine(
            self._service(message, message.role),
            self._questions,
            program_asking(connection, message),
            lambda engine: engine.asked.ask(asked, m.Tokens),
        )
        if answer.error:
            raise p.ProtocolError(p.E_PROTO_003, f'"text" cannot be tokenised: {answer.error}')
        counts = {"counts": answer.counts} if message.several else {}
        connection.send(p.admin_event("tokens", message.id, tokens=answer.tokens, **counts))

    async def detokenize(self, connection: Connection, message: p.DetokenizeRequest) -> None:
        engine, ready = await self.ready_engine(self._service(message))
        tokens, n_vocab, pieces = message.tokens, ready.n_vocab, engine.pieces
        if tokens and max(tokens) >= n_vocab:
            text = f'"tokens" names token {max(tokens)}; the vocabulary has {n_vocab}'
            raise p.ProtocolError(p.E_PROTO_003, text)
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
                raise p.ProtocolError(p.E_LIMIT_001, f"{text}; the limit is that of a prompt")
            await connection.use_front(began_s)
            await trio.lowlevel.checkpoint()
        more = {"pieces": listed} if message.with_pieces else {}
        text = b"".join(found).decode("utf-8", "replace")
        connection.send(p.admin_event("text", message.id, text=text, **more))

    async def render(self, connection: Connection, message: p.Render) -> None:
        engine, _ = await self.ready_engine(self._service(message))
        outcomes: list[Outcome] = []
        answered = trio.Event()

        def done(outcome: Outcome) -> None:
            outcomes.append(outcome)
            answered.set()

        messages, left = without_pictures(message.messages, UNCOUNTED)
        unread = (*message.chat.unread, *left)
        question = render(messages, message.chat, spans=True)
        chat = self._daemon.sessions.prompts.chat
        program = program_asking(connection, message)
        forget = chat.put(engine.chat, question, Rendered, done, asker=Asker(program))
        try:
            await answered.wait()
        finally:
            forget()
        outcome = outcomes[0]
        if isinstance(outcome, p.ProtocolError):
            raise outcome
        assert isinstance(outcome, Rendered)
        if not message.chat.add_generation_prompt:
            outcome = outcome.without_generation_prompt()
        connection.send(
            p.admin_event(
                "rendered",
                message.id,
                prompt=outcome.prompt,
                markup=outcome.markup,
                plain=outcome.plain,
                stop=outcome.stops,
                **({"unread": unread} if unread else {}),
            )
        )

    async def cache(self, connection: Connection, message: p.AskCache) -> None:
        async def ask(engine: EngineHandle) -> dict[str, Any] | None:
            report = await engine.asked.ask(m.AskCache, m.CacheReport)
            if report is None:
                return None
            return cache_report(report, engine.pieces.spelled, engine.app_of)

        service = self._daemon.models.named(message.model).service
        cache = await self.by_engine(service, self._caches, connection.program, ask)
        connection.send(p.admin_event("cache", message.id, cache=cache))

    def _service(self, message: Any, role: str = "") -> Service:
        """The model that a message names; else the first of the ``role``, or the default."""
        return self._daemon.sessions.services.find(message.model, role, message.key)

    async def ready_engine(self, service: Service) -> tuple[EngineHandle, m.Ready]:
        """The engine that serves a model, once it is ready, or the next one where it ends before.

        Raises ``ProtocolError``.
        """
        with _asking(service):
            for _ in range(ENGINE_TRIES):
                engine = await self._daemon.models.engine(service)
                await engine.settled.wait()
                if engine.ready is not None:
                    return engine, engine.ready
                await self._end_of(engine, service)
                failure = self._daemon.models.all[service.number].failure
                if service.engine is None and failure:
                    raise p.ProtocolError(p.E_MODEL_002, failure)
        raise p.ProtocolError(p.E_MODEL_001, WITHOUT_ENGINE)

    async def by_engine(
        self,
        service: Service,
        questions: dict[int, Questions],
        program: Hashable,
        ask: Callable[[EngineHandle], Awaitable[Answer | None]],
    ) -> Answer:
        """By the engine that serves a model, or by the next one where it ends meanwhile."""
        with _asking(service):
            for _ in range(ENGINE_TRIES):
                engine, _ = await self.ready_engine(service)
                try:
                    async with questions[service.number].turn(program):
                        answer = await ask(engine)
                except TextFault as fault:
                    text = f"this text brought the engine down: it {fault}"
                    raise p.ProtocolError(p.E_RUNTIME_001, text) from None
                if answer is not None:
                    return answer
                await self._end_of(engine, service)
        raise p.ProtocolError(p.E_MODEL_001, WITHOUT_ENGINE)

    async def _end_of(self, engine: EngineHandle, service: Service) -> None:
        """Wait until an engine has ended, and its model has another one or gets none."""
        await engine.exited.wait()
        closed = self._daemon.sessions.closed
        while service.engine is engine and closed is None and service.closed is None:
            await trio.sleep(SUCCESSOR_POLL_S)
            closed = self._daemon.sessions.closed


@contextlib.contextmanager
def _asking(service: Service) -> Iterator[None]:
    """Keep the model's engine meanwhile: before its turn, a question is none of the engine's."""
    service.asking += 1
    try:
        yield
    finally:
        service.asking -= 1


def program_asking(connection: Connection, message: Any) -> int:
    """Return the number of the program whose share of answers a message takes."""
    return sharer_of(connection, getattr(message, "key", ""), None)
