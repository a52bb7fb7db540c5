"""Names of the keys in what a terminal sends."""

from __future__ import annotations

import re

_NAMES = {
    b"\x1b[A": "up", b"\x1bOA": "up",
    b"\x1b[B": "down", b"\x1bOB": "down",
    b"\x1b[5~": "pageup", b"\x1b[6~": "pagedown",
    b"\x1b[H": "home", b"\x1bOH": "home", b"\x1b[1~": "home",
    b"\x1b[F": "end", b"\x1bOF": "end", b"\x1b[4~": "end",
    b"\x08": "backspace", b"\x7f": "backspace", b"\n": "enter", b"\r": "enter", b"\f": "redraw",
    b"\x1b": "escape",
    **{bytes([code]): chr(code) for code in range(0x20, 0x7F)},
}  # fmt: skip
# a control sequence to its end, or a byte
_KEY = re.compile(rb"\x1b[\[O][^@-~]*[@-~]?|.", re.DOTALL)


def decode(data: bytes) -> list[str]:
    """``up``, ``down``, ``pageup``, ``pagedown``, ``home``, ``end``, ``enter``, ``backspace``,
    ``escape``, ``redraw``, or the character itself.  Other control sequences and bytes beyond ASCII
    are left out."""
    return [_NAMES[key] for key in _KEY.findall(data) if key in _NAMES]
