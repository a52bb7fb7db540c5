"""Prompts that are no conversation: text and token ids."""

from __future__ import annotations

from typing import Any, NamedTuple

from umaserve.gateway.daemon.link import Link
from umaserve.gateway.daemon.refusal import wrong

MAX_PROMPTS = 256


def prompts_of(
    body: dict[str, Any], name: str = "prompt", most: int = MAX_PROMPTS
) -> list[dict[str, Any]]:
    """The socket's field for each prompt: a text, or token ids.  Raises ``Refusal``."""
    value = body.get(name)
    if isinstance(value, str):
        return [{"prompt": value}]
    if not isinstance(value, list) or not value:
        raise wrong(name, "be a string, a list of strings, or a list of token ids")
    if all(_is_id(each) for each in value):
        return [{"tokens": value}]
    if len(value) > most:
        raise wrong(name, f"have at most {most} entries")
    found: list[dict[str, Any]] = []
    for each in value:
        if isinstance(each, str):
            found.append({"prompt": each})
        elif isinstance(each, list) and each and all(_is_id(token) for token in each):
            found.append({"tokens": each})
        else:
            raise wrong(f"{name}[]", "be a string or a list of token ids")
    return found


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


async def tokens_of(
    link: Link, text: str, *, add_special: bool = False, parse_special: bool = True
) -> list[int]:
    """Token ids of a text."""
    if not text:
        return []
    message = {"type": "tokenize", "text": text, "add_special": add_special}
    tokens: list[int] = (await link.ask({**message, "parse_special": parse_special}))["tokens"]
    return tokens


async def text_of_tokens(link: Link, tokens: list[int]) -> str:
    """The text of token ids."""
    if not tokens:
        return ""
    return str((await link.ask({"type": "detokenize", "tokens": tokens}))["text"])


async def count_of(link: Link, fields: dict[str, Any]) -> dict[str, Any]:
    """``input_tokens`` of a conversation, and the field that tells what of it was not read."""
    prompt, unread = await rendered(link, fields)
    tokens = await tokens_of(link, prompt, add_special=True)
    return {"input_tokens": len(tokens), **unread}


class Rendered(NamedTuple):
    """What a conversation becomes, and the field that tells what of it was not read."""

    prompt: str
    unread: dict[str, Any]


async def rendered(link: Link, fields: dict[str, Any]) -> Rendered:
    """What a conversation becomes, as the model reads it."""
    answer = await link.ask({"type": "render", **fields})
    unread = answer.get("unread")
    return Rendered(str(answer["prompt"]), {"uma_unread": unread} if unread else {})
