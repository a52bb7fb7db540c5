"""Models of LM Studio: ``PUBLISHER/REPO/FILE`` below a folder that its settings may move."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from .found import Found, read_text
from .repository import files_below, is_later_part, short_name

TOOL = "LM Studio"
SCHEME = "lmstudio:"
POINTER = ".lmstudio-home-pointer"  # in the user's home: where LM Studio's own is
HOMES = (".cache/lm-studio", ".lmstudio")


def folders(home: Path) -> list[Path]:
    """Where it keeps models: below its home, and where its settings say."""
    found = []
    for place in _homes(home):
        found.append(place / "models")
        try:
            chosen = json.loads(read_text(place / "settings.json"))["downloadsFolder"]
            if "\0" not in chosen:  # no path has it
                found.append(Path(chosen).expanduser())
        except (OSError, ValueError, KeyError, TypeError, RuntimeError):  # RecursionError too
            continue
    return list(dict.fromkeys(found))


def find(folder: Path) -> Iterator[Found]:
    files = files_below(folder)
    for inside in files:
        if is_later_part(inside):
            continue
        where = inside.split("/", 2)
        name = inside
        if len(where) == 3:
            repository = f"{where[0]}/{where[1]}/"
            own = [path[len(repository) :] for path in files if path.startswith(repository)]
            name = f"{repository[:-1]}:{short_name(own, where[2])}"
        yield Found(SCHEME + name, str(folder / inside), TOOL)


def _homes(home: Path) -> list[Path]:
    places = [home / name for name in HOMES]
    try:
        pointed = read_text(home / POINTER).strip().partition("\0")[0]
    except (OSError, ValueError):
        pointed = ""
    return list(dict.fromkeys(([Path(pointed)] if pointed else []) + places))
