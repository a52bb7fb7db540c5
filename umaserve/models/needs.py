"""Will a model fit?  What is free, and what a model file says it will need."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from umaserve.regular_file import NotRegular, open_regular
from umaserve.texts import path_of

BYTES_PER_VALUE = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32,
                   "q5_0": 22 / 32, "q4_1": 20 / 32, "q4_0": 18 / 32}  # fmt: skip
LEAST_CELLS = 4096  # KV cells where nobody chose, however little memory there is
ENGINE_BYTES = 300 * 1024 * 1024  # the process itself and its compute buffers, roughly
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
_STRING, _ARRAY = 8, 9
_LONGEST = 1 << 24  # bytes of a text that are read
_MOST_TEXTS = 1 << 20  # texts of arrays that are read, together
_MOST_LAYERS = 4096


class ModelFileError(Exception):
    """The file cannot be a model; the message says why in a sentence for the user."""


@dataclass(frozen=True)
class ModelFile:
    """A GGUF file that looks like a model: its size and the shape of its KV cache."""

    path: str
    size: int
    n_layer: int
    n_kv_values: int  # K values of one token in one layer; V has as many
    n_ctx_train: int = 0  # positions that it was trained for; 0 = it does not say

    def kv_bytes(self, n_ctx: int, type_k: str, type_v: str) -> int:
        per_value = BYTES_PER_VALUE.get(type_k, 2.0) + BYTES_PER_VALUE.get(type_v, 2.0)
        return int(n_ctx * self.n_layer * self.n_kv_values * per_value)

    def needs(self, n_ctx: int, type_k: str, type_v: str) -> int:
        """Bytes that serving it takes, roughly."""
        return self.size + self.kv_bytes(n_ctx, type_k, type_v) + ENGINE_BYTES


def look_at(path: str) -> ModelFile:
    """Check that ``path`` is a GGUF file and read what its header says before the vocabulary.

    ``path`` may be a ``file://`` URI.  Raises ``ModelFileError``.
    """
    full = Path(path_of(path)).expanduser().absolute()
    try:
        with open_regular(full) as file:
            return _read(file, str(full))
    except (FileNotFoundError, NotADirectoryError):
        raise ModelFileError(f"{full} does not exist") from None
    except NotRegular as error:
        raise ModelFileError(f"{full} is no model: {error.strerror}") from None
    except OSError as error:
        raise ModelFileError(f"{full} cannot be read: {error.strerror}") from None
    except ValueError as error:  # a NUL in the name
        raise ModelFileError(f"{str(full)!r} is no file name: {error}") from None


def _read(file: BinaryIO, path: str) -> ModelFile:
    magic = file.read(4)
    if magic != b"GGUF":
        what = "is empty" if not magic else f"begins with {magic!r}, not b'GGUF'"
        raise ModelFileError(f"{path} is not a GGUF file: it {what}")
    try:
        version, _tensors, n_keys = _unpack(file, "IQQ")
        if not 2 <= version <= 3:
            raise ModelFileError(f"{path} is GGUF version {version}; versions 2 and 3 are known")
        size = os.fstat(file.fileno()).st_size
        values = _shape_keys(file, n_keys, size)
    except (struct.error, EOFError):
        raise ModelFileError(f"{path} is cut short: its header ends in the middle") from None
    heads = values.get("attention.head_count", 0) or 1
    kv_heads = values.get("attention.head_count_kv", heads)
    key_length = values.get("attention.key_length", values.get("embedding_length", 0) // heads)
    trained = values.get("context_length", 0)
    return ModelFile(path, size, values.get("block_count", 0), kv_heads * key_length, trained)


def _unpack(file: BinaryIO, codes: str) -> tuple:
    form = struct.Struct("<" + codes)
    return form.unpack(file.read(form.size))


def _string(file: BinaryIO, file_size: int) -> str:
    (size,) = _unpack(file, "Q")
    if size > min(file_size, _LONGEST):
        raise EOFError
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return data.decode("utf-8", "replace")


def _shape_keys(file: BinaryIO, n_keys: int, size: int) -> dict[str, int]:
    """Whole numbers under the architecture's prefix, as far as the vocabulary, which comes later.

    Of arrays the largest: one a layer bounds the need.  Stops after so many texts that reading on
    would take seconds.  A number that no size can be (negative, a fraction) counts as none.
    """
    values: dict[str, int] = {}
    architecture, texts = "", _MOST_TEXTS
    for _ in range(min(n_keys, 4096)):
        key = _string(file, size)
        (kind,) = _unpack(file, "I")
        items: tuple = ()
        if kind == _STRING:
            text = _string(file, size)
            if key == "general.architecture":
                architecture = text
        elif kind == _ARRAY:
            element, count = _unpack(file, "IQ")
            if key.startswith("tokenizer.") and architecture:
                break
            if element == _STRING:
                texts -= count
                if texts < 0:
                    break
                for _ in range(count):
                    _string(file, size)
            elif element in _SCALARS:
                items = _numbers(file, element, count, size)
            else:
                break
        elif kind in _SCALARS:
            items = _unpack(file, _SCALARS[kind])
        else:
            raise EOFError
        sizes = [v for v in items if isinstance(v, int) and not isinstance(v, bool) and v >= 0]
        if sizes:
            values[key] = max(sizes)
    prefix = architecture + "."
    return {k[len(prefix) :]: v for k, v in values.items() if k.startswith(prefix)}


def _numbers(file: BinaryIO, element: int, count: int, size: int) -> tuple:
    """The items of an array that is now behind; none where they are too many for layers."""
    width = struct.calcsize(_SCALARS[element])
    if count > size // width:
        raise EOFError
    if count > _MOST_LAYERS:
        file.seek(count * width, os.SEEK_CUR)
        return ()
    return _unpack(file, f"{count}{_SCALARS[element]}")


def available_bytes() -> int:
    """Memory that a new process can have without pushing anything out; 0 where unknown."""
    if sys.platform == "darwin":  # only read about, never run
        return _vm_stat()
    free = _meminfo("MemAvailable") or os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit, used = _cgroup("memory.max"), _cgroup("memory.current") - _cached_files()
    return min(free, max(limit - used, 0)) if limit else free


def total_bytes() -> int:
    """Memory of the machine, or of the container where that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _cgroup("memory.max")
    return min(total, limit) if limit else total


def _meminfo(name: str) -> int:
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith(name + ":"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0


def _cgroup(name: str) -> int:
    try:
        text = Path("/sys/fs/cgroup", name).read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0


def _cached_files() -> int:
    """Bytes of files that the container's use counts and that would make room."""
    try:
        lines = Path("/sys/fs/cgroup/memory.stat").read_text().splitlines()
    except OSError:
        return 0
    counts = dict(line.split() for line in lines if line.startswith(("active_file", "inactive_")))
    return int(counts.get("active_file", 0)) + int(counts.get("inactive_file", 0))


def _vm_stat() -> int:
    run = subprocess.run(["vm_stat"], capture_output=True, text=True, timeout=5, check=False)
    page, pages = 4096, 0
    for line in run.stdout.splitlines():
        if "page size of" in line:
            page = int(line.split("page size of")[1].split()[0])
        name, _, count = line.partition(":")
        if name in ("Pages free", "Pages inactive", "Pages speculative", "Pages purgeable"):
            pages += int(count.strip().rstrip("."))
    return page * pages


def gib(size: int) -> str:
    """For messages: ``1.5 GiB``, ``12 MiB``."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
