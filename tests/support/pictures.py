"""Pictures, and a small model that reads them."""

from __future__ import annotations

import base64
import functools
import struct
import sys
import zlib
from pathlib import Path

import build_llama
from tests.support.quiet_build import quiet
from tests.support.small_models import write_model
from umaserve.llama.builds import Build

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import make_projector  # noqa: E402
from gguf_shapes import SHAPES  # noqa: E402

ROWS = 16  # embeddings of a picture, by the projector that is written here


@functools.cache
def build_with_eyes() -> Build:
    """The build, with uma-eyes."""
    build = build_llama.ensure(with_eyes=True, report=quiet())
    assert build.eyes_program is not None
    return build


def model_with_eyes(folder: Path, shape: str = "gemma3-micro", kind: str = "gemma3") -> str:
    """Write a model with a projector beside it; returns its path."""
    folder.mkdir(exist_ok=True)
    path = write_model(folder / f"{shape}.gguf", shape)
    make_projector.write_projector(folder / "mmproj-f32.gguf", SHAPES[shape].n_embd, kind=kind)
    return path


def png(width: int, height: int, seed: int = 1) -> bytes:
    """A picture of stripes that depend on ``seed``."""
    lines = (
        b"\0" + bytes((x * seed + y * 3 + c * 40) % 256 for x in range(width) for c in range(3))
        for y in range(height)
    )
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(b"".join(lines))
    chunks = [(b"IHDR", head), (b"IDAT", data), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )


def url_of(data: bytes) -> str:
    """The picture as OpenAI's clients send it."""
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"
