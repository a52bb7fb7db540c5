"""A GGUF file taken to pieces that may lie: every length, count, type and offset can be set.

``parse`` takes a whole, valid file; ``Pieces.write`` puts it together again, byte for byte the same
as long as nothing was changed.
"""

from __future__ import annotations

import copy
import struct
from dataclasses import dataclass, field

STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
           12: "d"}  # fmt: skip
_U64 = (1 << 64) - 1
_MANY = 4096  # an array of more numbers stays one piece


@dataclass
class Entry:
    """A key and its value. ``items`` are the elements of an array, else one element.

    An element is as it stands in the file; of a string the length in front is left out, and made
    anew unless ``lengths`` has another for it. ``count`` is the array's length where it lies.
    """

    key: bytes
    kind: int
    items: list[bytes]
    item_kind: int = 0  # of an array
    count: int | None = None
    key_length: int | None = None
    lengths: dict[int, int] = field(default_factory=dict)

    def pack(self) -> bytes:
        parts = [_string(self.key, self.key_length), struct.pack("<I", self.kind & 0xFFFFFFFF)]
        kind = self.kind
        if self.kind == ARRAY:
            count = len(self.items) if self.count is None else self.count
            parts.append(struct.pack("<IQ", self.item_kind & 0xFFFFFFFF, count & _U64))
            kind = self.item_kind
        if kind == STRING:
            parts += [_string(s, self.lengths.get(i)) for i, s in enumerate(self.items)]
        else:
            parts += self.items
        return b"".join(parts)

    @property
    def number(self) -> int | float | None:
        """The value of a scalar."""
        if self.kind not in SCALARS or len(self.items) != 1:
            return None
        code = "<" + SCALARS[self.kind]
        if len(self.items[0]) != struct.calcsize(code):
            return None
        return struct.unpack(code, self.items[0])[0]


@dataclass
class TensorEntry:
    """A tensor's entry and its data. ``offset`` None lets it follow from the tensors before."""

    name: bytes
    dims: list[int]
    kind: int
    data: bytes
    offset: int | None = None
    n_dims: int | None = None
    name_length: int | None = None


@dataclass
class Pieces:
    """The whole file. Counts of None are the true ones."""

    entries: list[Entry]
    tensors: list[TensorEntry]
    magic: bytes = b"GGUF"
    version: int = 3
    n_entries: int | None = None
    n_tensors: int | None = None
    alignment: int = 32

    def copy(self) -> Pieces:
        """Another whose entries may be changed; the bytes are shared."""
        made = copy.copy(self)
        made.entries = [copy.copy(e) for e in self.entries]
        for entry in made.entries:
            entry.items, entry.lengths = list(entry.items), dict(entry.lengths)
        made.tensors = [copy.copy(t) for t in self.tensors]
        for tensor in made.tensors:
            tensor.dims = list(tensor.dims)
        return made

    def write(self) -> bytes:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_entries = len(self.entries) if self.n_entries is None else self.n_entries
        counts = (self.version & 0xFFFFFFFF, n_tensors & _U64, n_entries & _U64)
        out = bytearray(self.magic + struct.pack("<IQQ", *counts))
        for entry in self.entries:
            out += entry.pack()
        at = 0
        for tensor in self.tensors:
            n_dims = len(tensor.dims) if tensor.n_dims is None else tensor.n_dims
            offset = at if tensor.offset is None else tensor.offset
            out += _string(tensor.name, tensor.name_length)
            out += struct.pack("<I", n_dims & 0xFFFFFFFF)
            out += b"".join(struct.pack("<Q", dim & _U64) for dim in tensor.dims)
            out += struct.pack("<IQ", tensor.kind & 0xFFFFFFFF, offset & _U64)
            at += self._padded(len(tensor.data))
        out += bytes(self._padded(len(out)) - len(out))
        for tensor in self.tensors:
            out += tensor.data + bytes(self._padded(len(tensor.data)) - len(tensor.data))
        return bytes(out)

    def _padded(self, size: int) -> int:
        return -(-size // self.alignment) * self.alignment

    def find(self, key: str) -> Entry | None:
        """The entry of a key."""
        return next((e for e in self.entries if e.key == key.encode()), None)


def parse(data: bytes) -> Pieces:
    """The pieces of a valid file whose alignment is 32 and whose tensors follow each other."""
    reader = _Reader(data)
    magic, _version = reader.take(4), reader.number("I")
    n_tensors, n_entries = reader.number("Q"), reader.number("Q")
    entries = [reader.entry() for _ in range(n_entries)]
    heads = []
    for _ in range(n_tensors):
        name = reader.string()
        dims = [reader.number("Q") for _ in range(reader.number("I"))]
        heads.append((name, dims, reader.number("I"), reader.number("Q")))
    pieces = Pieces(entries, [], magic)
    start = pieces._padded(reader.at)
    ends = [offset for *_, offset in heads[1:]] + [len(data) - start]
    for (name, dims, kind, offset), end in zip(heads, ends, strict=True):
        pieces.tensors.append(TensorEntry(name, dims, kind, data[start + offset : start + end]))
    return pieces


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, code: str) -> int:
        return struct.unpack("<" + code, self.take(struct.calcsize(code)))[0]

    def string(self) -> bytes:
        return self.take(self.number("Q"))

    def item(self, kind: int) -> bytes:
        return self.string() if kind == STRING else self.take(struct.calcsize(SCALARS[kind]))

    def entry(self) -> Entry:
        key, kind = self.string(), self.number("I")
        if kind != ARRAY:
            return Entry(key, kind, [self.item(kind)])
        item, count = self.number("I"), self.number("Q")
        if item != STRING and count > _MANY:
            whole = self.take(count * struct.calcsize(SCALARS[item]))
            return Entry(key, kind, [whole], item, count)
        return Entry(key, kind, [self.item(item) for _ in range(count)], item)


def _string(text: bytes, length: int | None) -> bytes:
    return struct.pack("<Q", (len(text) if length is None else length) & _U64) + text
