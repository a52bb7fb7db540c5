"""Models in a cache as ``huggingface_hub`` lays it out; llama.cpp's newer versions use it too.

``models--OWNER--REPO/`` has ``snapshots/COMMIT/FILE``, links into ``blobs/``, and ``refs/main``:
the commit that was fetched last.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .found import Found, read_text
from .repository import files_below, is_later_part, short_name

TOOL = "Hugging Face"
SCHEME = "hf:"
_PREFIX = "models--"


def files_of(cache: Path, repository: str) -> dict[str, str]:
    """The GGUF files of ``OWNER/REPO`` by name, each from the newest snapshot that has it."""
    folder = cache / (_PREFIX + repository.replace("/", "--"))
    found: dict[str, str] = {}
    for snapshot in _snapshots(folder):
        for inside in files_below(snapshot):
            found.setdefault(inside, str(snapshot / inside))
    return found


def has_checkpoint(cache: Path, repository: str) -> bool:
    """Whether files of ``OWNER/REPO`` are there that Hugging Face's own libraries load."""
    folder = cache / (_PREFIX + repository.replace("/", "--"))
    return next(folder.glob("snapshots/*/*.safetensors"), None) is not None


def find(cache: Path) -> Iterator[Found]:
    """Every model of the cache, by repository and name."""
    for folder in sorted(cache.glob(_PREFIX + "*--*")):
        repository = folder.name[len(_PREFIX) :].replace("--", "/", 1)
        files = files_of(cache, repository)
        for inside in sorted(files):
            if not is_later_part(inside):
                name = f"{SCHEME}{repository}:{short_name(files, inside)}"
                yield Found(name, files[inside], TOOL)


def _snapshots(folder: Path) -> list[Path]:
    """The one of ``refs/main`` first, then the others, the newest first."""
    try:
        main = read_text(folder / "refs" / "main").strip()
    except (OSError, ValueError):
        main = ""
    try:
        there = [path for path in (folder / "snapshots").iterdir() if path.is_dir()]
        return sorted(there, key=lambda path: (path.name != main, -path.stat().st_mtime))
    except OSError:
        return []
