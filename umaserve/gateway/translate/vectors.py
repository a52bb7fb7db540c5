"""Texts to vectors, by the daemon: in groups whose answers it sends, while somebody waits."""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

from starlette.requests import Request

from umaserve.gateway.daemon.link import Link
from umaserve.gateway.daemon.refusal import malformed, wrong
from umaserve.gateway.translate.answering import link_of
from umaserve.gateway.translate.body import whole_of
from umaserve.gateway.translate.messages import content_of
from umaserve.gateway.translate.model import info_of
from umaserve.gateway.translate.prompts import prompts_of, tokens_of

MAX_INPUTS = 2048  # as OpenAI has it
TOKEN_BYTES = 8  # of a token id in JSON
AT_ONCE = 64  # texts of one question to the daemon


class Vectors(NamedTuple):
    """``rows``: float32 of length 1, one for each text; ``tokens`` of all together."""

    rows: list[array[float]]
    tokens: int


async def vectors_of(
    request: Request, body: dict[str, Any], name: str, *, truncate: bool = False
) -> Vectors:
    """Return vectors of a field's texts, or token ids, cut to the body's ``dimensions``.

    Raises ``Refusal``.
    """
    link = link_of(request)
    prompts = await prompts_of(link, _told(body, name), name, MAX_INPUTS)
    inputs = await _inputs(link, prompts)
    info = await info_of(request)
    n_embd = int((info["model"] or {}).get("n_embd") or 0)
    wanted = whole_of(body, "dimensions", n_embd, 1, 1 << 20)
    if n_embd and wanted > n_embd:
        raise wrong("dimensions", f"be at most {n_embd}: the model's vectors have no more")
    rows: list[array[float]] = []
    tokens = 0
    # in base64 four bytes for three, and some room
    fit = int(info["limits"]["max_unsent_bytes"]) // (6 * n_embd + 16)
    # the rest of a frame is for what JSON escapes
    bytes_fit = int(info["limits"]["max_frame_bytes"]) // 2
    for group in _groups(inputs, max(min(fit, AT_ONCE), 1), bytes_fit):
        message = {"type": "embed", "input": group, "encoding_format": "base64"}
        answer = await link.ask({**message, "truncate": truncate}, None)
        rows += [_cut(_decoded(text), wanted) for text in answer["embeddings"]]
        tokens += answer["usage"]["prompt_tokens"]
    return Vectors(rows, tokens)


def _told(body: dict[str, Any], name: str) -> dict[str, Any]:
    """The field with each content in parts as its text.  Raises ``Refusal``."""
    value = body.get(name)
    if value is None:
        raise malformed('"input" or "content" must be provided')
    if isinstance(value, list):
        return {name: [_text(each) for each in value]}
    return {name: _text(value)}


def _text(value: Any) -> Any:
    if not isinstance(value, dict) or "content" not in value:
        return value
    if not isinstance(value["content"], list):
        raise wrong("content", "be a list of parts")
    parts = content_of(value["content"], "content")
    if not all(isinstance(part, dict) and part["type"] == "text" for part in parts):
        raise wrong("content", "have parts of text alone")
    return "".join(part["text"] for part in parts)  # type: ignore[index]


async def _inputs(link: Link, prompts: list[dict[str, Any]]) -> list[str | list[int]]:
    """Texts or their token ids; of an empty text the tokens that the model puts around it."""
    given = [prompt.get("prompt") or prompt.get("tokens") for prompt in prompts]
    around = [] if all(given) else await tokens_of(link, "", add_special=True)
    found = [each or around for each in given]
    if not all(found):
        raise malformed("Input content cannot be empty")
    return found


def _groups(inputs: list[Any], size: int, most_bytes: int) -> Iterator[list[Any]]:
    """At most ``size`` of them together, and ``most_bytes`` where it is more than one."""
    group: list[Any] = []
    held = 0
    for each in inputs:
        length = len(each.encode()) if isinstance(each, str) else TOKEN_BYTES * len(each)
        if group and (len(group) == size or held + length > most_bytes):
            yield group
            group, held = [], 0
        group.append(each)
        held += length
    yield group


def _decoded(text: str) -> array[float]:
    numbers = array("f", base64.b64decode(text))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def encoded(numbers: array[float]) -> str:
    """The bytes of float32 (little-endian) in base64."""
    if sys.byteorder == "big":
        numbers = array("f", numbers)
        numbers.byteswap()
    return base64.b64encode(numbers).decode("ascii")


def _cut(numbers: array[float], wanted: int) -> array[float]:
    """The first numbers alone, of length 1 again."""
    if wanted >= len(numbers):
        return numbers
    first = numbers[:wanted]
    length = math.sqrt(math.fsum(value * value for value in first)) or 1.0
    return array("f", [value / length for value in first])
