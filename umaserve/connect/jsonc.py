"""Edits in JSON with comments that leave all else as it is, byte for byte."""

from __future__ import annotations

import json
import re
from typing import Any

from umaserve.connect.edits import Drop, Item, Path, Put, in_the_way, position, same
from umaserve.connect.jsonc_nodes import SPACE, Node, read

INDENT = "  "  # where the text shows none
_INDENTED = re.compile(r"\n([ \t]+)(?:[^\s/*]|//)")
_REST_OF_LINE = re.compile(r"(?:[ \t]|/\*(?:(?!\*/)[^\n])*\*/)*(?://[^\n]*)?(?=\r?\n|$)")


def parse(text: str) -> Any:
    """The value; ``None`` where the text is empty.  Raises ``Unreadable``."""
    node = read(text)
    return None if node is None else node.value


def edit(text: str, change: Put) -> str:
    """``text`` with the change made; the same text where it is so already.

    Raises ``Unreadable``.
    """
    root, shown = read(text), _INDENTED.search(text)
    unit = shown[1] if shown else INDENT  # of one level
    if root is None:
        begin = text if not text or text.endswith("\n") else text + "\n"
        return begin + _written(_nested(change.path, change.value), "", unit) + "\n"
    node = root
    for depth, step in enumerate(change.path):
        if not isinstance(node.value, list if isinstance(step, Item) else dict):
            if node.value is not None:
                raise in_the_way(change.path, depth)
            return _replaced(text, node, _nested(change.path[depth:], change.value), unit)
        index = _index(node, step)
        if index is None:
            name = None if isinstance(step, Item) else step
            inner = _nested(change.path[depth:], change.value)
            inner = inner[0] if name is None else inner[name]
            return _inserted(text, node, name, inner, unit)
        node = node.children[index]
    if same(node.value, change.value):
        return text
    return _replaced(text, node, change.value, unit)


def without(text: str, change: Drop) -> str:
    """``text`` without what stands at the path, and without its lines where it has its own."""
    node = read(text)
    assert node is not None
    for step in change.path[:-1]:
        node = node.children[_known(node, step)]
    index = _known(node, change.path[-1])
    begins, ends = node.keys[index], node.children[index].end
    line = text.rfind("\n", 0, begins)
    if line >= node.start and not text[line:begins].strip():
        begins = line
    comma = _comma(text, ends)
    if comma >= 0:
        return text[:begins] + text[comma + 1 :]
    comma = _comma(text, node.children[index - 1].end) if index else -1
    if comma >= 0:
        kept = text[comma + 1 : begins]
        return text[:comma] + (kept if kept.strip() else "") + text[ends:]
    return text[:begins] + text[ends:]


def _known(node: Node, step: str | Item) -> int:
    index = _index(node, step)
    assert index is not None
    return index


def _comma(text: str, at: int) -> int:
    """Where the next comma is, if nothing but comments is before it; else -1."""
    space = SPACE.match(text, at)
    assert space
    return space.end() if text.startswith(",", space.end()) else -1


def _index(node: Node, step: str | Item) -> int | None:
    """Where a name stands twice, the last counts, as for those who read the file."""
    if isinstance(step, str):
        return len(node.names) - 1 - node.names[::-1].index(step) if step in node.names else None
    entries: list[Any] = node.value if isinstance(node.value, list) else []
    return position(entries, step)


def _nested(path: Path, value: Any) -> Any:
    """``value`` within new objects and lists, one for each step."""
    for depth in reversed(range(len(path))):
        step = path[depth]
        if isinstance(step, str):
            value = {step: value}
        else:
            value = [value if depth + 1 == len(path) else {step.field: step.name} | value]
    return value


def _line_indent(text: str, at: int) -> str:
    """The white space that the line of this place begins with."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _written(value: Any, indent: str, unit: str) -> str:
    """``value`` over several lines, of which all but the first begin with ``indent``."""
    return json.dumps(value, indent=unit, ensure_ascii=False).replace("\n", "\n" + indent)


def _member(name: str | None, value: str) -> str:
    return value if name is None else f"{json.dumps(name, ensure_ascii=False)}: {value}"


def _replaced(text: str, node: Node, value: Any, unit: str) -> str:
    written = _written(value, _line_indent(text, node.start), unit)
    return text[: node.start] + written + text[node.end :]


def _inserted(text: str, node: Node, name: str | None, value: Any, unit: str) -> str:
    """With a new last member or entry."""
    outer = _line_indent(text, node.start)
    if not node.children:
        kept = text[node.start : node.end - 1].rstrip()  # the bracket, and comments behind it
        indent = outer + unit
        member = _member(name, _written(value, indent, unit))
        return f"{text[: node.start]}{kept}\n{indent}{member}\n{outer}{text[node.end - 1 :]}"
    begins, ends = node.keys[-1], node.children[-1].end
    if "\n" not in text[node.start : begins]:  # all in one line
        member = _member(name, json.dumps(value, ensure_ascii=False))
        if node.comma >= 0:
            return f"{text[: node.comma]} {member},{text[node.comma :]}"
        return f"{text[:ends]}, {member}{text[ends:]}"
    indent = _line_indent(text, begins)
    member = "\n" + indent + _member(name, _written(value, indent, unit))
    if node.comma >= 0:
        ends, member = node.comma, member + ","
    else:
        text, ends = f"{text[:ends]},{text[ends:]}", ends + 1
    # a comment at the end of the line is about the member that was the last
    rest = _REST_OF_LINE.match(text, ends)
    ends = rest.end() if rest else ends
    return text[:ends] + member + text[ends:]
