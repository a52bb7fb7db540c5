"""``logit_bias`` by text: the tokens of each text get its bias, as llama-server does it."""

from __future__ import annotations

from typing import Any

from umaserve.gateway.daemon.link import Link
from umaserve.gateway.translate.prompts import tokens_of_each
from umaserve.protocol.tables.settings import MAX_LOGIT_BIAS


async def with_bias_of_texts(link: Link, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """``messages`` of one request, with token ids where ``logit_bias`` has texts.

    What is malformed is left for the daemon to refuse.
    """
    given = messages[0].get("logit_bias") if messages else None
    pairs = [*given.items()] if isinstance(given, dict) else given
    if not isinstance(pairs, list) or len(pairs) > MAX_LOGIT_BIAS:
        return messages
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        return messages
    texts = [text for text, _ in pairs if isinstance(text, str) and not _is_id(text)]
    if not texts:
        return messages
    known = dict(zip(texts, await tokens_of_each(link, texts), strict=True))
    found = [
        [token, bias]
        for name, bias in pairs
        for token in (known[name] if isinstance(name, str) and name in known else [name])
    ]
    return [{**message, "logit_bias": found} for message in messages]


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit()
