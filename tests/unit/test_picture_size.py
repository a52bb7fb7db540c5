"""Sizes of pictures from the beginnings of their files, and files that lie."""

from __future__ import annotations

import base64
import random
import struct

import pytest

from umaserve import picture_size
from umaserve.picture_size import Size, size_of, size_of_base64

PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480) + bytes(9)
GIF = b"GIF89a" + struct.pack("<HH", 640, 480) + bytes(9)
BMP = b"BM" + bytes(12) + struct.pack("<Iii", 40, 640, -480) + bytes(9)
EXIF = b"\xff\xe1" + struct.pack(">H", 60_000) + bytes(59_998)
FRAME = b"\xff\xc2" + struct.pack(">HBHH", 17, 8, 480, 640)
JPEG = b"\xff\xd8" + EXIF + b"\xff\xff\xc4\0\x04ab" + FRAME + bytes(9)
FILES = [PNG, GIF, BMP, JPEG]


@pytest.mark.parametrize("data", FILES, ids=range(len(FILES)))
def test_a_size_is_read_from_the_header(data: bytes) -> None:
    assert size_of(data) == Size(640, 480)
    assert str(size_of_base64(base64.b64encode(data).decode())) == "640×480"


@pytest.mark.parametrize("data", FILES, ids=range(len(FILES)))
def test_what_is_cut_or_damaged_has_no_size_or_another_one(data: bytes) -> None:
    random.seed(1)
    for end in range(10):
        assert size_of(data[:end]) is None
    for _ in range(500):
        damaged = bytearray(data[:200])
        for _ in range(3):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        size_of(bytes(damaged))


@pytest.mark.parametrize("text", ["", "x", "é" * 9, "AAAA", "====", "A" * 9_000_000])
def test_what_is_no_picture_has_no_size(text: str) -> None:
    assert size_of_base64(text) is None


def test_a_size_that_nobody_has_is_none() -> None:
    assert size_of(PNG[:16] + struct.pack(">II", 0, 480)) is None
    assert size_of(PNG[:16] + struct.pack(">II", 2**31, 480)) is None


def test_a_header_of_fill_bytes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """One picture costs a few hundred looks, however long its header is."""
    looks = []
    big = picture_size._big
    monkeypatch.setattr(picture_size, "_big", lambda *what: looks.append(1) or big(*what))
    assert size_of(b"\xff\xd8" + b"\xff" * 200_000) is None
    assert len(looks) < 2_000
