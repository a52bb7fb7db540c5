"""Embeddings and rankings: texts go to the engine of a model in groups, and come back as vectors.

Groups of one message go one after the other.  An engine that only encodes has several groups at
once, whose texts share its batches.  An engine that generates takes one text at a time.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from umaserve import protocol as p
from umaserve.server.clients.questions import Questions
from umaserve.server.overview import Watched
from umaserve.server.requests.roles import EMBED, RERANK, why_not
from umaserve.server.requests.service import Service
from umaserve.server.text_answers import TextAnswers, program_asking
from umaserve.wire import messages as m

if TYPE_CHECKING:
    from umaserve.server.clients.connection import Connection
    from umaserve.server.engines.handle import EngineHandle

GROUP_TEXTS, GROUP_BYTES = 64, 8192  # of a group at most; one text may be longer
TOKEN_BYTES = 4
AT_ONCE = 4  # groups
DIGITS = 8  # behind the point: of scores, and of vectors, which have length 1


class Encoding:
    """Answers `Embed` and `Rerank`."""

    def __init__(self, daemon: Watched, asking: TextAnswers) -> None:
        self._daemon, self._asking = daemon, asking
        # by the number of the model's service
        self._of_generators = defaultdict[int, Questions](lambda: Questions("embedded"))
        self._of_encoders = defaultdict[int, Questions](lambda: Questions("encoded", AT_ONCE))

    async def embed(self, connection: Connection, message: p.Embed) -> None:
        """Answer with a vector for each text.  Raises ``ProtocolError``."""
        program = program_asking(connection, message)
        service, ready, path = await self._model(message, EMBED)
        self._refuse_large(ready.n_embd, message)
        vectors: list[Any] = []
        tokens, size = 0, 4 * ready.n_embd
        async for answer in self._encoded(service, path, program, message.inputs, message):
            found = answer.vectors
            parts = (found[at : at + size] for at in range(0, len(found), size))
            vectors += [in_json(each, message.base64) for each in parts]
            tokens += answer.n_tokens
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        more = {"usage": usage, "model": service.label}
        connection.send(p.admin_event("embeddings", message.id, embeddings=vectors, **more))

    async def rerank(self, connection: Connection, message: p.Rerank) -> None:
        """Answer with the documents' scores, the highest first.  Raises ``ProtocolError``."""
        program = program_asking(connection, message)
        service, ready, path = await self._model(message, RERANK)
        scores, tokens = array("f"), 0
        async for answer in self._encoded(service, path, program, message.documents, message):
            scores.frombytes(answer.vectors)
            tokens += answer.n_tokens
        best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
        results = [
            {"index": at, "relevance_score": round(scores[at], DIGITS)}
            for at in best[: message.top_n]
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        more = {"usage": usage, "model": service.label}
        connection.send(p.admin_event("ranking", message.id, results=results, **more))

    async def _model(self, message: p.Embed | p.Rerank, role: str) -> tuple[Service, m.Ready, str]:
        """The model that a message names, or the role's, once it is loaded; and its path."""
        services = self._daemon.sessions.services
        service = services.find(message.model, role, message.key)
        engine, ready = await self._asking.ready_engine(service)
        if why := why_not(service, ready, role, services):
            raise p.ProtocolError(p.E_PROTO_003, why)
        return service, ready, engine.start.model_path

    async def _encoded(
        self,
        service: Service,
        path: str,
        program: int,
        texts: Sequence[str | list[int]],
        message: p.Embed | p.Rerank,
    ) -> AsyncIterator[m.Embedded]:
        query = message.query if isinstance(message, p.Rerank) else None
        _, ready = await self._asking.ready_engine(service)
        questions = self._of_generators if ready.generates else self._of_encoders
        group: list[str | list[int]] = []

        async def ask(engine: EngineHandle) -> m.Embedded | None:
            if engine.start.model_path != path:  # vectors of two models would be mixed up
                raise p.ProtocolError(p.E_MODEL_001, "the model was changed meanwhile; ask again")
            return await engine.asked.ask(
                lambda ref: m.Embed(ref, group, query, message.truncate), m.Embedded
            )

        at = 0
        for group in _groups(texts, 1 if ready.generates else GROUP_TEXTS, len(query or "")):
            answer = await self._asking.by_engine(service, questions, program, ask)
            if answer.error:
                number = f"input {at + answer.at}: " if len(texts) > 1 else ""
                is_long = answer.code == p.E_LIMIT_003
                overflow = p.Overflow(answer.n_tokens, answer.most) if is_long else None
                raise p.ProtocolError(answer.code, number + answer.error, overflow=overflow)
            yield answer
            at += len(group)

    def _refuse_large(self, n_embd: int, message: p.Embed) -> None:
        """An answer has to fit into what may wait for a client unread."""
        size = json_bytes(n_embd, message.base64) * len(message.inputs)
        most = self._daemon.config.max_unsent_bytes
        if size > most:
            text = f"the vectors of {len(message.inputs)} texts are about {size} bytes of JSON"
            text += f"; the limit is {most} (--max-unsent-bytes): send fewer texts at once"
            text += ', or ask for "base64"' * (not message.base64)
            raise p.ProtocolError(p.E_LIMIT_001, text)


def _groups(
    texts: Sequence[str | list[int]], most: int, with_each: int
) -> Iterator[list[str | list[int]]]:
    """``most`` texts at a time, in order; ``with_each``: bytes that go with each of them."""
    group: list[str | list[int]] = []
    size = 0
    for text in texts:
        n_bytes = len(text.encode()) if isinstance(text, str) else TOKEN_BYTES * len(text)
        size += n_bytes + with_each
        if group and (len(group) == most or size > GROUP_BYTES):
            yield group
            group, size = [], n_bytes + with_each
        group.append(text)
    if group:
        yield group


def in_json(vector: bytes, as_base64: bool) -> str | list[float]:
    """Numbers of a ``vector`` of float32, or their bytes (little-endian) in base64."""
    numbers = array("f", vector)
    if not as_base64:
        return [round(value, DIGITS) for value in numbers]
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers).decode("ascii")


def json_bytes(n_embd: int, as_base64: bool) -> int:
    """Largest size in bytes of a vector of ``n_embd`` numbers in JSON."""
    return 4 * -(-4 * n_embd // 3) + 3 if as_base64 else (DIGITS + 4) * n_embd + 3
