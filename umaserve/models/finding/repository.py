"""File names in a repository of models: quantisations, split models, and which file is meant.

The rules are llama.cpp's (``common/download.cpp``), so that a reference means the same file here.
Names are relative to the repository, with ``/`` between folders.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from umaserve.models.identity import model_files

DEFAULTS = ("Q4_K_M", "Q8_0")  # taken where nobody names a quantisation; else the first model
SUFFIX = ".gguf"
_PART = re.compile(r"-(\d{5})-of-\d{5}$")
_TAG = re.compile(r"[-.]((UD-)?([IT]?Q\d\w*|B?F16|F32|MXFP4\w*|NVFP4))$", re.IGNORECASE)
# what lies beside models and is none
_BESIDE = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")


def is_gguf(path: str) -> bool:
    return path.lower().endswith(SUFFIX)


def files_below(folder: Path) -> list[str]:
    """GGUF files by their path from ``folder``, sorted; links to folders are not followed."""
    found = []
    for place, _, names in os.walk(folder):
        for name in filter(is_gguf, names):
            found.append(os.path.relpath(os.path.join(place, name), folder))
    return sorted(found)


def is_later_part(path: str) -> bool:
    """Whether it is a file of a split model, and not the first."""
    found = _PART.search(path[: -len(SUFFIX)])
    return found is not None and int(found[1]) != 1


def parts_of(path: str) -> list[str]:
    """The file, or all files of the split model whose first file it is."""
    return [file.as_posix() for file in model_files(path)]


def tag_of(path: str) -> str:
    """The quantisation in a file's name, such as ``Q4_K_M``; empty where it names none."""
    found = _TAG.search(_PART.sub("", path[: -len(SUFFIX)]))
    return found[1].upper() if found else ""


def models_among(paths: Iterable[str]) -> list[str]:
    """The first files of models, sorted; projectors and their like are left out."""
    return sorted(
        path
        for path in paths
        if is_gguf(path)
        and not is_later_part(path)
        and not any(word in path.rpartition("/")[2] for word in _BESIDE)
    )


def choose(paths: Iterable[str], wanted: str = "") -> str | None:
    """The file that ``wanted`` means: a file's name, a quantisation, or nothing in particular."""
    paths = list(paths)
    if is_gguf(wanted):
        return wanted if wanted in paths else None
    models = models_among(paths)
    for tag in (wanted,) if wanted else DEFAULTS:
        pattern = re.compile(rf"(?<![A-Z0-9]){re.escape(tag)}[./-]", re.IGNORECASE)
        found = next((path for path in models if pattern.search(path)), None)
        if found is not None:
            return found
    return models[0] if models and not wanted else None


def short_name(paths: Iterable[str], path: str) -> str:
    """Suffix of the repository that means ``path``: its quantisation, else its name."""
    tag = tag_of(path)
    return tag if tag and choose(paths, tag) == path else path
