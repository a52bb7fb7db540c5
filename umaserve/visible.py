"""Text by a model, a server or another program, made safe for a terminal.

A terminal obeys control characters: they move its cursor, change its title, answer for the user or
hide what was written.  Here they are spelled out instead, as JSON and Python write them.
"""

from __future__ import annotations

from typing import TextIO

_CONTROLS = {*range(0x20), *range(0x7F, 0xA0)} - {ord("\n"), ord("\t")}
_LINES = {0x2028, 0x2029}  # some programs end a line there
_ORDER = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}  # code that reads as other code
_SPELLED = {code: f"\\u{code:04x}" for code in _CONTROLS | _LINES | _ORDER}


def visible(text: str) -> str:
    r"""``text`` with ``\u001b`` for an ESC, and so for all characters that are none to read.

    Line ends and tabs stay.  A carriage return does not: it writes over what the line says.  Each
    character is looked at by itself, so a sequence may come in any number of pieces.  JSON stays
    the same JSON.
    """
    return text if text.isprintable() else text.translate(_SPELLED)


def for_reader(text: str, stream: TextIO) -> str:
    """``visible`` where ``stream`` is a terminal; for a file or a pipe ``text`` as it is."""
    return visible(text) if stream.isatty() else text
