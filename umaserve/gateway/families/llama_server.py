"""llama-server's ``/completion``, ``/infill`` and ``/embedding``."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from umaserve.gateway.daemon.event import Event
from umaserve.gateway.daemon.refusal import Refusal, encode, llama_error, wrong
from umaserve.gateway.translate.answering import (
    EVENT_STREAM,
    SSE_COMMENT,
    cache_header,
    json_response,
    link_of,
    stream,
    whole,
)
from umaserve.gateway.translate.body import (
    flag_of,
    list_of,
    objects_of,
    read_object,
    text_of,
)
from umaserve.gateway.translate.caller import caller_fields, lane_header
from umaserve.gateway.translate.endpoint import Endpoint
from umaserve.gateway.translate.messages import no_constraint
from umaserve.gateway.translate.prompts import (
    prompts_of,
    with_gap,
)
from umaserve.gateway.translate.sampling import most_tokens, sampling_fields
from umaserve.gateway.translate.vectors import vectors_of

_STOP_TYPES = {"length": "limit"}


async def completion(request: Request) -> Response:
    """What follows a prompt; a list of answers for a list of prompts."""
    body = await read_object(request)
    return await _complete(request, body, prompts_of(body), isinstance(body["prompt"], list))


async def infill(request: Request) -> Response:
    """What stands between two texts."""
    body = await read_object(request)
    before, behind = text_of(body, "input_prefix"), text_of(body, "input_suffix")
    extra = "".join(
        f"{text_of(each, 'filename')}\n{text_of(each, 'text')}\n"
        for each in objects_of(body, "input_extra")
    )
    prompt = await with_gap(link_of(request), extra + before, behind)
    if text_of(body, "prompt"):  # what of the answer is known already
        prompt += body["prompt"]
    return await _complete(request, body, [{"prompt": prompt}], False)


async def _complete(
    request: Request, body: dict[str, Any], prompts: list[dict[str, Any]], listed: bool
) -> Response:
    no_constraint(body)
    caller = caller_fields(request, body)
    fields = {**sampling_fields(body), **most_tokens(body, "n_predict", "max_tokens"), **caller}
    wants_text = fields.get("max_tokens") != 0
    if not wants_text:  # the prompt is to be read and kept, for what comes next
        fields["max_tokens"] = 1
    if body.get("n_probs"):
        fields["logprobs"] = body["n_probs"]
    messages = [{**fields, **prompt} for prompt in prompts]
    headers = {"x-uma-lane": lane_header(caller)}
    wanted = [str(name) for name in list_of(body, "response_fields")]
    if flag_of(body, "stream"):
        if len(messages) > 1:
            raise wrong("stream", "come with one prompt")
        return await stream(request, messages, _Parts(wants_text, wanted), headers)
    ends = await whole(request, messages)
    answers = [
        _chosen(_whole(number, end, wants_text), wanted) for number, end in enumerate(ends)
    ]
    told = answers if listed and len(answers) > 1 else answers[0]
    return json_response(told, headers=headers | cache_header(ends))


async def embedding(request: Request) -> Response:
    """A vector for each text, in a list: llama-server may have one for each token."""
    body = await read_object(request)
    found = await vectors_of(request, body, "input" if "input" in body else "content")
    return json_response(
        [{"index": i, "embedding": [row.tolist()]} for i, row in enumerate(found.rows)]
    )


def _whole(number: int, end: Event, wants_text: bool) -> dict[str, Any]:
    told = _last(number, end)
    told["content"] = (end.text or "") if wants_text else ""
    if not wants_text:
        told |= {"tokens_predicted": 0, "stop_type": "limit"}
    if end.logprobs is not None:
        told["completion_probabilities"] = [_probability(token) for token in end.logprobs]
    return told


def _last(number: int, end: Event) -> dict[str, Any]:
    """What the end of an answer tells."""
    stop_type = "word" if end.stop is not None else _STOP_TYPES.get(end.reason, "eos")
    predicted, prompt = end.tokens("completion_tokens"), end.tokens("prompt_tokens")
    cached = end.tokens("cached_tokens")
    prompt_ms = max(0.0, end.ms("ttft_ms") - end.ms("queue_ms"))
    predicted_ms = max(0.0, end.ms("total_ms") - end.ms("ttft_ms"))
    return {
        "index": number,
        "content": "",
        "tokens": [],
        "id_slot": -1,
        "stop": True,
        "model": "default",
        "tokens_predicted": predicted,
        "tokens_evaluated": prompt,
        "tokens_cached": cached,
        "truncated": False,
        "stop_type": stop_type,
        "stopping_word": end.stop or "",
        "timings": {
            "cache_n": cached,
            "prompt_n": prompt - cached,
            "prompt_ms": prompt_ms,
            "predicted_n": predicted,
            "predicted_ms": predicted_ms,
            "predicted_per_second": 1e3 * predicted / predicted_ms if predicted_ms else None,
        },
    }


def _probability(token: dict[str, Any]) -> dict[str, Any]:
    def entry(of: dict[str, Any]) -> dict[str, Any]:
        text = str(of.get("text") or "")
        return {
            "id": of.get("token_id", -1),
            "token": text,
            "bytes": [*text.encode()],
            "logprob": of.get("logprob"),
        }

    return entry(token) | {"top_logprobs": [entry(top) for top in token["top_logprobs"] or ()]}


def _chosen(told: dict[str, Any], wanted: list[str]) -> dict[str, Any]:
    """The fields that ``response_fields`` names, ``timings/prompt_n`` by their last name."""
    if not wanted:
        return told
    found = {}
    for name in wanted:
        value: Any = told
        for step in name.split("/"):
            value = value.get(step) if isinstance(value, dict) else None
        if value is not None:
            found[name.rpartition("/")[2]] = value
    return found


class _Parts:
    """A part of the answer a token, and what the end tells."""

    content_type = EVENT_STREAM
    ping = SSE_COMMENT

    def __init__(self, wants_text: bool, wanted: list[str]) -> None:
        self._wants_text, self._wanted = wants_text, wanted

    def begin(self) -> bytes:
        return b""

    def feed(self, number: int, event: Event) -> bytes:
        if event.event == "eos":
            told = _last(0, event) if self._wants_text else _whole(0, event, False)
            return _sse(_chosen(told, self._wanted))
        if event.event != "token" or not self._wants_text:
            return b""
        part: dict[str, Any] = {
            "index": 0,
            "content": event.text or "",
            "tokens": [event.token_id],
            "stop": False,
            "id_slot": -1,
        }
        if event.top_logprobs is not None:
            token = {
                "token_id": event.token_id,
                "text": event.text,
                "logprob": event.logprob,
                "top_logprobs": event.top_logprobs,
            }
            part["completion_probabilities"] = [_probability(token)]
        return _sse(part)

    def end(self) -> bytes:
        return b""

    def fail(self, refusal: Refusal) -> bytes:
        return _sse(llama_error(refusal))


def _sse(told: dict[str, Any]) -> bytes:
    return b"data: " + encode(told) + b"\n\n"


_TEXT = {"type": "string"}
_COMPLETION = {
    "prompt": {"type": ["string", "array"]},
    "n_predict": {"type": "integer"},
    "stream": {"type": "boolean"},
}
_EMBEDDING = {"content": {"type": ["string", "array"]}}
_INFILL = {"input_prefix": _TEXT, "input_suffix": _TEXT, "n_predict": {"type": "integer"}}
ENDPOINTS = (
    Endpoint(
        "POST", "/completion", completion, "what follows a prompt", "llama-server", _COMPLETION,
        ("prompt",),
    ),
    Endpoint("POST", "/infill", infill, "what fills a gap", "llama-server", _INFILL),
    Endpoint("POST", "/embedding", embedding, "vectors of texts", "llama-server", _EMBEDDING),
)  # fmt: skip
