"""The GGUF container, version 3: keys and values read raw from one file and written into another.

A vocabulary's arrays hold hundreds of thousands of strings. Copying their bytes takes milliseconds,
where building every string anew takes seconds; nothing here knows what a key means. The layout is
that of ``ggml/include/gguf.h``: little-endian; a string is a uint64 length and UTF-8 bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

ALIGNMENT = 32
_MAGIC = b"GGUF"
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


@dataclass(frozen=True)
class Value:
    """A value as it stands in the file: its type, and its bytes without the type."""

    kind: int
    data: bytes

    @classmethod
    def of(cls, value: str | bool | int | float | list[int] | list[str]) -> Value:
        """A string, bool, uint32, float32, or an array of uint32 or of strings."""
        if isinstance(value, list) and isinstance(value[0], str):
            head = struct.pack("<IQ", STRING, len(value))
            return cls(ARRAY, head + b"".join(map(pack_string, value)))
        if isinstance(value, list):
            head = struct.pack("<IQ", UINT32, len(value))
            return cls(ARRAY, head + struct.pack(f"<{len(value)}I", *value))
        if isinstance(value, bool):
            return cls(BOOL, struct.pack("<?", value))
        if isinstance(value, int):
            return cls(UINT32, struct.pack("<I", value))
        if isinstance(value, float):
            return cls(FLOAT32, struct.pack("<f", value))
        return cls(STRING, pack_string(value))

    def scalar(self) -> str | int | float | bool:
        """The Python value of a string, bool, integer or float32."""
        if self.kind == STRING:
            return self.data[8:].decode("utf-8")
        codes = {UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?"}
        return struct.unpack(codes[self.kind], self.data)[0]

    def strings(self) -> list[bytes]:
        """The elements of an array of strings."""
        kind, count = struct.unpack_from("<IQ", self.data)
        if self.kind != ARRAY or kind != STRING:
            raise ValueError("not an array of strings")
        out = []
        at = 12
        for _ in range(count):
            (length,) = struct.unpack_from("<Q", self.data, at)
            out.append(self.data[at + 8 : at + 8 + length])
            at += 8 + length
        return out

    def array_length(self) -> int:
        """The number of elements of an array."""
        if self.kind != ARRAY:
            raise ValueError("not an array")
        return struct.unpack_from("<IQ", self.data)[1]

    def extended(self, count: int, data: bytes) -> Value:
        """The same array with *count* more elements, whose bytes are *data*."""
        kind, length = struct.unpack_from("<IQ", self.data)
        return Value(ARRAY, struct.pack("<IQ", kind, length + count) + self.data[12:] + data)


def pack_string(text: str) -> bytes:
    """*text* as GGUF stores it."""
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def read_metadata(path: Path) -> dict[str, Value]:
    """Every key of a GGUF. Raises :class:`ValueError` with a sentence for what is not one."""
    data = path.read_bytes()
    try:
        magic, version, _, n_keys = struct.unpack_from("<4sIQQ", data)
        if magic != _MAGIC:
            raise ValueError(f"{path} is not a GGUF file")
        if version not in (2, 3):
            raise ValueError(f"{path} is a GGUF of version {version}; 2 and 3 are known")
        out = {}
        at = 24
        for _ in range(n_keys):
            (length,) = struct.unpack_from("<Q", data, at)
            key = data[at + 8 : at + 8 + length].decode("utf-8")
            at += 8 + length
            (kind,) = struct.unpack_from("<I", data, at)
            end = _value_end(data, at + 4, kind)
            out[key] = Value(kind, data[at + 4 : end])
            at = end
    except (struct.error, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is a damaged or truncated GGUF ({error})") from error
    return out


def _value_end(data: bytes, at: int, kind: int) -> int:
    if kind == STRING:
        return at + 8 + struct.unpack_from("<Q", data, at)[0]
    if kind != ARRAY:
        return at + _SIZES[kind]
    item, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if item in _SIZES:
        return at + _SIZES[item] * count
    length = struct.Struct("<Q")
    for _ in range(count):
        at += 8 + length.unpack_from(data, at)[0]
    return at


def header(keys: dict[str, Value], infos: list[tuple[str, tuple[int, ...], int, int]]) -> bytes:
    """Everything before the tensors' data, padded to the alignment.

    *infos* are (name, dimensions with the row length first, ggml type, bytes), in file order.
    """
    out = bytearray(struct.pack("<4sIQQ", _MAGIC, 3, len(infos), len(keys)))
    for key, value in keys.items():
        out += pack_string(key) + struct.pack("<I", value.kind) + value.data
    offset = 0
    for name, dims, kind, size in infos:
        out += pack_string(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        out += struct.pack("<IQ", kind, offset)
        offset += padded(size)
    out += bytes(padded(len(out)) - len(out))
    return bytes(out)


def padded(size: int) -> int:
    """*size* rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def whole(
    keys: dict[str, Value], tensors: dict[str, tuple[tuple[int, ...], int, bytes]]
) -> bytes:
    """A whole file; *tensors* are dimensions with the row length first, ggml type and data."""
    infos = [(name, dims, kind, len(raw)) for name, (dims, kind, raw) in tensors.items()]
    parts = [raw + bytes(padded(len(raw)) - len(raw)) for _, _, raw in tensors.values()]
    return header(keys, infos) + b"".join(parts)
