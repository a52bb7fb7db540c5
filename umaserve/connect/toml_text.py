"""Edits in TOML that leave all else as it is, by tomlkit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from umaserve.connect.edits import Drop, Put, Unreadable, found, in_the_way

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


def parse(text: str) -> Any:
    """The value.  Raises ``Unreadable``."""
    return _document(text).unwrap()


def edit(text: str, change: Put) -> str:
    """``text`` with the change made; the same text where it is so already.

    The path has names alone.  Raises ``Unreadable``.
    """
    from tomlkit.exceptions import TOMLKitError

    document = _document(text)
    if found(document.unwrap(), change.path) == change.value:
        return text
    try:
        _put(document, change)
    except (TOMLKitError, ValueError, TypeError, KeyError):
        raise Unreadable("it is written in a way that this command cannot change") from None
    return _ended(text, document)


def without(text: str, change: Drop) -> str:
    """``text`` without what stands at the path."""
    document = _document(text)
    at: Any = document
    for step in change.path[:-1]:
        at = at[step]
    at.pop(change.path[-1], None)  # an empty table without a head of its own is gone already
    return _ended(text, document)


def _ended(text: str, document: TOMLDocument) -> str:
    """The document with as many empty lines at its end as ``text`` has."""
    made = document.as_string().rstrip("\n")
    return made + (text[len(text.rstrip("\n")) :] or "\n" if made else "")


def _put(document: TOMLDocument, change: Put) -> None:
    """Raises ``Unreadable``, and what tomlkit raises where it cannot do it."""
    import tomlkit
    from tomlkit.items import InlineTable

    at: Any = document
    for depth, step in enumerate(change.path[:-1]):
        if step not in at:
            # a table that has tables alone needs no head of its own
            at[step] = tomlkit.table(is_super_table=True)
        at = at[step]
        if not isinstance(at, dict):
            raise in_the_way(change.path, depth + 1)
    value: Any = tomlkit.item(change.value)
    if isinstance(change.value, dict):
        if isinstance(at, InlineTable):
            value = tomlkit.inline_table()
            value.update(change.value)
        else:
            value.add(tomlkit.nl())  # before the next table
    at[change.path[-1]] = value


def _document(text: str) -> TOMLDocument:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tomlkit.parse(text)
    except TOMLKitError as error:
        raise Unreadable(str(error)) from None
