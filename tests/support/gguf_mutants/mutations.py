"""Breaks a GGUF on purpose, field by field: the same random numbers break it the same way.

Each mutation is a function that changes the pieces in place and says in a few words what it did.
Those of the container and of the tensors are here, those of the model in ``gguf_model_mutations``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

from .fields import ARRAY, STRING, Pieces, TensorEntry
from .model_mutations import (
    INTEGERS,
    arrays_of,
    key_comes,
    number_changes,
    number_type_changes,
    other_architecture,
    text_changes,
    tokenizer_breaks,
)

GGML_TYPES = (*range(0, 45), 99, 255, 1 << 31, -1)

Mutation = Callable[[Pieces, Random], str]


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
    arrays = arrays_of(pieces)
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
