"""``/v1/completions``."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from umaserve.gateway.daemon.event import Event
from umaserve.gateway.daemon.link import link_of
from umaserve.gateway.daemon.refusal import encode, not_there, wrong
from umaserve.gateway.families.openai import shapes
from umaserve.gateway.translate.answers.answering import answer
from umaserve.gateway.translate.answers.rated import token_of
from umaserve.gateway.translate.answers.timings import progress_fields
from umaserve.gateway.translate.body import flag_of, text_of, whole_of
from umaserve.gateway.translate.caller import caller_fields
from umaserve.gateway.translate.endpoint import Endpoint
from umaserve.gateway.translate.gap import with_gap
from umaserve.gateway.translate.model import loaded_model, read_request
from umaserve.gateway.translate.prompts import prompts_of, text_of_prompt
from umaserve.gateway.translate.sampling import (
    MAX_CHOICES,
    most_tokens,
    n_probs,
    settings_fields,
    several,
)
from umaserve.gateway.translate.schemas import FLAG, PROMPTS, SOCKET, TEXT

MOST_TOKENS = 16  # OpenAI's own


async def completions(request: Request) -> Response:
    """Complete each prompt ``n`` times."""
    body = await read_request(request)
    choices = whole_of(body, "n", 1, 1, MAX_CHOICES)
    if whole_of(body, "best_of", choices, 1, MAX_CHOICES) > choices:
        raise not_there('"best_of" above "n"')
    given = await prompts_of(link_of(request), body)
    prompts = await _prompts(request, body, given)
    common = {
        **settings_fields(body),
        **({"max_tokens": MOST_TOKENS} | most_tokens(body, "max_tokens", "n_predict")),
        **_logprobs(body),
        **progress_fields(body),
        **shapes.metadata_field(body.get("metadata")),
        **caller_fields(request, body),
    }
    echoed = await _echoed(request, body, given)
    messages = several([{**common, **prompt} for prompt in prompts], choices)
    chunks = _TextChunks(body, choices, "logprobs" in common, echoed)
    return await answer(request, body, messages, chunks)


async def _prompts(
    request: Request, body: dict[str, Any], prompts: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    suffix = text_of(body, "suffix")
    if not suffix:
        return prompts
    if len(prompts) != 1 or not isinstance(prompts[0].get("prompt"), str):
        raise wrong("suffix", "come with one prompt of text")
    model, before = await loaded_model(request), prompts[0]["prompt"]
    return [{"tokens": await with_gap(link_of(request), model, before, suffix)}]


def _logprobs(body: dict[str, Any]) -> dict[str, Any]:
    wanted = body.get("logprobs")
    if wanted is None and body.get("n_probs"):
        wanted = n_probs(body)
    if wanted is None or wanted is False:
        return {}
    count = 1 if wanted is True else wanted
    return {"logprobs": count} | ({"prompt_logprobs": count} if flag_of(body, "echo") else {})


async def _echoed(
    request: Request, body: dict[str, Any], prompts: list[dict[str, Any]]
) -> list[str]:
    """Return the text before each prompt's answer: the prompt with ``echo``, else empty."""
    if not flag_of(body, "echo"):
        return [""] * len(prompts)
    return [await text_of_prompt(link_of(request), prompt) for prompt in prompts]


class _TextChunks(shapes.Chunks):
    """``text_completion`` objects."""

    kind = chunk_kind = "text_completion"
    prefix = "cmpl-"
    nothing = b'"text":"","logprobs":null,"finish_reason":null'

    def __init__(
        self, body: dict[str, Any], choices: int, with_logprobs: bool, echoed: list[str]
    ) -> None:
        super().__init__(body, choices)
        self._with_logprobs, self._echoed = with_logprobs, echoed
        self._sizes: dict[int, int] = {}

    def choice(self, number: int, end: Event) -> dict[str, Any]:
        logprobs = shapes.text_logprobs(end.logprobs) if end.logprobs is not None else None
        if end.rated is not None:
            logprobs = shapes.prompt_logprobs(end.rated, end.logprobs or ())
        return {
            "index": number,
            "text": self._echoed[number // self._choices] + (end.text or ""),
            "logprobs": logprobs,
            "finish_reason": shapes.finish_reason(end),
        }

    def feed(self, number: int, event: Event) -> bytes:
        out = self._timed(number, event)
        if event.event in ("begin", "progress"):
            return out
        if event.event == "prompt_logprobs":
            return self._rated(number, event)
        if number not in self._sizes:
            self._sizes[number] = 0
            echoed = self._echoed[number // self._choices]
            if echoed:
                out += self._choice(number, echoed, b"null", None)
        if event.event == "token":
            text = event.text or ""
            if self._with_logprobs:
                size = self._sizes[number]
                self._sizes[number] = size + len(text)
                out += self._choice(
                    number, text, encode(shapes.text_logprobs([token_of(event)], size)), None
                )
            elif text:
                out += self._choice(number, text, b"null", None)
        elif event.event == "eos":
            out += self._choice(number, "", b"null", shapes.finish_reason(event), event)
        return out

    def _rated(self, number: int, event: Event) -> bytes:
        """The next tokens of a prompt that is echoed."""
        rated, size = event.logprobs or [], self._sizes.get(number)
        told = shapes.prompt_logprobs(rated) if size is None else shapes.text_logprobs(rated, size)
        text = "".join(told["tokens"])
        self._sizes[number] = (size or 0) + len(text)
        return self._choice(number, text, encode(told), None)

    def _choice(
        self,
        number: int,
        text: str,
        logprobs: bytes,
        reason: str | None,
        end: Event | None = None,
    ) -> bytes:
        return self._chunk(
            b'"choices":[{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b}]%b'
            % (number, encode(text), logprobs, encode(reason), self._tail(number, end))
        )


_FIELDS = {
    **shapes.FIELDS,
    "prompt": PROMPTS,
    "suffix": TEXT,
    "best_of": {"type": "integer", "minimum": 1, "maximum": MAX_CHOICES},
    "max_tokens": {"type": "integer", "minimum": 0},
    "echo": FLAG,
    "logprobs": SOCKET["logprobs"],
}
ENDPOINTS = tuple(
    Endpoint(
        "POST", path, completions, "what follows a prompt", "OpenAI", _FIELDS, ("prompt",)
    )
    for path in ("/v1/completions", "/completions")
)  # fmt: skip
