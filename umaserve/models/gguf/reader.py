"""Reads a GGUF file's header from its beginning, for whoever looks at a model file.

Layout: ``ggml/include/gguf.h``. Everything read is checked against what the file can hold: a
length that lies is an error, never an allocation or a long loop.
"""

from __future__ import annotations

import math
import os
import stat
import struct
from pathlib import Path
from typing import BinaryIO

from umaserve.system.regular_file import NotRegular, open_regular

from .header import GGUFError

MAGIC = b"GGUF"
TAKES_GGUF = (
    "umaserve takes GGUF: most models have a repository of that, whose name ends in -GGUF "
    "(`umaserve pull` lists some), else llama.cpp's convert_hf_to_gguf.py makes the file"
)
VERSIONS = (2, 3)

_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY, UINT32, FLOAT32 = 8, 9, 4, 6
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 18
_MAX_STRINGS = 1 << 24
_MAX_KEY_BYTES = 1 << 16
_ARCHITECTURE = "general.architecture"
_VOCABULARY = "tokenizer.ggml.tokens"
_KEPT_ARRAY = 4096
_KEPT_STRING = 1 << 20
_CHUNK = 1 << 18
# More texts than that take seconds to pass over.
_BRIEF_STRINGS = 1 << 20


def open_model(path: Path) -> BinaryIO:
    """The file at `path`, to be read. Raises `GGUFError` where it is none, else ``OSError``."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise GGUFError(f"{path} does not exist; give the path of a GGUF file") from None
    except ValueError as error:  # a NUL in the name
        raise GGUFError(f"{str(path)!r} is no file name: {error}") from None
    if stat.S_ISDIR(mode):
        inside = sorted(p.name for p in path.glob("*.gguf"))[:3]
        hint = f"; it holds {', '.join(inside)}: give one of these" if inside else ""
        if not inside and next(path.glob("*.safetensors"), None):
            hint = f": it is a Hugging Face checkpoint (safetensors); {TAKES_GGUF}"
        raise GGUFError(f"{path} is a directory, not a GGUF file{hint}")
    try:
        return open_regular(path)
    except NotRegular as error:
        raise GGUFError(f"{path} is no model: {error.strerror}") from None


class HeaderReader:
    """A cursor over the header of an open file. Holds a piece of the file, not all of the header.

    After `counts` and `metadata`, `values` and `lengths` are what `GGUFInfo` calls `metadata` and
    `array_lengths`, and `kinds` has the type id of each key. `vocabulary` has the texts of the
    tokens where all of the metadata was read.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.file = file
        self.size = os.fstat(file.fileno()).st_size
        self.values: dict[str, object] = {}
        self.lengths: dict[str, int] = {}
        self.kinds: dict[str, int] = {}
        self.vocabulary: set[bytes] = set()
        self._strings_left: float = math.inf
        # `held` is of the file from byte `base` on; `position` counts from there, may lie behind it
        self.held = bytearray()
        self.base = 0
        self.position = 0

    @property
    def offset(self) -> int:
        """The cursor's byte in the file."""
        return self.base + self.position

    def error(self, what: str) -> GGUFError:
        return GGUFError(f"{self.path} is not a usable GGUF file: {what}")

    def truncated(self, what: str) -> GGUFError:
        return GGUFError(
            f"{self.path} is truncated: {what}, and the file ends at {self.size} bytes; "
            "fetch it again"
        )

    def need(self, count: int, what: str) -> None:
        """Makes `count` bytes from the cursor available, or raises."""
        end = self.offset + count
        if end > self.size:
            raise self.truncated(f"{what} would end at byte {end}")
        if self.position + count <= len(self.held):
            return
        if self.position > len(self.held):
            self.file.seek(self.offset)
        self.base = self.offset
        del self.held[: self.position]
        self.position = 0
        while len(self.held) < count:
            read = max(_CHUNK, count - len(self.held))
            chunk = self.file.read(min(read, self.size - self.base - len(self.held)))
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

    def string(self, limit: int, what: str, kept: int | None = None) -> bytes:
        """The next string, of at most `limit` bytes; of a long one the first `kept`."""
        count = self.integer("Q", what)
        if count > limit:
            raise self.error(f"{what} has a length of {count} bytes")
        held = count if kept is None else min(count, kept)
        self.need(held, what)
        text = bytes(self.held[self.position : self.position + held])
        self.position += count
        self.need(0, what)
        return text

    def counts(self) -> tuple[int, int]:
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
        return n_tensors, n_keys

    def metadata(self, n_keys: int, brief: bool = False) -> str:
        """Reads the entries; returns the architecture, empty where the file names none.

        `brief` stops at the vocabulary, and where other texts are so many that they take seconds.
        """
        if brief:
            self._strings_left = _BRIEF_STRINGS
        for number in range(n_keys):
            raw = self.string(_MAX_KEY_BYTES, f"the name of metadata entry {number}")
            key = raw.decode("utf-8", "replace")
            if not key or key in self.kinds:
                raise self.error(f"metadata entry {number} has the name {key!r} again or none")
            kind = self.kinds[key] = self.integer("I", f"the type of {key}")
            in_tokenizer = kind == _ARRAY and key.startswith("tokenizer.")
            if brief and in_tokenizer and _ARCHITECTURE in self.values:
                break
            if not self.read_value(key, kind):
                break
        architecture = self.values.get(_ARCHITECTURE, "")
        if not isinstance(architecture, str):
            raise self.error(f"{_ARCHITECTURE} is not text")
        return architecture

    def read_value(self, key: str, kind: int) -> bool:
        """Whether to read on."""
        if kind in _SCALARS:
            self.values[key] = self.unpack(_SCALARS[kind], key)
        elif kind == _STRING:
            raw = self.string(1 << 30, key, _KEPT_STRING)
            self.values[key] = raw.decode("utf-8", "replace")
        elif kind == _ARRAY:
            item = self.integer("I", f"the type of {key}")
            count = self.integer("Q", f"the length of {key}")
            self.lengths[key] = count
            if item == _STRING:
                self._strings_left -= count
                if self._strings_left < 0:
                    return False
                self.skip_strings(key, count)
            elif item in _SCALARS:
                self.read_numbers(key, item, count)
            else:
                raise self.error(f"{key} is an array of the unknown type {item}")
        else:
            raise self.error(f"{key} has the unknown type {kind}")
        return True

    def read_numbers(self, key: str, item: int, count: int) -> None:
        width = struct.calcsize(_SCALARS[item])
        if count > self.size // width:
            raise self.truncated(f"{key} claims {count} entries")
        if count <= _KEPT_ARRAY:
            self.need(count * width, key)
            layout = f"<{count}{_SCALARS[item]}"
            self.values[key] = list(struct.unpack_from(layout, self.held, self.position))
        self.position += count * width
        self.need(0, key)

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


def _describe_magic(magic: bytes, beginning: bytes) -> str:
    if magic in (b"lmgg", b"fmgg", b"tjgg", b"algg"):
        return "it is in a format older than GGUF; convert it with llama.cpp's scripts"
    if magic == MAGIC[::-1]:
        return "it was written for a big-endian machine; convert it for this one"
    if magic[:2] == b"PK" or beginning[:1] == b"\x80":
        return f"it is a PyTorch file; {TAKES_GGUF}"
    if b'"__metadata__"' in beginning or beginning[8:9] == b"{":
        return f"it is a Hugging Face checkpoint (safetensors); {TAKES_GGUF}"
    if beginning.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, not the model; run git lfs pull"
    try:
        beginning.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(beginning) - 3:
            return f"it starts with {magic!r} instead of {MAGIC!r}"
    return "it is a text file"
