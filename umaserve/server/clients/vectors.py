"""Vectors in JSON: numbers, or the bytes of float32 (little-endian) in base64."""

from __future__ import annotations

import base64
import sys
from array import array

DIGITS = 8  # behind the point; the vectors have length 1


def in_json(vector: bytes, as_base64: bool) -> str | list[float]:
    """``vector``: float32, as this machine has them."""
    numbers = array("f", vector)
    if not as_base64:
        return [round(value, DIGITS) for value in numbers]
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers).decode("ascii")


def json_bytes(n_embd: int, as_base64: bool) -> int:
    """Largest size in bytes of a vector of ``n_embd`` numbers in JSON."""
    return 4 * -(-4 * n_embd // 3) + 3 if as_base64 else (DIGITS + 4) * n_embd + 3
