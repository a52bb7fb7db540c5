"""Models of Ollama: manifests that name blobs.

``manifests/HOST/NAMESPACE/MODEL/TAG`` is JSON with layers, each with a media type and a digest;
the layer of the model is the GGUF file ``blobs/sha256-DIGEST``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from .found import Found, read_text

TOOL = "Ollama"
SCHEME = "ollama:"
_MODEL = "application/vnd.ollama.image.model"
_ADAPTER = "application/vnd.ollama.image.adapter"
_DIGEST = re.compile("sha256[:-][0-9a-f]{64}")  # nothing else names a blob
_HOST, _NAMESPACE, _TAG = "registry.ollama.ai", "library", "latest"


def find(folder: Path) -> Iterator[Found]:
    manifests = folder / "manifests"
    for place, folders, names in os.walk(manifests):
        folders.sort()
        parts = Path(place).relative_to(manifests).parts
        for name in sorted(names):
            if len(parts) >= 2 and not name.startswith("."):
                found = _found(folder, Path(place, name), SCHEME + _name([*parts, name]))
                if found is not None:
                    yield found


def full_name(name: str) -> str:
    """``ollama:llama3`` as it is listed: with its tag."""
    return name if ":" in name[len(SCHEME) :].rpartition("/")[2] else f"{name}:{_TAG}"


def _name(parts: list[str]) -> str:
    """As Ollama shows it: without its own host, and without the namespace of its library."""
    *where, model, tag = parts
    if where[:1] == [_HOST]:
        where = where[1:]
        if where == [_NAMESPACE]:
            where = []
    return "/".join([*where, model]) + f":{tag}"


def _found(folder: Path, manifest: Path, name: str) -> Found | None:
    """None for what has no GGUF file, such as a model that runs elsewhere."""
    try:
        layers = json.loads(read_text(manifest))["layers"]
        digests = {layer["mediaType"]: layer["digest"] for layer in layers or ()}
        known = _MODEL not in digests or _DIGEST.fullmatch(digests[_MODEL])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        known = None
    if not known:
        return Found(name, str(manifest), TOOL, "its manifest cannot be read; pull it again")
    if _MODEL not in digests:
        return None
    problem = "Ollama adds an adapter to it, which is not done here" if _ADAPTER in digests else ""
    digest = digests[_MODEL]
    path = folder / "blobs" / digest.replace(":", "-", 1)
    earlier = folder / "blobs" / digest
    return Found(name, str(earlier if earlier.exists() else path), TOOL, problem)
