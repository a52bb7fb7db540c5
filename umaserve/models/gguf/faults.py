"""Says what is wrong with a GGUF file's header, before libllama sees the file.

libllama reports most damage, but some of it ends the process (a failed ``GGML_ASSERT``, a page
fault past the end of a truncated mapping). What the model says of itself is for `shape` and
`vocabulary`.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import replace
from pathlib import Path

from .header import GGUFError, GGUFInfo, GGUFTensor
from .reader import UINT32, HeaderReader, open_model
from .shape import why_no_shape
from .vocabulary import why_no_vocabulary

DEFAULT_ALIGNMENT = 32

# id: (elements in a block, bytes of a block), as ggml_blck_size and ggml_type_size answer.
GGML_TYPES: dict[int, tuple[int, int]] = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    9: (32, 36), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18),
    21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8),
    28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36),
    41: (128, 18), 42: (64, 18),
}  # fmt: skip

_MAX_NAME = 64
_MAX_DIMENSIONS = 4
_SPLIT_NAME = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.gguf$")


def check_gguf(path: str | os.PathLike[str]) -> GGUFInfo:
    """Checks the file at `path` (and the other files of a split model) as far as its header goes.

    Raises `GGUFError`, whose message names the file, the damage and what to do.
    """
    path = Path(path)
    first = _check_file(path)
    count = first.metadata.get("split.count", 0)
    info = _check_split(path, first, count) if isinstance(count, int) and count > 1 else first
    if not info.architecture:
        raise GGUFError(f"{path} names no architecture (no general.architecture); not a model")
    why = why_no_shape(info)
    if why:
        raise GGUFError(f"{path} is not a usable GGUF file: {why}")
    return info


def _check_split(path: Path, first: GGUFInfo, count: int) -> GGUFInfo:
    match = _SPLIT_NAME.match(path.name)
    if match is None or int(match.group(3)) != count or int(match.group(2)) != 1:
        raise GGUFError(
            f"{path} is one of {count} files of a split model; "
            f"give the first, named like MODEL-00001-of-{min(count, 99999):05d}.gguf"
        )
    tensor_bytes, file_bytes = first.tensor_bytes, first.file_bytes
    tensors = list(first.tensors)
    for number in range(2, count + 1):
        sibling = path.with_name(f"{match.group(1)}-{number:05d}-of-{count:05d}.gguf")
        if not os.path.exists(sibling):
            raise GGUFError(f"{path} lacks {sibling.name}, a part of the model; fetch it again")
        part = _check_file(sibling)
        tensor_bytes += part.tensor_bytes
        file_bytes += part.file_bytes
        tensors += part.tensors
    return replace(first, tensor_bytes=tensor_bytes, file_bytes=file_bytes, tensors=tuple(tensors))


def _check_file(path: Path) -> GGUFInfo:
    try:
        with open_model(path) as file:
            facts = os.fstat(file.fileno())
            key = (str(path), facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
            info = _checked.get(key)
            if info is None:
                info = _read(HeaderReader(path, file))
                if len(_checked) >= _MAX_CHECKED:
                    _checked.clear()
                _checked[key] = info
            return info
    except OSError as error:
        raise GGUFError(f"{path} cannot be read: {error.strerror or error}") from error


# A large vocabulary takes a quarter of a second to read, and a load asks more than once.
_checked: dict[tuple[object, ...], GGUFInfo] = {}
_MAX_CHECKED = 16


def _read(reader: HeaderReader) -> GGUFInfo:
    n_tensors, n_keys = reader.counts()
    architecture = reader.metadata(n_keys)
    alignment = reader.values.get("general.alignment", DEFAULT_ALIGNMENT)
    kind = reader.kinds.get("general.alignment", UINT32)
    if kind != UINT32 or not isinstance(alignment, int) or alignment <= 0:
        raise reader.error("general.alignment is no positive number")
    if alignment & (alignment - 1):
        raise reader.error(f"general.alignment is {alignment}, which is no power of two")
    why = why_no_vocabulary(reader.values.get("tokenizer.ggml.model"), reader.vocabulary)
    if why:
        raise reader.error(why)
    tensors, offsets = _read_tensors(reader, n_tensors)
    start = -(-reader.offset // alignment) * alignment
    total = _check_extents(reader, tensors, offsets, start, alignment)
    return GGUFInfo(
        path=reader.path,
        architecture=architecture,
        metadata=reader.values,
        array_lengths=reader.lengths,
        tensor_bytes=total,
        file_bytes=reader.size,
        data_offset=start,
        tensors=tuple(tensors),
    )


def _read_tensors(reader: HeaderReader, count: int) -> tuple[list[GGUFTensor], list[int]]:
    """Each tensor's entry, and the offset of its data."""
    tensors: list[GGUFTensor] = []
    offsets: list[int] = []
    names: set[str] = set()
    for number in range(count):
        raw = reader.string(_MAX_NAME - 1, f"the name of tensor {number}")
        name = raw.decode("utf-8", "replace")
        if name in names:
            raise reader.error(f"two tensors have the name {name!r}")
        names.add(name)
        dimensions = reader.integer("I", f"the shape of {name}")
        if dimensions > _MAX_DIMENSIONS:
            raise reader.error(f"tensor {name} has {dimensions} dimensions")
        shape = [reader.integer("Q", f"the shape of {name}") for _ in range(dimensions)]
        kind = reader.integer("I", f"the type of {name}")
        offset = reader.integer("Q", f"the offset of {name}")
        if kind not in GGML_TYPES:
            raise reader.error(f"tensor {name} has the unknown type {kind}")
        block, width = GGML_TYPES[kind]
        row = shape[0] if shape else 1
        if row % block:
            raise reader.error(f"tensor {name} has rows of {row} values in blocks of {block}")
        size = math.prod(shape) // block * width
        tensors.append(GGUFTensor(name, tuple(shape), kind, size))
        offsets.append(offset)
    return tensors, offsets


def _check_extents(
    reader: HeaderReader, tensors: list[GGUFTensor], offsets: list[int], start: int, alignment: int
) -> int:
    """The bytes of all tensors, each of which has to lie inside the file."""
    total, whole, last = 0, 0, ""
    for (name, _, _, count), offset in zip(tensors, offsets, strict=True):
        if offset % alignment:
            raise reader.error(f"tensor {name} does not start at a multiple of {alignment}")
        if start + offset + count > whole:
            whole, last = start + offset + count, name
        total += count
    if whole > reader.size:
        raise reader.truncated(
            f"{reader.size / whole:.0%} of it are there; tensor {last} would end at byte {whole}"
        )
    return total
