"""JSON with comments and commas behind last members, read with the place of every value."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from umaserve.connect.edits import Unreadable

DEPTH = 200  # of objects in objects
SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_PLAIN = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")


@dataclass
class Node:
    """A value and its place: ``text[start:end]``.

    ``children`` are those of an object or a list, ``keys`` where the member of each begins.
    ``comma``: where a comma behind the last child ends, else -1.
    """

    value: Any
    start: int
    end: int = -1
    children: list[Node] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    comma: int = -1


def read(text: str) -> Node | None:
    """The whole text; ``None`` where it is empty but for comments.  Raises ``Unreadable``."""
    reader = _Reader(text)
    reader.skip()
    if reader.at == len(text):
        return None
    node = reader.value(0)
    reader.skip()
    if reader.at < len(text):
        raise reader.error("there is something behind the end")
    return node


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def error(self, what: str) -> Unreadable:
        return Unreadable(f"line {self.text.count(chr(10), 0, self.at) + 1}: {what}")

    def skip(self) -> None:
        """Go on behind white space and comments."""
        match = SPACE.match(self.text, self.at)
        assert match
        self.at = match.end()
        if self.text.startswith("/*", self.at):
            raise self.error("a comment has no end")

    def value(self, depth: int) -> Node:
        char = self.text[self.at : self.at + 1]
        if depth > DEPTH:
            raise self.error("too many values are within each other")
        if char in ("{", "["):
            return self._container(char, depth)
        match = (_STRING if char == '"' else _PLAIN).match(self.text, self.at)
        if match is None:
            raise self.error("a value is missing, or is no JSON")
        try:
            node = Node(json.loads(match[0], strict=False), self.at, match.end())
        except ValueError:
            raise self.error("a text is no JSON") from None
        self.at = match.end()
        return node

    def _container(self, opening: str, depth: int) -> Node:
        closing = "}" if opening == "{" else "]"
        node = Node({} if opening == "{" else [], self.at)
        self.at += 1
        self.skip()
        while not self.text.startswith(closing, self.at):
            if node.children and node.comma < 0:
                raise self.error(f"a comma or {closing} is missing")
            node.keys.append(self.at)
            if opening == "{":
                node.names.append(self._name())
            child = self.value(depth + 1)
            node.children.append(child)
            if opening == "{":
                node.value[node.names[-1]] = child.value
            else:
                node.value.append(child.value)
            self.skip()
            node.comma = -1
            if self.text.startswith(",", self.at):
                self.at += 1
                node.comma = self.at
                self.skip()
        self.at += 1
        node.end = self.at
        return node

    def _name(self) -> str:
        match = _STRING.match(self.text, self.at)
        if match is None:
            raise self.error("the name of a member is missing, or } is")
        self.at = match.end()
        self.skip()
        if not self.text.startswith(":", self.at):
            raise self.error("a colon is missing")
        self.at += 1
        self.skip()
        name: str = json.loads(match[0], strict=False)
        return name
