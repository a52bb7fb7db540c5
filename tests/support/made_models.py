"""Models that tools/make_model.py writes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import build_llama
from umaserve import llama

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import gguf_container as container  # noqa: E402
import gguf_shapes  # noqa: E402
import make_model  # noqa: E402

__all__ = ["container", "library", "make_model", "small", "written"]


@pytest.fixture(scope="module")
def library() -> llama.Library:
    build_llama.ensure_binding(build_llama.select() or build_llama.ensure())
    return llama.load()


def small(n_vocab: int = 50304) -> gguf_shapes.Shape:
    """A shape that is written in a moment, with GPT-2's vocabulary and padding after it."""
    return gguf_shapes.Shape(
        "small", "qwen2", n_layer=1, n_embd=64, n_head=2, n_head_kv=1, head_dim=32, n_ff=96,
        n_ctx=256, rope_base=1e4, norm_eps=1e-6, tied=True, vocab="gpt-2", n_vocab=n_vocab,
        end_of_turn="<|endoftext|>", template=gguf_shapes.CHATML,
    )  # fmt: skip


def written(shape: str, out: Path, *more: str) -> Path:
    """A model of one of the families that the tool knows."""
    assert make_model.main(["--shape", shape, "--out", str(out), *more]) == 0
    return out
