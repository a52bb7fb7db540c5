"""The message that a request's text makes: asked of uma-chat as the text comes.

One question of a request is under way at a time.  What comes meanwhile goes into the next one, so
a parser that is slow tells more at once, and makes nobody wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from umaserve.chat import questions
from umaserve.chat.questions import ChatModel, Parsed, Rendered
from umaserve.protocol import ProtocolError
from umaserve.server.requests.conversations.layer import ChatLayer, Forget, Outcome
from umaserve.server.requests.queue.turns import NOBODY, Asker
from umaserve.server.requests.tokens.text import TextAssembler

PAUSE = 3.0  # times what the last question took: a long text leaves the processor to others

Ended = Callable[[Parsed | ProtocolError], None]


class Reply:
    """``on_delta`` hears of what is new, where the request streams."""

    def __init__(
        self,
        chat: ChatLayer,
        model: ChatModel,
        rendered: Rendered,
        stops: tuple[str, ...],
        on_delta: Callable[[list[dict[str, Any]]], None] | None,
        *,
        lane: int = 0,
        asker: Asker = NOBODY,
    ) -> None:
        self._lane, self._asker = lane, asker
        self._chat = chat
        self._model = model
        self._syntax = rendered.syntax
        self._preserved = {name.encode() for name in rendered.preserved}
        self._assembler = TextAssembler(stops)
        self._on_delta = on_delta
        self._text: list[str] = []
        self._asked = 0  # parts of the text that the newest question had
        self._former: Any = None  # the message that was told
        self._forget: Forget | None = None  # a question is under way
        self._asked_ns = self._not_before_ns = 0
        self._on_end: Ended | None = None

    def push(self, piece: bytes, name: bytes) -> None:
        """A token's text; ``name`` is that of a token without text."""
        shown = piece or (name if name in self._preserved else b"")
        self._add(self._assembler.push(shown)[0])
        is_due = self._on_delta is not None and time.monotonic_ns() >= self._not_before_ns
        if is_due and self._forget is None and len(self._text) > self._asked:
            self._ask()

    def end(self, on_end: Ended) -> None:
        """The text has ended; ``on_end`` gets the whole message, or why there is none."""
        self._add(self._assembler.finish())
        self._on_end = on_end
        if self._forget is None:
            self._ask()

    def drop(self) -> None:
        """Nobody wants it any more."""
        forget, self._forget = self._forget, None
        self._on_delta = self._on_end = None
        if forget is not None:
            forget()

    def _add(self, text: str) -> None:
        if text:
            self._text.append(text)

    def _ask(self) -> None:
        partial = self._on_end is None
        self._text = ["".join(self._text)]
        self._asked = len(self._text)
        body = questions.parse(self._text[0], self._syntax, self._former, partial=partial)
        self._asked_ns = time.monotonic_ns()
        self._forget = self._chat.put(
            self._model, body, Parsed, lambda outcome: self._answered(outcome, partial),
            lane=self._lane, asker=self._asker,
        )  # fmt: skip

    def _answered(self, outcome: Outcome, partial: bool) -> None:
        if self._forget is None:  # it was dropped
            return
        self._forget = None
        now_ns = time.monotonic_ns()
        self._not_before_ns = now_ns + int(PAUSE * (now_ns - self._asked_ns))
        if isinstance(outcome, Parsed):
            self._former = outcome.message
            if outcome.deltas and self._on_delta is not None:
                self._on_delta(outcome.deltas)
        if not partial:
            on_end, self._on_end = self._on_end, None
            if on_end is not None:
                assert isinstance(outcome, Parsed | ProtocolError)
                on_end(outcome)
        elif self._on_end is not None:
            self._ask()
