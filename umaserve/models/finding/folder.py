"""Models in a folder of the user's own, at any depth."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from .found import Found
from .repository import is_gguf, is_later_part

TOOL = "folder"


def files_below(folder: Path) -> list[str]:
    """GGUF files by their path from ``folder``, sorted; links to folders are not followed."""
    found = []
    for place, _, names in os.walk(folder):
        for name in filter(is_gguf, names):
            found.append(os.path.relpath(os.path.join(place, name), folder))
    return sorted(found)


def find(folder: Path) -> Iterator[Found]:
    for inside in files_below(folder):
        if not is_later_part(inside):
            yield Found(inside, str(folder / inside), TOOL)
