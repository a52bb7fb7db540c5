"""Edits in YAML that leave all else as it is: values of the outermost mapping, entries of a list.

PyYAML tells where a value stands; the text is changed there alone.
"""

from __future__ import annotations

import json
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from umaserve.connect.edits import Drop, Item, Put, Unreadable, found, in_the_way


def parse(text: str) -> Any:
    """The value; ``None`` where the text is empty.  Raises ``Unreadable``."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise Unreadable(_said(error)) from None
    except RecursionError:
        raise Unreadable("too many values are within each other") from None


def edit(text: str, change: Put) -> str:
    """``text`` with the change made; the same text where it is so already.

    The path is a name, an entry, or an entry of a named list.  Raises ``Unreadable``.
    """
    if found(parse(text), change.path) == change.value:
        return text
    root = yaml.compose(text, yaml.SafeLoader)
    if root is None or _is_empty(root):
        return _behind(text, len(text), _written(change, 0))
    first, *rest = change.path
    at = root
    if isinstance(first, str):
        value = _value_of(root, first)
        if value is None:
            end = _end(text, root)
            return _behind(text, end, _written(change, root.start_mark.column))
        if not rest:
            return _instead(text, value, _scalar(change.value))
        if _is_empty(value):
            entry = _list_of(change.value, root.start_mark.column + 2)
            return _instead(text, value, "\n" + entry.rstrip("\n"))
        at = value
    if not isinstance(at, SequenceNode):
        raise in_the_way(change.path, len(change.path) - 1)
    entry_step = change.path[-1]
    assert isinstance(entry_step, Item)
    return _with_entry(text, at, entry_step, change.value)


def without(text: str, change: Drop) -> str:
    """``text`` without the lines of what stands at the path, which is as for ``edit``."""
    at: Any = yaml.compose(text, yaml.SafeLoader)
    *names, last = change.path
    for name in names:
        assert isinstance(name, str)
        at = _value_of(at, name)
    if isinstance(last, str):
        key, value = next(pair for pair in reversed(at.value) if pair[0].value == last)
        return _without_lines(text, key.start_mark.index, max(_end(text, key), _end(text, value)))
    if len(at.value) == 1:
        return _instead(text, at, "[]")
    if at.flow_style:
        raise Unreadable("it is written in brackets, out of which this command takes nothing")
    entry = next(each for each in at.value if _names(each, last))
    return _without_lines(text, entry.start_mark.index, _end(text, entry))


def _without_lines(text: str, start: int, end: int) -> str:
    """Without the lines from that of ``start`` to that of ``end``."""
    behind = text.find("\n", end)
    rest = text[behind + 1 :] if behind >= 0 else ""
    return text[: text.rfind("\n", 0, start) + 1] + rest


def _said(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or "it is no YAML"
    return f"line {mark.line + 1}: {what}" if mark is not None else str(what)


def _is_empty(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.tag.endswith(":null")


def _value_of(root: Node, name: str) -> Node | None:
    if not isinstance(root, MappingNode):
        raise in_the_way((name,), 0)
    if root.flow_style:
        raise Unreadable("it is written in braces, in which this command changes nothing")
    named = [value for key, value in root.value if key.value == name]
    return named[-1] if named else None


def _end(text: str, node: Node) -> int:
    """Where the text of a value ends: a mark of PyYAML's may be behind comments."""
    if isinstance(node, MappingNode | SequenceNode) and node.value and not node.flow_style:
        last = node.value[-1]
        if isinstance(last, tuple):
            return max(_end(text, last[0]), _end(text, last[1]))
        return _end(text, last)
    start, end = node.start_mark.index, node.end_mark.index
    return int(start + len(text[start:end].rstrip()))


def _behind(text: str, at: int, lines: str) -> str:
    """``lines`` as new lines, below the line of this place."""
    end = text.find("\n", at)
    if at == 0 or (end < 0 and text.endswith("\n")):
        return text + lines
    if end < 0:
        return f"{text}\n{lines}"
    return text[: end + 1] + lines + text[end + 1 :]


def _instead(text: str, node: Node, written: str) -> str:
    start, end = node.start_mark.index, _end(text, node)
    space = " " if start == end and not written.startswith("\n") else ""
    return text[:start] + space + written + text[max(start, end) :]


def _scalar(value: Any) -> str:
    return yaml.safe_dump(value, allow_unicode=True, width=1 << 20).removesuffix("...\n").strip()


def _list_of(value: dict[str, Any], column: int) -> str:
    """An entry of a list, whose dash is in this column."""
    dumped = yaml.safe_dump(
        [value], sort_keys=False, allow_unicode=True, default_flow_style=False, width=1 << 20
    )
    return "".join(" " * column + line for line in dumped.splitlines(keepends=True))


def _written(change: Put, column: int) -> str:
    """The change as lines of their own."""
    first, *rest = change.path
    if isinstance(first, Item):
        return _list_of(change.value, column)
    margin = " " * column
    if not rest:
        return f"{margin}{first}: {_scalar(change.value)}\n"
    return f"{margin}{first}:\n{_list_of(change.value, column + 2)}"


def _with_entry(text: str, node: SequenceNode, step: Item, value: dict[str, Any]) -> str:
    named = [each for each in node.value if _names(each, step)]
    if node.flow_style:
        if named:
            return _instead(text, named[0], json.dumps(value, ensure_ascii=False))
        end = node.end_mark.index - 1
        comma = ", " if node.value else ""
        return f"{text[:end]}{comma}{json.dumps(value, ensure_ascii=False)}{text[end:]}"
    if not named:
        end = _end(text, node)
        return _behind(text, end, _list_of(value, node.start_mark.column))
    column = named[0].start_mark.column
    lines = _list_of(value, column - 2)[column:]  # what is behind the dash stands already
    return _instead(text, named[0], lines.rstrip("\n"))


def _names(node: Node, step: Item) -> bool:
    if not isinstance(node, MappingNode):
        return False
    return any(key.value == step.field and each.value == step.name for key, each in node.value)
