"""Several answers to one prompt."""

from __future__ import annotations

from typing import Any

from umaserve.gateway.daemon.refusal import encode

MAX_CHOICES = 128


def several(messages: list[dict[str, Any]], choices: int) -> list[dict[str, Any]]:
    """Return each request so many times; a seed goes on from one to the next.

    Nothing is drafted for equal requests, unless that is asked for: drafts would give each of them
    ticks of another shape.
    """
    if choices > 1 or len({encode(each) for each in messages}) < len(messages):
        messages = [{"speculate": False, **each} for each in messages]
    return [_numbered(each, number) for each in messages for number in range(choices)]


def _numbered(message: dict[str, Any], number: int) -> dict[str, Any]:
    seed = message.get("seed")
    return {**message, "seed": seed + number} if isinstance(seed, int) else message
