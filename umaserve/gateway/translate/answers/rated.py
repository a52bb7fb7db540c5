"""Tokens with their log-probabilities, as the daemon tells them."""

from __future__ import annotations

from typing import Any

from umaserve.gateway.daemon.event import Event


def token_of(event: Event) -> dict[str, Any]:
    """A ``token`` event as an entry of ``logprobs`` in ``eos``."""
    return {
        "token_id": event.token_id,
        "text": event.text,
        "token": event.token,
        "bytes": event.bytes or [],
        "logprob": event.logprob,
        "top_logprobs": event.top_logprobs or [],
    }


def entry_of(token: dict[str, Any], top: Any = None) -> dict[str, Any]:
    """A token as OpenAI's chats and Ollama write it, with its alternatives where given."""
    entry = {"token": own_text(token), "logprob": finite(token.get("logprob"))}
    entry["bytes"] = token["bytes"]
    if top is not None:
        entry["top_logprobs"] = [entry_of(each) for each in top]
    return entry


def finite(value: Any) -> float:
    """Clients take no ``null`` here; as many digits as the socket's tokens have."""
    return -9999.0 if value is None else round(float(value), 6)


def own_text(entry: dict[str, Any], mark: str = "") -> str:
    """The text of a token or of an alternative; the daemon's word for a token without text.

    Bytes that are no whole characters are escapes (``\\xf0\\x9f``) behind ``mark``.
    """
    data = bytes(entry["bytes"])
    if not data:
        return str(entry["token"] if "token" in entry else entry["text"])
    try:
        return data.decode()
    except UnicodeDecodeError:
        return mark + "".join(f"\\x{byte:02x}" for byte in data)
