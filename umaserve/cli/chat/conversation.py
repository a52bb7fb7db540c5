"""The conversation of a chat.

The client keeps it, since the daemon may end, or load another model, meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from umaserve.system.own_file import write_own
from umaserve.system.regular_file import open_regular


class Question(str):
    """A question with ``pictures``, parts of a message, which are not saved to files."""

    pictures: tuple[dict[str, str], ...] = ()

    @classmethod
    def showing(cls, text: str, pictures: Iterable[dict[str, str]]) -> Question:
        """A question that shows pictures in front of its text."""
        found = cls(text)
        found.pictures = tuple(pictures)
        return found


class Turn(NamedTuple):
    """A question, and the answer that it got."""

    question: str
    answer: str


class _Message(msgspec.Struct):
    role: str
    content: str


class _Saved(msgspec.Struct):
    """The form of a saved conversation: messages as the protocol has them."""

    messages: list[_Message]


class NotAConversation(ValueError):
    """The file holds something else.  The text says what."""


class Conversation:
    """The system message, and turns in their order.

    ``first``: the turns before it are kept, and are not sent any more.
    """

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self.turns: list[Turn] = []
        self.first = 0

    def messages(self, question: str) -> list[dict[str, Any]]:
        """Return the messages for the model: system message, turns that are sent, ``question``."""
        said: list[dict[str, Any]] = [*self._system()]
        for turn in self.turns[self.first :]:
            asked, answered = _pair(turn)
            said += [{**asked, "content": _content(turn.question)}, answered]
        return [*said, {"role": "user", "content": _content(question)}]

    def leave_out_oldest(self) -> int:
        """Send the newer half of the text alone from now on; returns the number of turns left out.

        0: nothing is left to leave out.
        """
        sent = self.turns[self.first :]
        sizes = [len(turn.question) + len(turn.answer) for turn in sent]
        left, count = sum(sizes), 0
        while count < len(sent) and (count == 0 or 2 * left > sum(sizes)):
            left -= sizes[count]
            count += 1
        self.first += count
        return count

    def pop(self) -> Turn | None:
        """Take the last turn back; ``None`` where there is none."""
        if not self.turns:
            return None
        self.first = min(self.first, len(self.turns) - 1)
        return self.turns.pop()

    def save(self, path: str) -> None:
        """Write all turns to a file that only this user may read.

        Raises ``OSError``, and ``NotAConversation`` rather than replace a file of another kind.
        """
        path = os.path.expanduser(path)
        if os.path.exists(path):
            _read(path)
        said = self._system()
        for turn in self.turns:
            said += _pair(turn)
        data = msgspec.json.encode({"messages": said})
        write_own(path, msgspec.json.format(data, indent=2) + b"\n")

    @classmethod
    def load(cls, path: str) -> Conversation:
        """The conversation of a file.  Raises ``OSError`` and ``NotAConversation``."""
        messages = _read(os.path.expanduser(path))
        system = messages.pop(0).content if messages and messages[0].role == "system" else None
        roles = [message.role for message in messages]
        if roles != ["user", "assistant"] * (len(roles) // 2):
            raise NotAConversation(
                "questions (user) and answers (assistant) have to take turns, after one system "
                "message at most"
            )
        new = cls(system)
        pairs = zip(messages[::2], messages[1::2], strict=True)
        new.turns = [Turn(question.content, answer.content) for question, answer in pairs]
        return new

    def _system(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": self.system}] if self.system else []


def _content(question: str) -> Any:
    """A question's text, or its pictures and text as parts."""
    pictures = question.pictures if isinstance(question, Question) else ()
    return [*pictures, {"type": "text", "text": str(question)}] if pictures else question


def _pair(turn: Turn) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": turn.question},
        {"role": "assistant", "content": turn.answer},
    ]


def _read(path: str) -> list[_Message]:
    with open_regular(path) as file:
        data = file.read()
    try:
        return msgspec.json.decode(data, type=_Saved).messages
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotAConversation(f"the file is no saved conversation ({error})") from None
