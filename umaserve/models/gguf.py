"""Reads a GGUF file's header and says what is wrong with it, before libllama sees the file.

libllama reports most damage, but some of it ends the process (a failed ``GGML_ASSERT``, a page
fault past the end of a truncated mapping). Layout: ``ggml/include/gguf.h``. Standard library only.

Everything read is checked against what the file can hold: a length that lies is an error, never an
allocation or a long loop. What the model then says of itself is for `shape`
and `vocabulary`.

Long: one reader, in the order of the file.
"""

from __future__ import annotations

import math
import os
import re
import stat
import struct
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from umaserve.regular_file import NotRegular, open_regular

from .header import GGUFError, GGUFInfo, GGUFTensor
from .shape import why_no_shape
from .vocabulary import why_no_vocabulary

MAGIC = b"GGUF"
VERSIONS = (2, 3)
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

_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY, _UINT32 = 8, 9, 4
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 18
_MAX_STRINGS = 1 << 24
_MAX_KEY_BYTES = 1 << 16
_MAX_NAME = 64
_MAX_DIMENSIONS = 4
_VOCABULARY = "tokenizer.ggml.tokens"
_TOKENIZER = "tokenizer.ggml.model"
_KEPT_ARRAY = 4096
_KEPT_STRING = 1 << 20
_CHUNK = 1 << 20
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
        part = _check_file(sibling)
        tensor_bytes += part.tensor_bytes
        file_bytes += part.file_bytes
        tensors += part.tensors
    return replace(first, tensor_bytes=tensor_bytes, file_bytes=file_bytes, tensors=tuple(tensors))


def _check_file(path: Path) -> GGUFInfo:
    try:
        with _open(path) as file:
            facts = os.fstat(file.fileno())
            key = (str(path), facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
            info = _checked.get(key)
            if info is None:
                info = _Reader(path, file, facts.st_size).read()
                if len(_checked) >= _MAX_CHECKED:
                    _checked.clear()
                _checked[key] = info
            return info
    except OSError as error:
        raise GGUFError(f"{path} cannot be read: {error.strerror or error}") from error


# A large vocabulary takes a quarter of a second to read, and a load asks more than once.
_checked: dict[tuple[object, ...], GGUFInfo] = {}
_MAX_CHECKED = 16


def _open(path: Path) -> BinaryIO:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise GGUFError(f"{path} does not exist; give the path of a GGUF file") from None
    except ValueError as error:  # a NUL in the name
        raise GGUFError(f"{str(path)!r} is no file name: {error}") from None
    if stat.S_ISDIR(mode):
        inside = sorted(p.name for p in path.glob("*.gguf"))[:3]
        hint = f"; it holds {', '.join(inside)}: give one of these" if inside else ""
        raise GGUFError(f"{path} is a directory, not a GGUF file{hint}")
    try:
        return open_regular(path)
    except NotRegular as error:
        raise GGUFError(f"{path} is no model: {error.strerror}") from None


class _Reader:
    """A cursor over the header. Holds as much of the file as the header takes, no more."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path = path
        self.file = file
        self.size = size
        self.held = bytearray()
        self.position = 0
        self.vocabulary: set[bytes] = set()

    def error(self, what: str) -> GGUFError:
        return GGUFError(f"{self.path} is not a usable GGUF file: {what}")

    def truncated(self, what: str) -> GGUFError:
        return GGUFError(
            f"{self.path} is truncated: {what}, and the file ends at {self.size} bytes; "
            "fetch it again"
        )

    def need(self, count: int, what: str) -> None:
        """Makes `count` bytes from the cursor available, or raises."""
        end = self.position + count
        if end > self.size:
            raise self.truncated(f"{what} would end at byte {end}")
        while len(self.held) < end:
            chunk = self.file.read(max(_CHUNK, end - len(self.held)))
            if not chunk:
                raise self.truncated(f"{what} would end at byte {end}")
            self.held += chunk

    def unpack(self, layout: str, what: str) -> int | float | bool:
        count = struct.calcsize("<" + layout)
        self.need(count, what)
        (value,) = struct.unpack_from("<" + layout, self.held, self.position)
        self.position += count
        return value

    def integer(self, layout: str, what: str) -> int:
        return int(self.unpack(layout, what))

    def string(self, limit: int, what: str) -> bytes:
        count = self.integer("Q", what)
        if count > limit:
            raise self.error(f"{what} has a length of {count} bytes")
        self.need(count, what)
        self.position += count
        return bytes(self.held[self.position - count : self.position])

    def read(self) -> GGUFInfo:
        version, n_tensors, n_keys = self.read_counts()
        metadata: dict[str, object] = {}
        lengths: dict[str, int] = {}
        alignment_type = _UINT32
        for number in range(n_keys):
            raw = self.string(_MAX_KEY_BYTES, f"the name of metadata entry {number}")
            key = raw.decode("utf-8", "replace")
            if not key or key in metadata or key in lengths:
                raise self.error(f"metadata entry {number} has the name {key!r} again or none")
            kind = self.integer("I", f"the type of {key}")
            if key == "general.alignment":
                alignment_type = kind
            self.read_value(key, kind, metadata, lengths)
        architecture = metadata.get("general.architecture", "")
        if not isinstance(architecture, str):
            raise self.error("general.architecture is not text")
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if alignment_type != _UINT32 or not isinstance(alignment, int) or alignment <= 0:
            raise self.error("general.alignment is no positive number")
        if alignment & (alignment - 1):
            raise self.error(f"general.alignment is {alignment}, which is no power of two")
        why = why_no_vocabulary(metadata.get(_TOKENIZER), self.vocabulary)
        if why:
            raise self.error(why)
        tensors, offsets = self.read_tensors(n_tensors)
        start = -(-self.position // alignment) * alignment
        total = self.check_extents(tensors, offsets, start, alignment)
        return GGUFInfo(
            path=self.path,
            version=version,
            architecture=architecture,
            n_tensors=n_tensors,
            metadata=metadata,
            array_lengths=lengths,
            tensor_bytes=total,
            file_bytes=self.size,
            data_offset=start,
            tensors=tuple(tensors),
        )

    def read_counts(self) -> tuple[int, int, int]:
        if self.size == 0:
            raise GGUFError(f"{self.path} is empty; fetch it again")
        self.need(min(4, self.size), "the magic number")
        magic = bytes(self.held[:4])
        if magic != MAGIC:
            raise self.error(_describe_magic(magic, bytes(self.held[:512])))
        self.position = 4
        version = self.integer("I", "the version")
        if version & 0xFFFF == 0 and version:
            raise self.error("it was written for a big-endian machine; convert it for this one")
        if version not in VERSIONS:
            known = " and ".join(map(str, VERSIONS))
            raise self.error(f"it has GGUF version {version}; versions {known} can be read")
        n_tensors = self.integer("Q", "the number of tensors")
        n_keys = self.integer("Q", "the number of metadata entries")
        # The smallest tensor entry takes 24 bytes, the smallest metadata entry 13.
        if n_tensors > min(_MAX_TENSORS, self.size // 24):
            raise self.error(f"it claims to have {n_tensors} tensors")
        if n_keys > min(_MAX_KEYS, self.size // 13):
            raise self.error(f"it claims to have {n_keys} metadata entries")
        return version, n_tensors, n_keys

    def read_value(
        self, key: str, kind: int, metadata: dict[str, object], lengths: dict[str, int]
    ) -> None:
        if kind in _SCALARS:
            metadata[key] = self.unpack(_SCALARS[kind], key)
        elif kind == _STRING:
            metadata[key] = self.string(1 << 30, key)[:_KEPT_STRING].decode("utf-8", "replace")
        elif kind == _ARRAY:
            item = self.integer("I", f"the type of {key}")
            count = self.integer("Q", f"the length of {key}")
            lengths[key] = count
            if item == _STRING:
                self.skip_strings(key, count)
            elif item in _SCALARS:
                self.read_numbers(key, item, count, metadata)
            else:
                raise self.error(f"{key} is an array of the unknown type {item}")
        else:
            raise self.error(f"{key} has the unknown type {kind}")

    def read_numbers(self, key: str, item: int, count: int, metadata: dict[str, object]) -> None:
        width = struct.calcsize(_SCALARS[item])
        if count > self.size // width:
            raise self.truncated(f"{key} claims {count} entries")
        if count <= _KEPT_ARRAY:
            self.need(count * width, key)
            layout = f"<{count}{_SCALARS[item]}"
            metadata[key] = list(struct.unpack_from(layout, self.held, self.position))
        self.need(count * width, key)
        self.position += count * width

    def skip_strings(self, key: str, count: int) -> None:
        """Passes over an array of strings; those of the vocabulary have to differ."""
        if count > min(_MAX_STRINGS, self.size // 8):
            raise self.error(f"{key} claims {count} entries")
        length_of = struct.Struct("<Q").unpack_from
        seen: set[bytes] | None = set() if key == _VOCABULARY else None
        for number in range(count):
            if self.position + 8 > len(self.held):
                self.need(8, key)
            (length,) = length_of(self.held, self.position)
            if length > self.size:
                raise self.truncated(f"an entry of {key} claims {length} bytes")
            self.position += 8
            if seen is not None:
                if self.position + length > len(self.held):
                    self.need(length, key)
                text = bytes(self.held[self.position : self.position + length])
                if not text or 0 in text:  # libllama reads C strings, and renames empty ones
                    text = text.partition(b"\0")[0] or b"\0%d" % number
                seen.add(text)
            self.position += length
        self.need(0, key)
        if seen is not None and len(seen) < count:
            raise self.error(f"{count - len(seen)} entries of its vocabulary are there twice")
        self.vocabulary = seen or self.vocabulary

    def read_tensors(self, count: int) -> tuple[list[GGUFTensor], list[int]]:
        """Each tensor's entry, and the offset of its data."""
        tensors: list[GGUFTensor] = []
        offsets: list[int] = []
        names: set[str] = set()
        for number in range(count):
            raw = self.string(_MAX_NAME - 1, f"the name of tensor {number}")
            name = raw.decode("utf-8", "replace")
            if name in names:
                raise self.error(f"two tensors have the name {name!r}")
            names.add(name)
            dimensions = self.integer("I", f"the shape of {name}")
            if dimensions > _MAX_DIMENSIONS:
                raise self.error(f"tensor {name} has {dimensions} dimensions")
            shape = [self.integer("Q", f"the shape of {name}") for _ in range(dimensions)]
            kind = self.integer("I", f"the type of {name}")
            offset = self.integer("Q", f"the offset of {name}")
            if kind not in GGML_TYPES:
                raise self.error(f"tensor {name} has the unknown type {kind}")
            block, width = GGML_TYPES[kind]
            row = shape[0] if shape else 1
            if row % block:
                raise self.error(f"tensor {name} has rows of {row} values in blocks of {block}")
            size = math.prod(shape) // block * width
            tensors.append(GGUFTensor(name, tuple(shape), kind, size))
            offsets.append(offset)
        return tensors, offsets

    def check_extents(
        self, tensors: list[GGUFTensor], offsets: list[int], start: int, alignment: int
    ) -> int:
        """The bytes of all tensors, each of which has to lie inside the file."""
        total = 0
        for (name, _, _, count), offset in zip(tensors, offsets, strict=True):
            if offset % alignment:
                raise self.error(f"tensor {name} does not start at a multiple of {alignment}")
            if start + offset + count > self.size:
                raise self.truncated(f"tensor {name} would end at byte {start + offset + count}")
            total += count
        return total


def _describe_magic(magic: bytes, beginning: bytes) -> str:
    if magic in (b"lmgg", b"fmgg", b"tjgg", b"algg"):
        return "it is in a format older than GGUF; convert it with llama.cpp's scripts"
    if magic == MAGIC[::-1]:
        return "it was written for a big-endian machine; convert it for this one"
    if magic[:2] == b"PK" or beginning[:1] == b"\x80":
        return "it looks like a PyTorch file; convert it with llama.cpp's convert_hf_to_gguf.py"
    if b'"__metadata__"' in beginning or beginning[8:9] == b"{":
        return "it looks like a safetensors file; convert it with convert_hf_to_gguf.py"
    if beginning.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, not the model; run git lfs pull"
    try:
        beginning.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(beginning) - 3:
            return f"it starts with {magic!r} instead of {MAGIC!r}"
    return "it is a text file"
