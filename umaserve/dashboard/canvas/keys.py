"""Names of the keys in what a terminal sends."""

from __future__ import annotations

_SEQUENCES = {
    b"\x1b[A": "up", b"\x1bOA": "up",
    b"\x1b[B": "down", b"\x1bOB": "down",
    b"\x1b[5~": "pageup", b"\x1b[6~": "pagedown",
    b"\x1b[H": "home", b"\x1bOH": "home", b"\x1b[1~": "home",
    b"\x1b[F": "end", b"\x1bOF": "end", b"\x1b[4~": "end",
}  # fmt: skip
_CONTROL = {
    0x08: "backspace", 0x7F: "backspace", 0x0A: "enter", 0x0D: "enter", 0x0C: "redraw",
    0x1B: "escape",
}  # fmt: skip


def decode(data: bytes) -> list[str]:
    """``up``, ``down``, ``pageup``, ``pagedown``, ``home``, ``end``, ``enter``, ``backspace``,
    ``escape``, ``redraw``, or the character itself.  Other control sequences and bytes beyond ASCII
    are left out."""
    keys, at = [], 0
    while at < len(data):
        byte = data[at]
        if byte == 0x1B and data[at + 1 : at + 2] in (b"[", b"O"):
            end = at + 2
            while end < len(data) and not 0x40 <= data[end] <= 0x7E:
                end += 1
            name = _SEQUENCES.get(data[at : end + 1])
            at = end + 1
            if name:
                keys.append(name)
            continue
        at += 1
        if byte in _CONTROL:
            keys.append(_CONTROL[byte])
        elif 0x20 <= byte < 0x7F:
            keys.append(chr(byte))
    return keys
