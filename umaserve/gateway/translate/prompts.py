"""Prompts that are no conversation: text, token ids, and text with a gap."""

from __future__ import annotations

from typing import Any

from umaserve.gateway.daemon.link import Link
from umaserve.gateway.daemon.refusal import Refusal, wrong

MAX_PROMPTS = 256
# what stands before, between and behind the two texts around a gap
GAP_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<|prefix|>", "<|suffix|>", "<|middle|>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
)


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


async def rendered(link: Link, fields: dict[str, Any]) -> str:
    """What a conversation becomes, as the model reads it."""
    answer = await link.ask({"type": "render", **fields})
    return str(answer["prompt"])


async def with_gap(link: Link, before: str, behind: str) -> str:
    """The prompt for what stands between two texts.  Raises ``Refusal`` where the model has no
    tokens for that."""
    for start, gap, end in GAP_MARKS:
        for mark in (start, gap, end):
            if len(await tokens_of(link, mark)) != 1:
                break
        else:
            return f"{start}{before}{gap}{behind}{end}"
    text = "this model was not trained to fill a gap: it has no tokens for one"
    raise Refusal(400, "not_supported", text)
