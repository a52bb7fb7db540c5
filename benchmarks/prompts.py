"""Prompts that are the same everywhere, each of its own, of about 16 tokens."""

from __future__ import annotations

_WORDS = [
    "river", "stone", "window", "garden", "letter", "market", "engine", "silver", "forest",
    "bridge", "candle", "winter", "harbor", "mirror", "island", "thunder", "pocket", "blanket",
    "meadow", "orange", "ladder", "copper", "hammer", "velvet", "pepper", "lantern", "basket",
    "feather", "anchor", "marble", "desert", "violin", ").split(",
]  # fmt: skip
N_TOKENS = 16
"""What ``llama-batched-bench`` is told to prefill where the others get these prompts."""


def prompts(n: int) -> list[str]:
    """``n`` prompts of 16 words, no two of which begin alike."""
    size = len(_WORDS)
    return [
        " ".join(_WORDS[(i + j * (2 * (i // size) + 1)) % size] for j in range(16))
        for i in range(n)
    ]
