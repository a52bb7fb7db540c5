"""Models in the flat cache of llama.cpp's earlier versions.

``OWNER_REPO_FILE`` lies beside ``manifest=OWNER=REPO=TAG.json``, which names repository and file.
Newer versions use the layout of `hugging_face`, in the same folder where ``LLAMA_CACHE`` is set.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from .found import Found, read_text
from .hugging_face import SCHEME
from .repository import is_gguf, is_later_part, tag_of

TOOL = "llama.cpp"


def find(folder: Path) -> Iterator[Found]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    origins = dict(filter(None, (_origin(folder / name) for name in names)))
    for name in names:
        path = folder / name
        if is_gguf(name) and not is_later_part(name) and path.is_file():
            yield Found(origins.get(name, f"{TOOL}:{name}"), str(path), TOOL)


def _origin(manifest: Path) -> tuple[str, str] | None:
    """The name of the file in the cache that a manifest stands for, and its reference."""
    words = manifest.name.removesuffix(".json").split("=")
    if len(words) != 4 or words[0] != "manifest":
        return None
    try:
        inside = json.loads(read_text(manifest))["ggufFile"]["rfilename"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(inside, str):
        return None
    owner, repository = words[1:3]
    flat = f"{owner}_{repository}_{inside}".replace("/", "_")
    return flat, f"{SCHEME}{owner}/{repository}:{tag_of(inside) or inside}"
