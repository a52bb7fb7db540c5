"""Will a model fit?  What is free, and what a model file says it will need."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from umaserve.texts import path_of

from .header import GGUFError
from .reader import HeaderReader, open_model

BYTES_PER_VALUE = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32,
                   "q5_0": 22 / 32, "q4_1": 20 / 32, "q4_0": 18 / 32}  # fmt: skip
LEAST_CELLS = 4096  # KV cells where nobody chose, however little memory there is
ENGINE_BYTES = 300 * 1024 * 1024  # the process itself and its compute buffers, roughly


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

    ``path`` may be a ``file://`` URI.  Raises ``GGUFError``.
    """
    full = Path(path_of(path)).expanduser().absolute()
    try:
        with open_model(full) as file:
            reader = HeaderReader(full, file)
            _, _, n_keys = reader.counts()
            prefix = reader.metadata(n_keys, brief=True) + "."
    except OSError as error:
        raise GGUFError(f"{full} cannot be read: {error.strerror or error}") from None
    values = {
        key[len(prefix) :]: size
        for key, value in reader.values.items()
        if key.startswith(prefix) and (size := _size(value)) is not None
    }
    heads = values.get("attention.head_count", 0) or 1
    kv_heads = values.get("attention.head_count_kv", heads)
    key_length = values.get("attention.key_length", values.get("embedding_length", 0) // heads)
    trained = values.get("context_length", 0)
    return ModelFile(
        str(full), reader.size, values.get("block_count", 0), kv_heads * key_length, trained
    )


def _size(value: object) -> int | None:
    """A whole number; of an array the largest, since one a layer bounds the need.

    None for what no size can be: text, a fraction, a negative number.
    """
    items = value if isinstance(value, list) else [value]
    sizes = [v for v in items if isinstance(v, int) and not isinstance(v, bool) and v >= 0]
    return max(sizes, default=None)


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
