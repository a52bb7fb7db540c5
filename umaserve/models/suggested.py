"""Models to begin with: their names here, where a hub has them, and what each takes.

The repositories are those of the models' makers, or of llama.cpp's own organisation where a maker
publishes no GGUF file.  Sizes were looked up once and are rounded: a hub may change a file.
"""

from __future__ import annotations

from typing import NamedTuple

MOST, LEAST = 6, 3  # models in a list
ROOM_FOR_OTHERS = 0.75  # of main memory: what a model may take beside the programs that use it


class Suggested(NamedTuple):
    """``size``: bytes to fetch, rounded; ``tools``: whether it was made for tool calls."""

    name: str
    reference: str
    size: float
    licence: str
    template: str
    tools: bool
    good_for: str

    @property
    def needs(self) -> float:
        """Bytes of memory, estimated: weights, buffers and a context of some thousand tokens."""
        return 1.2 * self.size + 1e9


SUGGESTED = (
    Suggested(
        "qwen3-0.6b", "hf:Qwen/Qwen3-0.6B-GGUF:Q8_0", 0.64e9,
        "Apache-2.0", "ChatML, thinks", True, "a first try, short texts, drafts for larger ones",
    ),
    Suggested(
        "qwen2.5-coder-1.5b", "hf:Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M", 1.1e9,
        "Apache-2.0", "ChatML", False, "completions in an editor",
    ),
    Suggested(
        "qwen3-1.7b", "hf:Qwen/Qwen3-1.7B-GGUF:Q8_0", 1.8e9,
        "Apache-2.0", "ChatML, thinks", True, "chat on small machines",
    ),
    Suggested(
        "gemma3-4b", "hf:ggml-org/gemma-3-4b-it-GGUF:Q4_K_M", 2.5e9,
        "Gemma terms", "Gemma", False, "texts in many languages",
    ),
    Suggested(
        "qwen3-4b", "hf:Qwen/Qwen3-4B-GGUF:Q4_K_M", 2.5e9,
        "Apache-2.0", "ChatML, thinks", True, "chat and small agents on a laptop",
    ),
    Suggested(
        "qwen3-8b", "hf:Qwen/Qwen3-8B-GGUF:Q4_K_M", 5.0e9,
        "Apache-2.0", "ChatML, thinks", True, "chat and agents",
    ),
    Suggested(
        "gpt-oss-20b", "hf:ggml-org/gpt-oss-20b-GGUF:MXFP4", 12.1e9,
        "Apache-2.0", "Harmony, thinks", True, "agents; a mixture, fast for its size",
    ),
    Suggested(
        "qwen3-30b", "hf:unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF:Q4_K_M", 18.6e9,
        "Apache-2.0", "ChatML", True, "chat and agents; a mixture, fast for its size",
    ),
    Suggested(
        "qwen3-coder-30b", "hf:unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF:Q4_K_M", 18.6e9,
        "Apache-2.0", "Qwen3-Coder", True, "programming; a mixture, fast for its size",
    ),
)  # fmt: skip


def suggested(name: str) -> Suggested | None:
    """The model of that short name, which may be written as Ollama does: ``qwen3:4b``."""
    wanted = name.lower().replace(":", "-")
    return next((each for each in SUGGESTED if each.name == wanted), None)


def short_name_of(reference: str) -> str:
    """The short name of a reference; the reference itself where it has none."""
    return next((each.name for each in SUGGESTED if each.reference == reference), reference)


def for_memory(memory: int, graphics: bool = False) -> list[Suggested]:
    """Return the models for a machine, by size: the largest of those that fit.

    ``memory``: bytes, of graphics cards with their own where ``graphics``.  Where fewer than
    ``LEAST`` fit, the smallest come too.
    """
    room = memory * (1.0 if graphics else ROOM_FOR_OTHERS)
    fitting = [each for each in SUGGESTED if each.needs <= room]
    return fitting[-MOST:] if len(fitting) >= LEAST else list(SUGGESTED[:LEAST])


def gb(size: float) -> str:
    """Bytes as a download's size is written: ``2.5 GB``."""
    return f"{size / 1e9:.1f} GB"
