"""Texts to vectors, by the daemon: in groups whose answers it sends, while somebody waits."""

from __future__ import annotations

import base64
import math
from array import array
from typing import Any, NamedTuple

from starlette.requests import Request

from umaserve.gateway.daemon.link import ROLE, Link, link_of
from umaserve.gateway.daemon.refusal import Refusal, malformed, wrong
from umaserve.gateway.translate.body import whole_of
from umaserve.gateway.translate.messages import content_of
from umaserve.gateway.translate.prompts import prompts_of, tokens_of

MAX_INPUTS = 2048  # as OpenAI has it
TOKEN_BYTES = 8  # of a token id in JSON
AT_ONCE = 256  # texts of one question to the daemon
LONGEST = 16384  # numbers of a vector, until one came


class Vectors(NamedTuple):
    """``rows``: float32 of length 1, one for each text; ``tokens`` of all together; the name of
    the ``model`` that made them."""

    rows: list[array[float]]
    tokens: int
    model: str


async def vectors_of(
    request: Request, body: dict[str, Any], name: str, *, truncate: bool = False
) -> Vectors:
    """Return vectors of a field's texts, or token ids, cut to the body's ``dimensions``.

    Raises ``Refusal``.
    """
    link = link_of(request)
    ROLE.set("embed")  # the tokens are those of the model that embeds
    prompts = await prompts_of(link, _told(body, name), name, MAX_INPUTS)
    inputs = await _inputs(link, prompts)
    await link.connection()  # which tells the limits
    wanted = whole_of(body, "dimensions", 0, 1, 1 << 20)
    found, n_embd = Vectors([], 0, ""), LONGEST
    while len(found.rows) < len(inputs):
        # the first vector tells how long the model's are; in base64 four bytes are for three
        fit = max(min(link.max_unsent_bytes // (6 * n_embd + 16), AT_ONCE), 1)
        # the rest of a frame is for what JSON escapes
        group = first_group(inputs[len(found.rows) :], fit, link.max_frame_bytes // 2)
        message = {"type": "embed", "input": group, "encoding_format": "base64"}
        answer = await link.ask({**message, "truncate": truncate}, None)
        rows = [array("f", base64.b64decode(text)) for text in answer["embeddings"]]
        n_embd = len(rows[0])
        if wanted > n_embd:
            raise wrong("dimensions", f"be at most {n_embd}: the model's vectors have no more")
        found.rows.extend(_cut(row, wanted or n_embd) for row in rows)
        found = found._replace(
            tokens=found.tokens + answer["usage"]["prompt_tokens"],
            model=same_model(found.model, answer["model"]),
        )
    return found


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
    if any(isinstance(prompt.get("prompt"), list) for prompt in prompts):
        raise wrong("multimodal_data", "be left out: vectors are of text alone")
    around = [] if all(given) else await tokens_of(link, "", add_special=True)
    found = [each or around for each in given]
    if not all(found):
        raise malformed("Input content cannot be empty")
    return found


def same_model(before: str, now: str) -> str:
    """Return the model's name.  Raises ``Refusal`` where another one has answered ``before``."""
    if before not in ("", now):
        raise Refusal(503, "model_changed", "the model was changed meanwhile; ask again")
    return now


def first_group(inputs: list[Any], size: int, most_bytes: int) -> list[Any]:
    """Return at most ``size`` of the first inputs; several have at most ``most_bytes`` together."""
    group: list[Any] = []
    held = 0
    for each in inputs[:size]:
        held += len(each.encode()) if isinstance(each, str) else TOKEN_BYTES * len(each)
        if group and held > most_bytes:
            break
        group.append(each)
    return group


def _cut(numbers: array[float], wanted: int) -> array[float]:
    """The first numbers alone, of length 1 again."""
    if wanted >= len(numbers):
        return numbers
    first = numbers[:wanted]
    length = math.sqrt(math.fsum(value * value for value in first)) or 1.0
    return array("f", [value / length for value in first])
