"""Pictures on their way to the daemon: only those that a model may read travel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from umaserve.picture_size import size_of_base64

TOO_MANY = "the pictures of this conversation have more than {} MiB"


def has_pictures(message: dict[str, Any]) -> bool:
    """Whether a conversation has data of pictures."""
    return next(_contents(message), None) is not None


def fitting(message: dict[str, Any], most_bytes: int) -> dict[str, Any]:
    """Return the message with the data of its newest pictures, as far as ``most_bytes`` go.

    The others keep their size alone.  0 bytes: no model reads pictures.
    """
    left, messages = most_bytes, list(message["messages"])
    for at, content in _contents(message):
        parts = list(content)
        for i in range(len(parts) - 1, -1, -1):
            data = _data_of(parts[i])
            if data is not None:
                left -= len(data)
                if left < 0:
                    parts[i] = _without_data(parts[i], data, most_bytes)
        messages[at] = {**messages[at], "content": parts}
    return {**message, "messages": messages}


def _contents(message: dict[str, Any]) -> Iterator[tuple[int, list[Any]]]:
    """Contents with data of pictures and the numbers of their messages, the newest first."""
    messages = message.get("messages")
    if not isinstance(messages, list):  # the daemon says what it is to be
        return
    for at in range(len(messages) - 1, -1, -1):
        content = messages[at].get("content") if isinstance(messages[at], dict) else None
        if isinstance(content, list) and any(_data_of(part) is not None for part in content):
            yield at, content


def _data_of(part: Any) -> str | None:
    data = part.get("data") if isinstance(part, dict) else None
    return data if isinstance(data, str) else None


def _without_data(part: dict[str, Any], data: str, most_bytes: int) -> dict[str, Any]:
    size = size_of_base64(data)
    why = TOO_MANY.format(most_bytes >> 20)
    return {"type": part.get("type"), "why": why, **({"size": size} if size else {})}
