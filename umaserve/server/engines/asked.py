"""Questions that an engine is asked beside all requests: tokens, vectors, its prefix cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from umaserve.wire import messages as m

Answer = m.Tokens | m.Embedded | m.CacheReport
Kind = TypeVar("Kind", m.Tokens, m.Embedded, m.CacheReport)


@dataclass(eq=False)
class _Question:
    """Asked of the engine beside all requests; ``answer`` stays ``None`` when it ends first."""

    done: trio.Event = field(default_factory=trio.Event)
    answer: Answer | None = None
    fault: str = ""  # it was being tokenised when the engine died, and how that was


class TextFault(Exception):
    """A text brought the engine down; the message says how it ended."""


class EngineQuestions:
    """``send`` sends a message to the engine."""

    def __init__(self, send: Callable[[m.ToEngine], None]) -> None:
        self._send = send
        self._asked: dict[int, _Question] = {}  # by ref, the oldest first
        self._next_ref = 1
        self._is_over = False

    def __bool__(self) -> bool:
        """Whether somebody waits for an answer."""
        return bool(self._asked)

    async def ask(self, message: Callable[[int], m.ToEngine], kind: type[Kind]) -> Kind | None:
        """Send the message made for a new ref and return its answer, which is of ``kind``.

        Return ``None`` when the engine ends first.  A caller that stops waiting takes the question
        back.  Raise ``TextFault`` where one of its texts was being tokenised as the engine ended.
        """
        if self._is_over:
            return None
        ref, self._next_ref = self._next_ref, self._next_ref + 1
        question = self._asked[ref] = _Question()
        self._send(message(ref))
        try:
            await question.done.wait()
        except trio.Cancelled:
            self._send(m.Forget(ref))
            raise
        finally:
            self._asked.pop(ref, None)
        if question.fault:
            raise TextFault(question.fault)
        assert question.answer is None or isinstance(question.answer, kind)
        return question.answer

    def answered(self, answer: Answer) -> None:
        """The engine has answered a question, or one that nobody asks any more."""
        question = self._asked.get(answer.ref)
        if question is not None:
            question.answer = answer
            question.done.set()

    def end(self, blamed: int, fault: str) -> None:
        """The engine has ended: no answer comes.  ``fault`` is that of question ``blamed``, if it
        is still asked; 0 = of none."""
        self._is_over = True
        if blamed in self._asked:
            self._asked[blamed].fault = fault
        for question in self._asked.values():
            question.done.set()
