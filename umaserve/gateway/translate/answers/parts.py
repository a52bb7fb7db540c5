"""Answers in parts: text, thinking and tool calls, from tokens or from the daemon's deltas."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from umaserve.gateway.daemon.event import Event
from umaserve.gateway.translate.messages import tool_call


@dataclass
class Call:
    """A tool call; ``arguments`` is JSON as text, and the start of such a text in a cut call."""

    id: str
    name: str
    arguments: str
    is_cut: bool = False


@dataclass
class Answer:
    """A whole answer."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    @property
    def whole_calls(self) -> list[Call]:
        """The calls that can be carried out."""
        return [call for call in self.calls if not call.is_cut]

    def piece(self) -> Piece:
        """All of it as a single part."""
        calls = [
            {"index": index, "id": call.id, "name": call.name, "arguments": call.arguments}
            for index, call in enumerate(self.calls)
        ]
        return Piece(self.text, self.reasoning, calls)


@dataclass
class Piece:
    """New part of an answer.  ``calls`` are as the daemon's ``delta`` events have them."""

    text: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.calls)


def answer_of(end: Event) -> Answer:
    """The whole answer that an ``eos`` holds."""
    message = end.message
    if not isinstance(message, dict):
        return Answer(end.text or "")
    calls = [
        Call(*tool_call(call), is_cut=call.get("incomplete") is True)
        for call in message.get("tool_calls") or ()
    ]
    reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
    return Answer(message.get("content") or "", reasoning, calls)


def unread_field(*events: Event) -> dict[str, Any]:
    """The types of what the first prompt with unread parts has of these; nothing without any."""
    unread = next((event.unread for event in events if event.unread), None)
    return {"uma_unread": unread} if unread else {}


class Pieces:
    """``of`` each event gives what is new.

    ``takes_deltas``: the daemon takes the answer apart, as its ``begin`` says.  The tokens' texts
    are not shown then.
    """

    def __init__(self) -> None:
        self.takes_deltas = self._had_deltas = False

    def of(self, event: Event) -> Piece:
        """Return the part that a ``token``, ``delta`` or ``eos`` adds to the answer."""
        if event.event == "token" and not self.takes_deltas:
            return Piece(event.text or "")
        if event.event == "delta":
            self._had_deltas = True
            return Piece(event.content or "", event.reasoning or "", event.tool_calls or [])
        if event.event == "eos" and self.takes_deltas and not self._had_deltas:
            return answer_of(event).piece()
        return Piece()
