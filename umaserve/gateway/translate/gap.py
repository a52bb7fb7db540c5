"""Prompts with a gap: token ids, in llama-server's order of prefix, suffix and middle.

The model's tokens for a gap stand between the texts as ids, and no text is read as one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from umaserve.gateway.daemon.link import Link
from umaserve.gateway.daemon.refusal import Refusal
from umaserve.gateway.translate.model import context_of
from umaserve.gateway.translate.prompts import tokens_of

AT_ONCE = 16  # texts that are tokenised for one request
REPOSITORY, THIS_FILE, OTHER_FILE = "myproject\n", "filename\n", "tmp"  # as llama-server names them
SNIPPET = "\n\n--- snippet ---\n\n"


class Chunk(NamedTuple):
    """A text of another file, which the model sees before the gap's own."""

    text: str
    filename: str = OTHER_FILE


async def with_gap(link: Link, model: dict[str, Any], before: str, behind: str) -> list[int]:
    """The prompt for what stands between two texts, as token ids.

    ``model`` is the daemon's ``info`` of it.  Raises ``Refusal`` where it has no tokens for a gap.
    """
    gap = _tokens_for_a_gap(model)
    prefix, suffix = await _all_tokens(link, [before, behind])
    return _gap(gap, prefix, suffix)


async def infill(
    link: Link,
    model: dict[str, Any],
    before: str,
    behind: str,
    chunks: Sequence[Chunk],
    middle: str,
) -> list[int]:
    """The same as `llama-server` does it for ``/infill``.

    Texts around the gap that are long are cut, so that they fit a batch.  ``chunks`` get what the
    context leaves.  ``middle`` is what of the answer is known already; it goes before the gap.
    """
    gap = _tokens_for_a_gap(model)
    prefix, suffix, known = await _all_tokens(link, [before, behind], special=[middle])
    extra = await _extra(link, gap, chunks)
    batch = model["n_batch"]
    prefix = prefix[len(prefix) - min(len(prefix), 3 * (batch // 4)) :]
    suffix = suffix[: max(0, batch // 4 - (2 + len(known)))]
    room = max(0, context_of(model) - batch + 2)
    return extra[len(extra) - min(len(extra), room) :] + _gap(gap, prefix + known, suffix)


def _tokens_for_a_gap(model: dict[str, Any]) -> dict[str, int]:
    gap: dict[str, int] = model.get("gap") or {}
    missing = [name for name in ("prefix", "suffix", "middle") if name not in gap]
    if missing:
        text = "this model was not trained to fill a gap: it has no token for its"
        raise Refusal(400, "not_supported", f"{text} {' and '.join(missing)}")
    return gap


def _gap(gap: dict[str, int], prefix: list[int], suffix: list[int]) -> list[int]:
    start = [gap["bos"]] if "bos" in gap else []
    return [*start, gap["prefix"], *prefix, gap["suffix"], *suffix, gap["middle"]]


async def _extra(link: Link, gap: dict[str, int], chunks: Sequence[Chunk]) -> list[int]:
    """Other files, each behind its name or, where the model has no token for that, a line."""
    heads = [f"{c.filename}\n" if "file" in gap else SNIPPET for c in chunks]
    texts = [text for head, c in zip(heads, chunks, strict=True) for text in (head, c.text)]
    repository, last, *parts = await _all_tokens(link, [REPOSITORY, THIS_FILE, *texts])
    mark = [gap["file"]] if "file" in gap else []
    found = [gap["repo"], *repository] if "repo" in gap else []
    for at in range(0, len(parts), 2):
        found += [*mark, *parts[at], *parts[at + 1]]
    return [*found, *mark, *last] if mark else found


async def _all_tokens(
    link: Link, texts: Sequence[str], special: Sequence[str] = ()
) -> list[list[int]]:
    """Token ids of each text, and of those in which control tokens stand for themselves."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(text: str, parse_special: bool) -> list[int]:
        async with room:
            return await tokens_of(link, text, parse_special=parse_special)

    asked = [one(text, False) for text in texts] + [one(text, True) for text in special]
    return list(await asyncio.gather(*asked))
