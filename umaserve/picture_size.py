"""The size of a picture from the first bytes of its file; nothing is decoded."""

from __future__ import annotations

import binascii
from typing import NamedTuple

LOOKED_AT = 256 * 1024  # bytes of a file; a JPEG has its size behind what cameras write
MAX_SIDE = 1 << 24
_MOST_MARKERS = 256  # of a JPEG in front of its size, fill bytes among them
_NO_SIZE = {0xC4, 0xC8, 0xCC}  # JPEG markers among those of frames that begin none


class Size(NamedTuple):
    """Pixels."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}×{self.height}"


def size_of_base64(text: str) -> Size | None:
    """Return the size of a picture whose file is written in base64; None where nobody can tell."""
    start = text[: LOOKED_AT // 3 * 4]
    try:
        return size_of(binascii.a2b_base64(start[: len(start) // 4 * 4]))
    except (binascii.Error, ValueError):
        return None


def size_of(data: bytes) -> Size | None:
    """Return the size that a PNG, JPEG, GIF or BMP file tells at its beginning, else None."""
    found: tuple[int, int] | None = None
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
            found = _big(data, 16, 4), _big(data, 20, 4)
        elif data.startswith((b"GIF87a", b"GIF89a")):
            found = _little(data, 6, 2), _little(data, 8, 2)
        elif data.startswith(b"BM"):
            height = int.from_bytes(_field(data, 22, 4), "little", signed=True)
            found = _little(data, 18, 4), abs(height)  # below 0: from top to bottom
        elif data.startswith(b"\xff\xd8\xff"):
            found = _jpeg(data)
    except IndexError:
        return None
    if found is None or not all(0 < side <= MAX_SIDE for side in found):
        return None
    return Size(*found)


def _field(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise IndexError
    return data[at : at + size]


def _big(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(_field(data, at, size), "big")


def _little(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(_field(data, at, size), "little")


def _jpeg(data: bytes) -> tuple[int, int] | None:
    at = 2
    for _ in range(_MOST_MARKERS):
        if _big(data, at, 1) != 0xFF:
            break
        marker = _big(data, at + 1, 1)
        if marker == 0xFF:  # fill
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in _NO_SIZE:
            return _big(data, at + 7, 2), _big(data, at + 5, 2)
        elif marker == 0x01 or 0xD0 <= marker <= 0xD9:  # without a length
            at += 2
        else:
            at += 2 + max(_big(data, at + 2, 2), 2)
    return None
