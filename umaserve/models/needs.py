"""Will a model fit?  What is free, and what a model file says it will need."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from umaserve.texts import path_of

from .draft_model import may_have_heads
from .gguf.header import GGUFError
from .gguf.reader import HeaderReader, open_model
from .identity import model_files
from .kv_shape import KvKind, KvShape, is_size
from .purpose import role_of
from .states import StateShape

LEAST_CELLS = 4096  # KV cells where nobody chose, however little memory there is
MOST_CAUSAL = 8192  # tokens of a text that a causal model encodes, where nobody chose
ENGINE_BYTES = 300 * 1024 * 1024  # the process itself and its compute buffers, roughly


@dataclass(frozen=True)
class ModelFile:
    """A GGUF file that looks like a model: its size, all parts counted, and its shapes."""

    path: str
    size: int
    cells: KvShape = KvShape()
    n_ctx_train: int = 0  # positions that it was trained for; 0 = it does not say
    role: str = ""  # "embed" or "rerank" where the header says that it encodes texts
    states: StateShape = StateShape()
    may_have_heads: bool = False  # that draft (MTP)

    def kv_bytes(self, n_ctx: int, kind: KvKind) -> int:
        return n_ctx * self.cells.bytes_per_cell(kind)

    def needs(self, cells: int, kind: KvKind, sequences: int) -> int:
        """Bytes that serving it takes, roughly, without earlier states."""
        states = self.states.total(sequences)
        return self.size + self.kv_bytes(cells, kind) + states + ENGINE_BYTES


def look_at(path: str) -> ModelFile:
    """Check that ``path`` is a GGUF file and read what its header says before the vocabulary.

    ``path`` may be a ``file://`` URI.  Raises ``GGUFError``.
    """
    full = Path(path_of(path)).expanduser().absolute()
    try:
        with open_model(full) as file:
            reader = HeaderReader(full, file)
            _, n_keys = reader.counts()
            architecture = reader.metadata(n_keys, brief=True)
    except OSError as error:
        raise GGUFError(f"{full} cannot be read: {error.strerror or error}") from None
    trained = reader.values.get(f"{architecture}.context_length")
    cells = KvShape.of(architecture, reader.values)
    n_ctx_train = trained if is_size(trained) else 0
    size = reader.size + sum(map(size_of, model_files(full)[1:]))
    role = role_of(architecture, reader.values)
    states = StateShape.of(architecture, reader.values)
    heads = may_have_heads(architecture, reader.values)
    return ModelFile(str(full), size, cells, n_ctx_train, role, states, heads)


def size_of(part: Path) -> int:
    """Bytes of a file; 0 where it is missing, which whoever opens it says."""
    try:
        return part.stat().st_size
    except OSError:
        return 0


def available_bytes() -> int:
    """Memory that a new process can have without pushing anything out; 0 where unknown."""
    if sys.platform == "darwin":  # only read about, never run
        run = subprocess.run(["/usr/bin/vm_stat"], capture_output=True, text=True, timeout=5)
        return free_in_vm_stat(run.stdout)
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


def free_in_vm_stat(said: str) -> int:
    """Return the bytes that macOS could give away, by what vm_stat(1) prints.

    Purgeable pages count there among the active and inactive ones too, and are left out.
    """
    page, pages = 4096, 0
    for line in said.splitlines():
        if "page size of" in line:
            page = int(line.split("page size of")[1].split()[0])
        name, _, count = line.partition(":")
        if name in ("Pages free", "Pages inactive", "Pages speculative"):
            pages += int(count.strip().rstrip("."))
    return page * pages


def gib(size: int) -> str:
    """For messages: ``1.5 GiB``, ``12 MiB``."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
