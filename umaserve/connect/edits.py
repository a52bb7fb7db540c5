"""Edits of settings, for settings files in any language."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, NamedTuple, TypeAlias


class Item(NamedTuple):
    """The entry of a list that is known by one of its fields, such as ``name`` = "UMA Serve"."""

    field: str
    name: str


Path: TypeAlias = tuple[str | Item, ...]


class Put(NamedTuple):
    """``value`` is to stand at ``path``.  Objects and lists on the way are made where they miss.

    ``if_missing``: what stands there already stays.
    """

    path: Path
    value: Any
    if_missing: bool = False


class Drop(NamedTuple):
    """Nothing is to stand at ``path``, which has something."""

    path: Path


class Unreadable(ValueError):
    """Settings that are left alone; the text says why."""


def put(data: Any, edit: Put) -> Any:
    """A copy of ``data`` with the edit made; ``None`` stands for settings that are empty.

    Raises ``Unreadable`` where something else than an object or a list is in the way.
    """
    made = _container(deepcopy(data), edit.path, 0)
    at = made
    for depth, step in enumerate(edit.path):
        last = depth + 1 == len(edit.path)
        inner = edit.value if last else _container(found(at, (step,)), edit.path, depth + 1)
        place = position(at, step)
        if place is not None:
            at[place] = deepcopy(inner) if last else inner
        elif isinstance(step, Item):
            inner = inner if last else {step.field: step.name}
            at.append(inner)
        else:
            at[step] = inner
        at = inner
    return made


def drop(data: Any, edit: Drop) -> Any:
    """A copy of ``data`` with the edit made."""
    made = deepcopy(data)
    container = found(made, edit.path[:-1])
    del container[position(container, edit.path[-1])]
    return made


def reverse(before: Any, now: Any, edits: Sequence[Put]) -> tuple[list[Put | Drop], list[Path]]:
    """Return the edits that undo ``edits``, made in ``before``, and the paths that are kept.

    Paths are kept if somebody has changed their values since.  Objects and lists that the edits
    made on the way are dropped once they are empty.
    """
    back: list[Put | Drop] = []
    kept: list[Path] = []
    for edit in reversed(edits):
        if edit.if_missing and has(before, edit.path):
            continue
        if found(now, edit.path) != edit.value:
            if found(now, edit.path) is not None:
                kept.append(edit.path)
            continue
        if has(before, edit.path):
            back.append(Put(edit.path, found(before, edit.path)))
            now = put(now, back[-1])  # type: ignore[arg-type]
            continue
        for length in range(len(edit.path), 0, -1):
            path = edit.path[:length]
            full = length < len(edit.path) and found(now, path)
            if full or has(before, path):
                break
            back.append(Drop(path))
            now = drop(now, Drop(path))
    return back, kept


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same kind: 1 and ``true`` are equal in Python."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


def has(data: Any, path: Path) -> bool:
    """Whether something stands there, be it ``None``."""
    return position(found(data, path[:-1]), path[-1]) is not None


def _container(value: Any, path: Path, depth: int) -> Any:
    """Return the object or list of step ``depth``: ``value``, or a new one for ``None``."""
    kind: type = list if isinstance(path[depth], Item) else dict
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise in_the_way(path, depth)
    return value


def in_the_way(path: Path, depth: int) -> Unreadable:
    """The error for something else than step ``depth`` of ``path`` needs."""
    what = "a list" if isinstance(path[depth], Item) else "an object"
    if not depth:
        return Unreadable(f"the file holds no {what.split()[1]}")
    return Unreadable(f"`{spelled(path[:depth])}` is not {what}")


def spelled(path: Path) -> str:
    """``path`` for people: ``models.UMA Serve.apiBase``."""
    return ".".join(step.name if isinstance(step, Item) else step for step in path)


def position(container: Any, step: str | Item) -> Any:
    """The key or index in an object or a list; ``None`` where there is none."""
    if isinstance(step, str):
        return step if isinstance(container, dict) and step in container else None
    if not isinstance(container, list):
        return None
    for index, each in enumerate(container):
        if isinstance(each, dict) and each.get(step.field) == step.name:
            return index
    return None


def found(data: Any, path: Path) -> Any:
    """Return the value at ``path``; ``None`` where there is nothing."""
    for step in path:
        place = position(data, step)
        if place is None:
            return None
        data = data[place]
    return data
