"""Prompts that are no conversation: text and token ids."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import islice
from typing import Any

from umaserve.gateway.daemon.link import ROLE, Link
from umaserve.gateway.daemon.refusal import wrong
from umaserve.gateway.translate.pictures import MARKER, prompt_parts

MAX_PROMPTS = 256
PIECES_AT_ONCE = 4096
ELEMENTS = "prompt"  # llama-server's words for the elements of any list of prompts
MUST_BE = (
    "be a string, a list of token ids, a list of both, an object with a prompt_string, or a list "
    "of these"
)


async def prompts_of(
    link: Link, body: dict[str, Any], name: str = "prompt", most: int = MAX_PROMPTS
) -> list[dict[str, Any]]:
    """The socket's field for each prompt: a text, its parts, or token ids.  Raises ``Refusal``.

    A list without ids is a list of prompts; any other list is a single prompt.
    """
    value = body.get(name)
    if value is None:
        raise wrong(name, "be given")
    if not isinstance(value, list) or any(map(_is_id, value)):
        return [await _prompt(link, value)]
    if not value:
        raise wrong(name, "not be empty")
    if len(value) > most:
        raise wrong(name, f"have at most {most} entries")
    return [await _prompt(link, each) for each in value]


async def _prompt(link: Link, value: Any) -> dict[str, Any]:
    if isinstance(value, dict) and "prompt_string" in value:
        pictures, value = value.get("multimodal_data"), value["prompt_string"]
        if pictures is not None:
            parts = prompt_parts(value, pictures)
            if pictures:
                return {"prompt": parts}
    if isinstance(value, str):
        return {"prompt": value}
    if not isinstance(value, list) or not any(map(_is_id, value)):
        raise wrong(ELEMENTS, MUST_BE)
    return {"tokens": await mixed_tokens(link, value)}


async def mixed_tokens(
    link: Link, parts: list[Any], *, add_special: bool = True, parse_special: bool = True
) -> list[int]:
    """Token ids of a list of texts and ids; ``add_special`` holds for a text that begins it.

    Raises ``Refusal``.
    """
    if sum(isinstance(part, str) for part in parts) > MAX_PROMPTS:
        raise wrong(ELEMENTS, f"have at most {MAX_PROMPTS} texts in a row of texts and ids")
    if not all(_is_id(part) or isinstance(part, str) for part in parts):
        raise wrong(ELEMENTS, MUST_BE)
    texts = [part for part in parts if isinstance(part, str)]
    special = add_special and isinstance(parts[0], str) if parts else False
    found = iter(
        await tokens_of_each(link, texts, add_special=special, parse_special=parse_special)
    )
    return [token for part in parts for token in (next(found) if isinstance(part, str) else [part])]


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


async def tokens_of(link: Link, text: str, *, add_special: bool = False) -> list[int]:
    """Token ids of a text."""
    (found,) = await tokens_of_each(link, [text], add_special=add_special)
    return found


async def tokens_of_each(
    link: Link, texts: Sequence[str], *, add_special: bool = False, parse_special: bool = True
) -> list[list[int]]:
    """Token ids of each text, by a single question to the daemon, which bounds their bytes.

    ``add_special`` holds for the first text.
    """
    if not any(texts) and not (texts and add_special):
        return [[] for _ in texts]
    message = {"type": "tokenize", "text": texts, "add_special": add_special}
    if ROLE.get():
        message["role"] = ROLE.get()
    answer = await link.ask({**message, "parse_special": parse_special})
    tokens = iter(answer["tokens"])
    return [list(islice(tokens, count)) for count in answer["counts"]]


async def pieces_of(link: Link, tokens: list[int]) -> AsyncIterator[list[bytes]]:
    """The bytes of each token, in groups, so that neither side is at it for long."""
    for at in range(0, len(tokens), PIECES_AT_ONCE):
        some = tokens[at : at + PIECES_AT_ONCE]
        answer = await link.ask({"type": "detokenize", "tokens": some, "with_pieces": True})
        yield [bytes(piece) for piece in answer["pieces"]]


async def text_of_prompt(link: Link, prompt: dict[str, Any]) -> str:
    """The text of one of `prompts_of`, with llama-server's marker for each picture."""
    given = prompt.get("prompt")
    if given is None:
        return await text_of_tokens(link, prompt["tokens"])
    return given if isinstance(given, str) else "".join(p.get("text", MARKER) for p in given)


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


async def rendered(link: Link, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Render a conversation as the prompt that the model reads.

    The field that lists the conversation's unread parts comes with it.
    """
    answer = await link.ask({"type": "render", **fields})
    unread = answer.get("unread")
    return str(answer["prompt"]), {"uma_unread": unread} if unread else {}
