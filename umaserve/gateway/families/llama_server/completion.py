"""llama-server's ``/completion``, ``/infill`` and ``/embedding``."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from umaserve.gateway.daemon.link import link_of
from umaserve.gateway.daemon.refusal import wrong
from umaserve.gateway.families.llama_server.shapes import Answers
from umaserve.gateway.translate.answers.answering import answer, json_response
from umaserve.gateway.translate.answers.timings import progress_fields
from umaserve.gateway.translate.answers.vectors import vectors_of
from umaserve.gateway.translate.body import flag_of, list_of, objects_of, text_of, whole_of
from umaserve.gateway.translate.caller import caller_fields
from umaserve.gateway.translate.endpoint import Endpoint
from umaserve.gateway.translate.gap import OTHER_FILE
from umaserve.gateway.translate.gap import infill as infill_tokens
from umaserve.gateway.translate.model import loaded_model, read_request
from umaserve.gateway.translate.prompts import prompts_of, text_of_prompt
from umaserve.gateway.translate.sampling import (
    MAX_CHOICES,
    most_tokens,
    n_probs,
    settings_fields,
    several,
)
from umaserve.gateway.translate.schemas import ASKED, PROGRESS, PROMPTS, SOCKET, TEXT

NO_LIMIT = 1 << 31


async def completion(request: Request) -> Response:
    """Complete a prompt; for a list of prompts, answer with a list."""
    body = await read_request(request)
    return await _complete(request, body, await prompts_of(link_of(request), body))


async def infill(request: Request) -> Response:
    """Complete the gap between two texts."""
    body = await read_request(request)
    before, behind = text_of(body, "input_prefix"), text_of(body, "input_suffix")
    chunks = [
        (text_of(each, "filename", OTHER_FILE), _extra_text(each))
        for each in objects_of(body, "input_extra")
    ]
    link, model = link_of(request), await loaded_model(request)
    known = text_of(body, "prompt")
    tokens = await infill_tokens(link, model, before, behind, chunks, known)
    return await _complete(request, body, [{"tokens": tokens}])


def _extra_text(chunk: dict[str, Any]) -> str:
    if chunk.get("text") is None:
        raise wrong("input_extra[].text", "be a string")
    return text_of(chunk, "text")


async def _complete(
    request: Request, body: dict[str, Any], prompts: list[dict[str, Any]]
) -> Response:
    choices = whole_of(body, "n" if body.get("n_cmpl") is None else "n_cmpl", 1, 1, MAX_CHOICES)
    caller = caller_fields(request, body)
    fields = {
        **settings_fields(body),
        **most_tokens(body, "n_predict", "max_tokens"),
        **progress_fields(body),
    }
    if body.get("n_probs"):
        fields["logprobs"] = n_probs(body)
    list_of(body, "response_fields")
    link = link_of(request)
    texts = [await text_of_prompt(link, each) for each in prompts]
    answers = Answers(body, fields, texts, choices, link.max_tokens or NO_LIMIT)
    if not answers.wants_text:  # the prompt is to be read and kept, for what comes next
        fields["max_tokens"] = 1
    if flag_of(body, "return_tokens"):
        fields["return_tokens"] = True
    messages = several([{**fields, **caller, **prompt} for prompt in prompts], choices)
    return await answer(request, body, messages, answers)


async def embedding(request: Request) -> Response:
    """A vector for each text, in a list: llama-server may have one for each token."""
    body = await read_request(request)
    name = "input" if "input" in body else "content"
    found = await vectors_of(request, body, name, truncate=flag_of(body, "truncate"))
    return json_response(
        [{"index": i, "embedding": [row.tolist()]} for i, row in enumerate(found.rows)]
    )


_COMMON = {
    **ASKED,
    **PROGRESS,
    "n_predict": {"type": "integer", "minimum": -1},
    "max_tokens": {"type": "integer", "minimum": -1},
    "n_probs": SOCKET["logprobs"],
    "n": {"type": "integer", "minimum": 1, "maximum": MAX_CHOICES},
    "n_cmpl": {"type": "integer", "minimum": 1, "maximum": MAX_CHOICES},
    "response_fields": {"type": "array", "items": TEXT},
}
_COMPLETION = {"prompt": PROMPTS, **_COMMON}
_EXTRA = {"type": "object", "properties": {"filename": TEXT, "text": TEXT}}
_INFILL = {
    "input_prefix": TEXT,
    "input_suffix": TEXT,
    "input_extra": {"type": "array", "items": _EXTRA},
    "prompt": TEXT,
    **_COMMON,
}
_EMBEDDING = {"content": {"type": ["string", "array", "object"]}, "truncate": {"type": "boolean"}}
ENDPOINTS = (
    Endpoint(
        "POST", "/completion", completion, "what follows a prompt", "llama-server", _COMPLETION,
        ("prompt",),
    ),
    Endpoint("POST", "/infill", infill, "what fills a gap", "llama-server", _INFILL),
    Endpoint("POST", "/embedding", embedding, "vectors of texts", "llama-server", _EMBEDDING),
)  # fmt: skip
