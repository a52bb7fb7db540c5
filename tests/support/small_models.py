"""Small GGUF files of every family for tests, from ``tools/make_model.py``."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from umaserve.llama import builds

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import gguf_container as container  # noqa: E402
import gguf_shapes  # noqa: E402
import make_model  # noqa: E402

RECURRENT = [
    name for name, shape in gguf_shapes.SHAPES.items()
    if name.endswith("-micro") and (shape.ssm or shape.arch == "lfm2")
]  # micro shapes whose layers keep a state


def write_model(
    path: Path, shape: str, *, pre: str | None = None, quant: str = "q8_0",
    chained: dict[str, int] | None = None, **changes: Any,
) -> str:  # fmt: skip
    """The model of a shape's name, with ``changes`` of its fields; returns the path as text.

    ``chained``: it is a chain, with these options of `make_model.chain_chunks`.
    """
    known = dataclasses.replace(gguf_shapes.SHAPES[shape], **changes)
    vocab, chain = make_model.find_vocab(known, None), chained is not None
    make_model.write_model(known, quant, path, 1, vocab, pre, chain=chain, **chained or {})
    return str(path)


def vocabulary_file(name: str) -> Path:
    """One of llama.cpp's vocabularies: a GGUF without weights."""
    for build in builds.installed():
        return build.vocab_dir / f"ggml-vocab-{name}.gguf"
    raise AssertionError("no build has vocabularies; run python build_llama.py")


def write_header(path: Path, **keys: str | bool | int | float) -> str:
    """A GGUF of ``keys`` (``__`` for a dot) and one small tensor; returns the path as text."""
    values = {name.replace("__", "."): container.Value.of(value) for name, value in keys.items()}
    path.write_bytes(container.whole(values, {"x": ((32,), 0, bytes(128))}))
    return str(path)


def without_key(path: Path, key: str) -> None:
    """Rename ``key`` in the file to something nobody reads, of the same length."""
    data = path.read_bytes()
    assert data.count(key.encode()) == 1
    path.write_bytes(data.replace(key.encode(), b"x" * len(key)))
