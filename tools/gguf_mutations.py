"""Breaks a GGUF on purpose, field by field: the same random numbers break it the same way.

Each mutation is a function that changes the pieces in place and says in a few words what it did.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

import gguf_words as words
from gguf_fields import ARRAY, SCALARS, STRING, Entry, Pieces, TensorEntry

INTEGERS = (
    0, 1, 2, 3, 5, 7, 31, 33, 127, 128, 255, 256, 512, 513, 1 << 15, (1 << 16) - 1, 1 << 16, 1 << 20,
    1 << 24, 1 << 28, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63,
    (1 << 64) - 1, -1,
)  # fmt: skip
REALS = (
    float("nan"), float("inf"), float("-inf"), 0.0, -0.0, -1.0, 1e-45, 1e-30, 1e30, 3.4e38, 0.5, 2.0,
)  # fmt: skip
TEXTS = (
    b"", b"\0", b"a\0b", b"\xff\xfe", b"\xed\xa0\x80", b"%s%n%d", b"{{", b"{% for a in b %}",
    b"\x1b[2J", b" ", b"x" * 65536, "ä€😀".encode() * 100, b"{{ 'a' * 1000000000 }}",
)  # fmt: skip
GGML_TYPES = (*range(0, 45), 99, 255, 1 << 31, -1)
_UINT32, _INT32, _FLOAT32, _BOOL = 4, 5, 6, 7

Mutation = Callable[[Pieces, Random], str]


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


def _arrays(pieces: Pieces) -> list[Entry]:
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


# --- the container -------------------------------------------------------------------------------


def file_head(pieces: Pieces, random: Random) -> str:
    field = random.choice(("version", "n_entries", "n_tensors", "n_entries", "n_tensors", "magic"))
    if field == "magic":
        pieces.magic = random.choice((b"FUGG", b"GGUX", b"\0\0\0\0", b"GGML"))
        return f"magic {pieces.magic!r}"
    true = {"version": 3, "n_entries": len(pieces.entries), "n_tensors": len(pieces.tensors)}[field]
    value = random.choice((*INTEGERS, true - 1, true + 1, true // 2))
    setattr(pieces, field, value)
    return f"{field} {value}"


def length_lies(pieces: Pieces, random: Random) -> str:
    entry = random.choice(pieces.entries)
    value = random.choice((*INTEGERS, 1 << 30, 1 << 40))
    if random.random() < 0.2:
        entry.key_length = value
        return f"length of the name {entry.key!r} {value}"
    texts = [e for e in pieces.entries if STRING in (e.kind, e.item_kind) and e.items]
    if random.random() < 0.5 and texts:
        entry = random.choice(texts)
        at = random.randrange(len(entry.items))
        entry.lengths[at] = value
        return f"length of text {at} of {entry.key!r} {value}"
    arrays = _arrays(pieces)
    if not arrays:
        return "nothing"
    entry = random.choice(arrays)
    entry.count = random.choice((value, len(entry.items) + 1, len(entry.items) - 1))
    return f"count of {entry.key!r} {entry.count}"


def type_lies(pieces: Pieces, random: Random) -> str:
    entry = random.choice(pieces.entries)
    kind = random.choice((*range(14), 255, 1 << 31))
    if entry.kind == ARRAY and random.random() < 0.6:
        entry.item_kind = kind
        return f"item type of {entry.key!r} {kind}"
    if kind == ARRAY:  # an array in place of the value, or arrays of arrays
        depth = random.choice((1, 1, 2, 1000))
        one = struct.pack("<IQ", ARRAY, 1)
        entry.items, entry.item_kind = [one * (depth - 1) + struct.pack("<IQ", 4, 0)], ARRAY
    entry.kind = kind
    return f"type of {entry.key!r} {kind}"


def entries_move(pieces: Pieces, random: Random) -> str:
    entries, how = pieces.entries, random.choice(("remove", "remove", "again", "shuffle", "rename"))
    at = random.randrange(len(entries))
    key = entries[at].key
    if how == "remove":
        del entries[at]
    elif how == "again":
        entries.insert(random.randrange(len(entries)), entries[at])
    elif how == "shuffle":
        random.shuffle(entries)
    else:
        entries[at].key = random.choice((b"", b"\xff", b"x" * 70000, random.choice(entries).key))
    return f"{how} {key!r}"


def bytes_change(data: bytes, random: Random) -> tuple[bytes, str]:
    """Of the finished file: cut, longer, flipped; mostly in its header."""
    how = random.choice(("cut", "cut", "flip", "flip", "flip", "longer", "copy"))
    size = len(data)
    near = size if random.random() < 0.3 else min(size, 40_000 if random.random() < 0.7 else 2_000)
    if how == "cut":
        at = random.randrange(near)
        return data[:at], f"cut at {at}"
    if how == "longer":
        return data + random.randbytes(random.choice((1, 31, 4096))), "longer"
    out = bytearray(data)
    if how == "copy":
        source, target, count = random.randrange(near), random.randrange(near), 64
        out[target : target + count] = out[source : source + count]
        return bytes(out[:size]), f"copy {source} to {target}"
    places = [random.randrange(near) for _ in range(random.choice((1, 1, 2, 4, 16)))]
    for at in places:
        out[at] ^= random.choice((1, 0x80, 0xFF, random.randrange(1, 256)))
    return bytes(out), f"flip {places}"


# --- what the model says of itself ---------------------------------------------------------------


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
        key, count = prefix + random.choice(words.LISTS).encode(), random.choice((0, 1, 2, 2, 3, 4, 600))
        small = [scalar(_UINT32, random.choice((0, 1, 2, random.choice(INTEGERS)))) for _ in range(count)]
        put(pieces, key, ARRAY, small, random.choice((_UINT32, _INT32, _FLOAT32)))
        return f"{key!r} comes with {count}"
    elif how == "text":
        name = random.choice(list(words.TEXTS))
        value = random.choice((*words.TEXTS[name].split(), *TEXTS))
        key = (b"" if name.startswith(("general", "adapter", "tokenizer")) else prefix) + name.encode()
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
    arrays = [e for e in _arrays(pieces) if e.key.startswith(b"tokenizer.") and e.items]
    if not arrays:
        return "nothing"
    entry = random.choice(arrays)
    name, items = entry.key.decode(errors="replace"), entry.items
    how = random.choice(("shorter", "longer", "empty", "change", "change", "change", "same", "shuffle"))
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


# --- tensors -------------------------------------------------------------------------------------


def _a_tensor(pieces: Pieces, random: Random) -> TensorEntry:
    if not pieces.tensors:
        pieces.tensors.append(TensorEntry(b"x.weight", [32], 0, bytes(128)))
    return random.choice(pieces.tensors)


def tensor_entry_lies(pieces: Pieces, random: Random) -> str:
    tensor = _a_tensor(pieces, random)
    how = random.choice(("dim", "dim", "dims", "n_dims", "type", "offset", "name_length", "swap"))
    if how == "dim" and tensor.dims:
        at = random.randrange(len(tensor.dims))
        old = tensor.dims[at]
        tensor.dims[at] = random.choice((*INTEGERS, old + 1, old - 1, old * 2, old // 2, old + 32))
    elif how == "dims":
        tensor.dims = [random.choice(INTEGERS) for _ in range(random.randrange(6))]
    elif how == "n_dims":
        tensor.n_dims = random.choice((0, 1, 2, 3, 4, 5, 255, (1 << 32) - 1))
    elif how == "type":
        tensor.kind = random.choice(GGML_TYPES)
    elif how == "offset":
        tensor.offset = random.choice((0, 1, 16, 32, 64, len(tensor.data), *INTEGERS))
    elif how == "name_length":
        tensor.name_length = random.choice((0, 63, 64, 65, *INTEGERS))
    else:
        tensor.dims.reverse()
    return f"{tensor.name!r} {how} {tensor.dims} {tensor.n_dims} {tensor.kind} {tensor.offset}"


def tensors_move(pieces: Pieces, random: Random) -> str:
    tensor, other = _a_tensor(pieces, random), _a_tensor(pieces, random)
    how = random.choice(("remove", "remove", "again", "rename", "swap names", "shuffle", "squeeze"))
    if how == "remove":
        pieces.tensors.remove(tensor)
    elif how == "again":
        pieces.tensors.append(tensor)
    elif how == "rename":
        names = (b"", b"x" * 63, b"x" * 64, b"a\0b", b"\xff", b"blk.999.attn_q.weight", other.name)
        tensor.name = random.choice((*names, tensor.name.replace(b"blk.0", b"blk.1")))
    elif how == "swap names":
        tensor.name, other.name = other.name, tensor.name
    elif how == "squeeze":  # all data in one place
        for each in pieces.tensors:
            each.offset = 0
    else:
        random.shuffle(pieces.tensors)
    return f"{how} {tensor.name!r}"


def tensor_fits_anew(pieces: Pieces, random: Random) -> str:
    """Another shape or type, with as much data as that needs: no lie for the header's check."""
    tensor = _a_tensor(pieces, random)
    if random.random() < 0.5:
        tensor.kind = random.choice(GGML_TYPES[:44])
    elif tensor.dims:
        at = random.randrange(len(tensor.dims))
        tensor.dims[at] = random.choice((0, 1, 2, 31, 32, 33, 64, 96, 128, 256, 512))
        if random.random() < 0.3:
            tensor.dims.append(random.choice((1, 2, 32)))
    room = 8
    for dim in tensor.dims:
        room *= min(dim, 4096)
    tensor.data = random.randbytes(min(room, 400_000))
    return f"{tensor.name!r} anew {tensor.dims} type {tensor.kind}"


def data_changes(pieces: Pieces, random: Random) -> str:
    """Weights that are no numbers: NaN and infinite scales, garbage."""
    chosen = pieces.tensors if random.random() < 0.3 else [_a_tensor(pieces, random)]
    fill = random.choice((b"\xff", b"\0", b"\x7f", b"\x00\x7c", b"\xff\x7f", b"\x80", None))
    for tensor in chosen:
        size = len(tensor.data)
        tensor.data = random.randbytes(size) if fill is None else (fill * size)[:size]
    return f"data of {len(chosen)} tensors {fill!r}"


_ALL: tuple[tuple[Mutation, int], ...] = (
    (file_head, 4), (length_lies, 8), (type_lies, 8), (entries_move, 8), (number_changes, 24),
    (number_type_changes, 8), (key_comes, 24), (other_architecture, 6), (text_changes, 4),
    (tokenizer_breaks, 14), (tensor_entry_lies, 10), (tensors_move, 8), (tensor_fits_anew, 8),
    (data_changes, 6),
)  # fmt: skip
_BYTES_SHARE = 0.1


def mutate(whole: Pieces, random: Random) -> tuple[bytes, str]:
    """A broken file made from *whole*, and what was done: one to three mutations."""
    pieces = whole.copy()
    functions, weights = zip(*_ALL, strict=True)
    done = []
    only_bytes = random.random() < _BYTES_SHARE / 2
    if not only_bytes:
        for function in random.choices(functions, weights, k=random.choice((1, 1, 1, 2, 2, 3))):
            if pieces.entries:
                done.append(function(pieces, random))
    data = pieces.write()
    if only_bytes or random.random() < _BYTES_SHARE:
        data, what = bytes_change(data, random)
        done.append(what)
    return data, "; ".join(done)
