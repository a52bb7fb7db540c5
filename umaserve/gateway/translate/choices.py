"""Several answers to one prompt."""

from __future__ import annotations

from typing import Any

MAX_CHOICES = 128


def several(message: dict[str, Any], choices: int) -> list[dict[str, Any]]:
    """The same request so many times; a seed goes on from one to the next."""
    seed = message.get("seed")
    if choices > 1 and isinstance(seed, int):
        return [{**message, "seed": seed + number} for number in range(choices)]
    return [message] * choices
