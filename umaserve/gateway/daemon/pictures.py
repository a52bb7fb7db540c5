"""Pictures on their way to the daemon: only those that a model may read travel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from umaserve.gateway.daemon.fetched import TOO_MANY, Fetched
from umaserve.picture_size import size_of_base64
from umaserve.protocol.tables.chat_fields import PICTURES

ADDRESS = "addresses are not fetched; send its data"
Parts = list[Any]


def has_pictures(message: dict[str, Any]) -> bool:
    """Whether a prompt or a conversation has data or addresses of pictures."""
    return any(map(_has_picture, _contents(message)))


async def filled(message: dict[str, Any], files: Fetched | None, most_bytes: int) -> dict[str, Any]:
    """Return the message with data in place of addresses, or with the reasons for none.

    ``files`` gets what is fetched, as far as ``most_bytes`` go; None: nothing is.
    """
    parts = (part for each in reversed(_contents(message)) if isinstance(each, list)
             for part in reversed(each))  # fmt: skip
    urls = [url for part in parts if (url := _address_of(part)) is not None]

    def fill(parts: Parts) -> Parts:
        return [part if (url := _address_of(part)) is None else _with_file(part, url, files)
                for part in parts]  # fmt: skip

    if not urls:
        return message
    if files is not None:
        await files.add(urls, most_bytes)
    return _changed(message, fill)


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

    return _changed(message, fit)


def _changed(message: dict[str, Any], change: Callable[[Parts], Parts]) -> dict[str, Any]:
    """Return the message with ``change`` made to the parts of each text, the newest first."""
    changed, messages = dict(message), list(_messages_of(message))
    for at in range(len(messages) - 1, -1, -1):
        if _has_picture(content := _content_of(messages[at])):
            messages[at] = {**messages[at], "content": change(content)}
    if messages:
        changed["messages"] = messages
    if _has_picture(message.get("prompt")):
        changed["prompt"] = change(message["prompt"])
    return changed


def _messages_of(message: dict[str, Any]) -> Parts:
    messages = message.get("messages")
    return messages if isinstance(messages, list) else []  # the daemon says what it is to be


def _contents(message: dict[str, Any]) -> list[Any]:
    return [message.get("prompt"), *map(_content_of, _messages_of(message))]


def _content_of(message: Any) -> Any:
    return message.get("content") if isinstance(message, dict) else None


def _has_picture(content: Any) -> bool:
    return isinstance(content, list) and any(
        _data_of(part) is not None or _address_of(part) is not None for part in content
    )


def _data_of(part: Any, name: str = "data") -> str | None:
    data = part.get(name) if isinstance(part, dict) else None
    return data if isinstance(data, str) else None


def _address_of(part: Any) -> str | None:
    url = _data_of(part, "url")
    return url if url is not None and part.get("type") in PICTURES else None


def _with_file(part: dict[str, Any], url: str, files: Fetched | None) -> dict[str, Any]:
    kind = part.get("type")
    if files is not None and url in files.data:
        return {"type": kind, "data": files.data[url]}
    return {"type": kind, "why": ADDRESS if files is None else files.why[url]}


def _without_data(part: dict[str, Any], data: str, most_bytes: int) -> dict[str, Any]:
    size = size_of_base64(data)
    why = TOO_MANY.format(most_bytes >> 20)
    return {"type": part.get("type"), "why": why, **({"size": size} if size else {})}
