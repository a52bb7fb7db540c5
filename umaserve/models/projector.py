"""The projector of a model's pictures: the file beside the model that makes embeddings of them."""

from __future__ import annotations

import os
import re
from pathlib import Path

AUTO, OFF = "auto", "off"
_QUANT = re.compile(r"[-._](UD-)?(IQ|Q|TQ|MXFP|BF|F|FP)\d+\w*$|-\d{5}-of-\d{5}$", re.IGNORECASE)


def projector_of(asked: str, model_path: str) -> str:
    """Return the path of the projector to use, empty for none.

    ``asked``: a path, OFF, or AUTO for the ``mmproj*.gguf`` beside the model.
    """
    if asked != AUTO:
        return "" if asked == OFF else os.path.abspath(asked)
    return _beside(Path(model_path)) if model_path else ""


def projector_bytes(path: str) -> int:
    """Return the bytes that uma-eyes takes with a projector, roughly; 0 without one.

    A picture's attention takes about as much as the weights.
    """
    try:
        return 2 * os.path.getsize(path) if path else 0
    except OSError:  # uma-eyes says why
        return 0


def _beside(model: Path) -> str:
    """Return a projector in the model's folder, where it can be no other model's."""
    try:
        files = sorted(model.parent.glob("*.gguf"))
    except OSError:
        return ""
    projectors = [path for path in files if path.name.lower().startswith("mmproj")]
    name = _name(model)
    if any(_name(path) != name for path in files if path not in projectors):
        projectors = [path for path in projectors if name.lower() in path.stem.lower()]
    # the precision that most are made for, where there are several
    projectors.sort(key=lambda path: "f16" not in path.stem.lower().replace("bf16", ""))
    return str(projectors[0]) if projectors else ""


def _name(path: Path) -> str:
    """Return the name of a file without its quantisation and the number of its part."""
    stem, before = path.stem, ""
    while stem != before:
        before, stem = stem, _QUANT.sub("", stem)
    return stem
