"""A file of settings with changes made in it, whatever language it is written in."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Literal, TypeAlias

from umaserve.connect.edits import Drop, Path, Put, Unreadable, drop, has, put, reverse, same

Language: TypeAlias = Literal["jsonc", "yaml", "toml"]
# imported for a file of theirs: packages take longer to import than the command may take to start
_MODULES = {"jsonc": "jsonc", "yaml": "yaml_text", "toml": "toml_text"}
_MARK = "\ufeff"  # some editors begin files with it


def parse(language: Language, data: bytes) -> Any:
    """Parse the file's bytes; ``None`` where they are empty.  Raises ``Unreadable``."""
    text = _text(data).removeprefix(_MARK).replace("\r\n", "\n")
    return _module(language).parse(text)


def edited(language: Language, data: bytes, edits: Sequence[Put | Drop]) -> bytes:
    """The file with all edits made; the same bytes where they are made already.

    What the edits are not about stays: comments, order, indentation, the ends of lines.  Raises
    ``Unreadable`` where the file cannot be read, or would not say afterwards what it should.
    """
    text = _text(data)
    mark = _MARK if text.startswith(_MARK) else ""
    text = text.removeprefix(_MARK)
    windows = "\r\n" in text and "\n" not in text.replace("\r\n", "")
    if windows:
        text = text.replace("\r\n", "\n")
    module = _module(language)
    wanted = module.parse(text)
    for each in edits:
        if isinstance(each, Put):
            if each.if_missing and has(wanted, each.path):
                continue
            wanted, text = put(wanted, each), module.edit(text, each)
        else:
            wanted, text = drop(wanted, each), module.without(text, each)
    if not same(module.parse(text), wanted):
        raise Unreadable("it is written in a way that this command cannot change")
    if windows:
        text = text.replace("\n", "\r\n")
    return (mark + text).encode()


def taken_back(
    language: Language, data: bytes, before: bytes, edits: Sequence[Put]
) -> tuple[bytes, list[Path]]:
    """A file that somebody has changed after ``edits`` were made in ``before``, without these.

    Also the paths of edits that somebody has changed since, which stay.  Raises ``Unreadable``.
    """
    back, kept = reverse(parse(language, before), parse(language, data), edits)
    return edited(language, data, back), kept


def _module(language: Language) -> Any:
    return import_module(f"umaserve.connect.{_MODULES[language]}")


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Unreadable("it is not UTF-8") from None
