"""Breaks what a GGUF says of its model: numbers, keys, the architecture's name, the tokenizer.

Each mutation changes the pieces in place and says in a few words what it did.
"""

from __future__ import annotations

import struct
from random import Random

from . import words
from .fields import ARRAY, SCALARS, STRING, Entry, Pieces

INTEGERS = (
    0, 1, 2, 3, 5, 7, 31, 33, 127, 128, 255, 256, 512, 513, 1 << 15, (1 << 16) - 1, 1 << 16,
    1 << 20, 1 << 24, 1 << 28, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1,
    1 << 63, (1 << 64) - 1, -1,
)  # fmt: skip
REALS = (
    float("nan"), float("inf"), float("-inf"), 0.0, -0.0, -1.0, 1e-45, 1e-30, 1e30, 3.4e38, 0.5,
    2.0,
)  # fmt: skip
TEXTS = (
    b"", b"\0", b"a\0b", b"\xff\xfe", b"\xed\xa0\x80", b"%s%n%d", b"{{", b"{% for a in b %}",
    b"\x1b[2J", b" ", b"x" * 65536, "ä€😀".encode() * 100, b"{{ 'a' * 1000000000 }}",
)  # fmt: skip
_UINT32, _INT32, _FLOAT32, _BOOL = 4, 5, 6, 7


def scalar(kind: int, value: int | float) -> bytes:
    """A number's bytes as a type stores it; integers wrap around."""
    code = SCALARS[kind]
    if code in "fd":
        try:
            return struct.pack("<" + code, float(value))
        except OverflowError:
            return struct.pack("<" + code, float("inf"))
    number = int(value) if value == value and abs(value) != float("inf") else 0
    size = struct.calcsize(code)
    return (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _numbers(pieces: Pieces) -> list[Entry]:
    return [e for e in pieces.entries if e.number is not None]


def _shape_numbers(pieces: Pieces) -> list[Entry]:
    """Those of the architecture or of the tokenizer: not the file's name and licence."""
    return [e for e in _numbers(pieces) if not e.key.startswith(b"general.")] or _numbers(pieces)


def arrays_of(pieces: Pieces) -> list[Entry]:
    return [e for e in pieces.entries if e.kind == ARRAY]


def _prefix(pieces: Pieces) -> bytes:
    entry = pieces.find("general.architecture")
    return (entry.items[0] if entry and entry.items else b"llama") + b"."


def put(pieces: Pieces, key: bytes, kind: int, items: list[bytes], item_kind: int = 0) -> None:
    """Set a key, in the place that it has or before the last one."""
    made = Entry(key, kind, items, item_kind)
    for number, entry in enumerate(pieces.entries):
        if entry.key == key:
            pieces.entries[number] = made
            return
    pieces.entries.insert(max(len(pieces.entries) - 1, 0), made)


def number_changes(pieces: Pieces, random: Random) -> str:
    entry = random.choice(_shape_numbers(pieces))
    old = entry.number or 0
    if SCALARS[entry.kind] in "fd":
        value: int | float = random.choice((*REALS, -old))
    elif random.random() < 0.5:
        value = random.choice(INTEGERS)
    else:  # plausible ones get further
        other = random.choice(_shape_numbers(pieces)).number or 0
        old = int(old)
        other = int(other) if abs(other) < 1 << 64 else 0
        value = random.choice((old + 1, old - 1, old * 2, old // 2, old * 3, old * 1000, other))
    entry.items = [scalar(entry.kind, value)]
    return f"{entry.key.decode(errors='replace')} = {value}"


def number_type_changes(pieces: Pieces, random: Random) -> str:
    entry = random.choice(_shape_numbers(pieces))
    value = entry.number or 0
    kind = random.choice((*SCALARS, ARRAY, STRING))
    count = random.choice((0, 1, 2, 3, 513))
    if kind == ARRAY:
        items = [scalar(entry.kind, value)] * count
        entry.kind, entry.item_kind, entry.items = ARRAY, entry.kind, items
    elif kind == STRING:
        entry.kind, entry.items = STRING, [str(value).encode()]
    else:
        entry.kind, entry.items = kind, [scalar(kind, value)]
    return f"{entry.key.decode(errors='replace')} becomes type {kind} ({count})"


def key_comes(pieces: Pieces, random: Random) -> str:
    """A key that the model does not have, or another value for one that it has."""
    prefix = _prefix(pieces)
    how = random.choice(("number", "number", "float", "flag", "list", "text", "token", "count"))
    if how == "float":
        key = prefix + random.choice(words.FLOATS).encode()
        kind, items = _FLOAT32, [scalar(_FLOAT32, random.choice(REALS))]
    elif how == "flag":
        names = [prefix.decode(errors="replace") + name for name in words.FLAGS]
        names += [f"tokenizer.ggml.{name}" for name in words.TOKENIZER_FLAGS]
        key, kind, items = random.choice(names).encode(), _BOOL, [bytes([random.randrange(2)])]
    elif how == "list":
        key = prefix + random.choice(words.LISTS).encode()
        count = random.choice((0, 1, 2, 2, 3, 4, 600))
        small = [_often_small(random) for _ in range(count)]
        put(pieces, key, ARRAY, small, random.choice((_UINT32, _INT32, _FLOAT32)))
        return f"{key!r} comes with {count}"
    elif how == "text":
        name = random.choice(list(words.TEXTS))
        value = random.choice((*words.TEXTS[name].split(), *TEXTS))
        whole = name.startswith(("general", "adapter", "tokenizer"))
        key = (b"" if whole else prefix) + name.encode()
        kind, items = STRING, [value.encode() if isinstance(value, str) else value]
    elif how == "token":
        key = f"tokenizer.ggml.{random.choice(words.TOKEN_IDS)}_token_id".encode()
        vocabulary = pieces.find("tokenizer.ggml.tokens")
        n = len(vocabulary.items) if vocabulary else 0
        kind, items = _UINT32, [scalar(_UINT32, random.choice((n - 1, n, n + 1, *INTEGERS)))]
    else:
        name = random.choice(words.COUNTS if how == "count" else words.NUMBERS)
        key = name.encode() if how == "count" else prefix + name.encode()
        kind, items = _UINT32, [scalar(_UINT32, random.choice(INTEGERS))]
    put(pieces, key, kind, items)
    return f"{key!r} comes as {items[0][:20]!r}"


def _often_small(random: Random) -> bytes:
    return scalar(_UINT32, random.choice((0, 1, 2, random.choice(INTEGERS))))


def other_architecture(pieces: Pieces, random: Random) -> str:
    """Another family's name; mostly with the keys that its loader then looks for."""
    old, new = _prefix(pieces), random.choice(words.ARCHITECTURES).encode()
    put(pieces, b"general.architecture", STRING, [new])
    if random.random() < 0.8:
        for entry in pieces.entries:
            if entry.key.startswith(old):
                entry.key = new + b"." + entry.key[len(old) :]
    return f"architecture {new.decode()}"


def text_changes(pieces: Pieces, random: Random) -> str:
    texts = [e for e in pieces.entries if e.kind == STRING]
    entry = random.choice(texts or pieces.entries)
    entry.kind, entry.items = STRING, [random.choice(TEXTS)]
    return f"{entry.key!r} = {entry.items[0][:20]!r}"


def tokenizer_breaks(pieces: Pieces, random: Random) -> str:
    arrays = [e for e in arrays_of(pieces) if e.key.startswith(b"tokenizer.") and e.items]
    if not arrays:
        return "nothing"
    entry = random.choice(arrays)
    name, items = entry.key.decode(errors="replace"), entry.items
    ways = ("shorter", "longer", "empty", "change", "change", "change", "same", "shuffle")
    how = random.choice(ways)
    if how == "shorter":
        entry.items = items[: random.choice((1, len(items) // 2, len(items) - 1))]
    elif how == "longer":
        entry.items = items + items[: random.choice((1, 7, len(items)))]
    elif how == "empty":
        entry.items = []
    elif how == "same":
        entry.items = [random.choice(items)] * len(items)
    elif how == "shuffle":
        random.shuffle(items)
    else:
        for _ in range(random.choice((1, 1, 3, len(items)))):
            items[random.randrange(len(items))] = _other_item(entry, random)
    return f"{name} {how}"


def _other_item(entry: Entry, random: Random) -> bytes:
    if entry.item_kind == STRING:
        merges = (b"nospace", b"a  b", b" ", b"no where", random.choice(entry.items))
        return random.choice((*TEXTS[:10], *merges, b"<0x41>", b"<0xZZ>", random.randbytes(3)))
    if entry.item_kind not in SCALARS:
        return b""
    if entry.item_kind == _FLOAT32:
        return scalar(_FLOAT32, random.choice(REALS))
    return scalar(entry.item_kind, random.choice((*range(9), *INTEGERS)))
