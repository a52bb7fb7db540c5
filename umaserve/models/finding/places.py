"""Where the tools keep their models on this machine, and everything that lies there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from . import hugging_face, llama_cpp, lm_studio, ollama
from .found import Found
from .repository import files_below, is_later_part

OLLAMA_SERVICE = "/usr/share/ollama/.ollama/models"  # of the user that its installer makes


@dataclass(frozen=True)
class Places:
    """Folders by whose layout they have; those that are not there hold nothing."""

    hubs: tuple[Path, ...] = ()
    llama_cpp: tuple[Path, ...] = ()
    ollama: tuple[Path, ...] = ()
    lm_studio: tuple[Path, ...] = ()
    own: tuple[Path, ...] = ()

    def all(self) -> list[Path]:
        return list(
            dict.fromkeys([*self.hubs, *self.llama_cpp, *self.ollama, *self.lm_studio, *self.own])
        )


def places(
    environ: Mapping[str, str] | None = None, home: Path | None = None, model_dir: str = ""
) -> Places:
    """Return the tools' folders by the tools' own variables, else by their defaults.

    ``model_dir``: folders, separated by commas.
    """
    environ = os.environ if environ is None else environ
    home = Path.home() if home is None else home
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    llama = [_path(environ["LLAMA_CACHE"])] if environ.get("LLAMA_CACHE") else []
    flat = home / "Library/Caches" if sys.platform == "darwin" else cache
    if environ.get("OLLAMA_MODELS"):
        of_ollama = [_path(environ["OLLAMA_MODELS"])]
    else:
        of_ollama = [home / ".ollama/models", Path(OLLAMA_SERVICE)]
    return Places(
        hubs=(_hub(environ, cache), *llama),
        llama_cpp=tuple(llama or [flat / "llama.cpp"]),
        ollama=tuple(of_ollama),
        lm_studio=tuple(lm_studio.folders(home)),
        own=tuple(_path(name) for name in model_dir.split(",") if name),
    )


def find_all(where: Places) -> list[Found]:
    """Every model once, with names that differ: another file of the same name has its path."""
    by_file: dict[object, Found] = {}
    names: set[str] = set()
    for found in _everything(where):
        if found.name in names:
            found = replace(found, name=found.path)
        names.add(found.name)
        key = _key(found)
        first = by_file.setdefault(key, found)
        if first is not found:
            by_file[key] = replace(first, also=(*first.also, found.name))
    return list(by_file.values())


def _everything(where: Places) -> Iterator[Found]:
    for folders, find in (
        (where.hubs, hugging_face.find), (where.llama_cpp, llama_cpp.find),
        (where.ollama, ollama.find), (where.lm_studio, lm_studio.find), (where.own, _find),
    ):  # fmt: skip
        for place in folders:
            yield from find(place)


def _find(folder: Path) -> Iterator[Found]:
    """Models in a folder of the user's own, at any depth."""
    for inside in files_below(folder):
        if not is_later_part(inside):
            yield Found(inside, str(folder / inside), "folder")


def _key(found: Found) -> object:
    """Equal for two names of one file."""
    try:
        facts = os.stat(found.path)
    except OSError:
        return found.path
    return facts.st_dev, facts.st_ino


def _hub(environ: Mapping[str, str], cache: Path) -> Path:
    """As ``huggingface_hub.constants.HF_HUB_CACHE``, which takes long to import."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(name):
            return _path(environ[name])
    return _path(environ["HF_HOME"] if environ.get("HF_HOME") else cache / "huggingface") / "hub"


def _path(name: str | Path) -> Path:
    return Path(os.path.expandvars(os.path.expanduser(name)))
