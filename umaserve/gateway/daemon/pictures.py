"""Pictures on their way to the daemon: only those that a model may read travel."""

from __future__ import annotations

from typing import Any

from umaserve.picture_size import size_of_base64

TOO_MANY = "the pictures of this request have more than {} MiB"
Parts = list[Any]


def has_pictures(message: dict[str, Any]) -> bool:
    """Whether a prompt or a conversation has data of pictures."""
    contents = [message.get("prompt"), *map(_content_of, _messages_of(message))]
    return any(_has_data(content) for content in contents)


def fitting(message: dict[str, Any], most_bytes: int) -> dict[str, Any]:
    """Return the message with the data of its newest pictures, as far as ``most_bytes`` go.

    The others keep their size alone.  0 bytes: no model reads pictures.
    """
    left = most_bytes

    def fit(parts: Parts) -> Parts:
        nonlocal left
        parts = list(parts)
        for i in range(len(parts) - 1, -1, -1):
            data = _data_of(parts[i])
            if data is not None:
                left -= len(data)
                if left < 0:
                    parts[i] = _without_data(parts[i], data, most_bytes)
        return parts

    changed, messages = dict(message), list(_messages_of(message))
    for at in range(len(messages) - 1, -1, -1):
        if _has_data(content := _content_of(messages[at])):
            messages[at] = {**messages[at], "content": fit(content)}
    if messages:
        changed["messages"] = messages
    if _has_data(message.get("prompt")):
        changed["prompt"] = fit(message["prompt"])
    return changed


def _messages_of(message: dict[str, Any]) -> Parts:
    messages = message.get("messages")
    return messages if isinstance(messages, list) else []  # the daemon says what it is to be


def _content_of(message: Any) -> Any:
    return message.get("content") if isinstance(message, dict) else None


def _has_data(content: Any) -> bool:
    return isinstance(content, list) and any(_data_of(part) is not None for part in content)


def _data_of(part: Any) -> str | None:
    data = part.get("data") if isinstance(part, dict) else None
    return data if isinstance(data, str) else None


def _without_data(part: dict[str, Any], data: str, most_bytes: int) -> dict[str, Any]:
    size = size_of_base64(data)
    why = TOO_MANY.format(most_bytes >> 20)
    return {"type": part.get("type"), "why": why, **({"size": size} if size else {})}
