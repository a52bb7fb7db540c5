"""Prompts with a gap: token ids, in llama-server's order of prefix, suffix and middle.

The model's tokens for a gap stand between the texts as ids, and no text is read as one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from umaserve.gateway.daemon.link import Link
from umaserve.gateway.daemon.refusal import Refusal, encode
from umaserve.gateway.translate.model import context_of
from umaserve.gateway.translate.prompts import tokens_of, tokens_of_each
from umaserve.protocol import E_MODEL_001
from umaserve.protocol.tables.fields import MAX_INPUTS

MOST_CHUNKS = MAX_INPUTS // 2 - 4  # a chunk is two texts, and there are a few others
REPOSITORY, THIS_FILE, OTHER_FILE = "myproject\n", "filename\n", "tmp"  # as llama-server names them
SNIPPET = "\n\n--- snippet ---\n\n"
Chunk = tuple[str, str]  # name and text of another file, which the model sees before the gap's own


async def with_gap(link: Link, model: dict[str, Any], before: str, behind: str) -> list[int]:
    """The prompt for what stands between two texts, as token ids.

    ``model`` is the daemon's ``info`` of it.  Raises ``Refusal`` where it has no tokens for a gap.
    """
    gap = _tokens_for_a_gap(model)
    prefix, suffix = await tokens_of_each(link, [before, behind], parse_special=False)
    return _gap(gap, prefix, suffix)


async def infill(
    link: Link,
    model: dict[str, Any],
    before: str,
    behind: str,
    chunks: Sequence[Chunk],
    middle: str,
) -> list[int]:
    """Return the prompt for a gap as token ids, built as `llama-server` does for ``/infill``.

    Long texts around the gap are cut to fit a batch.  ``chunks`` get the rest of the context; the
    last ones are kept where there are too many.  ``middle`` is the known beginning of the answer,
    which goes before the gap.
    """
    gap = _tokens_for_a_gap(model)
    known = await tokens_of(link, middle) if middle else []
    heads = _with_heads(gap, chunks, link.max_prompt_bytes - _size(before, behind))
    texts = [before, behind, REPOSITORY, THIS_FILE, *heads]
    prefix, suffix, *others = await tokens_of_each(link, texts, parse_special=False)
    extra = _extra(gap, *others)
    batch = model["n_batch"]
    prefix = prefix[len(prefix) - min(len(prefix), 3 * (batch // 4)) :]
    suffix = suffix[: max(0, batch // 4 - (2 + len(known)))]
    room = max(0, context_of(model) - batch + 2)
    return extra[len(extra) - min(len(extra), room) :] + _gap(gap, prefix + known, suffix)


def _tokens_for_a_gap(model: dict[str, Any]) -> dict[str, int]:
    if not model:
        raise Refusal(503, E_MODEL_001, "no model is loaded")
    gap: dict[str, int] = model.get("gap") or {}
    missing = [name for name in ("prefix", "suffix", "middle") if name not in gap]
    if missing:
        text = "this model was not trained to fill a gap: it has no token for its"
        raise Refusal(400, "not_supported", f"{text} {' and '.join(missing)}")
    return gap


def _gap(gap: dict[str, int], prefix: list[int], suffix: list[int]) -> list[int]:
    start = [gap["bos"]] if "bos" in gap else []
    return [*start, gap["prefix"], *prefix, gap["suffix"], *suffix, gap["middle"]]


def _with_heads(gap: dict[str, int], chunks: Sequence[Chunk], room_bytes: int) -> list[str]:
    """Other files, each behind its name or, where the model has no token for that, a line.

    As many of the last ones as ``room_bytes`` hold, which is more than the context does.
    """
    found: list[str] = []
    room_bytes -= _size(REPOSITORY, THIS_FILE)
    for filename, text in chunks[: -MOST_CHUNKS - 1 : -1]:
        head = f"{filename}\n" if "file" in gap else SNIPPET
        room_bytes -= _size(head, text)
        if room_bytes < 0:
            break
        found += [text, head]
    return found[::-1]


def _size(*texts: str) -> int:
    """Bytes of the texts in a frame."""
    return sum(len(encode(text)) for text in texts)


def _extra(
    gap: dict[str, int], repository: list[int], last: list[int], *parts: list[int]
) -> list[int]:
    mark = [gap["file"]] if "file" in gap else []
    found = [gap["repo"], *repository] if "repo" in gap else []
    for at in range(0, len(parts), 2):
        found += [*mark, *parts[at], *parts[at + 1]]
    return [*found, *mark, *last] if mark else found
