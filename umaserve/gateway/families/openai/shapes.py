"""What OpenAI's routes share: the ends of answers, their usage, log-probabilities."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import umaserve
from umaserve.gateway.daemon.event import Event
from umaserve.gateway.daemon.refusal import Refusal, encode, openai_error, wrong
from umaserve.gateway.translate.answering import EVENT_STREAM, SSE_COMMENT
from umaserve.gateway.translate.body import object_of
from umaserve.gateway.translate.entries import entry_of, finite

MAX_CHOICES = 128
COUNTED = {"object": "response.input_tokens"}  # an answer that counts tokens
DONE = b"data: [DONE]\n\n"
FINGERPRINT = f"umaserve-{umaserve.__version__}"
_FINISH = {"length": "length", "tool_calls": "tool_calls"}


def head(
    body: dict[str, Any], kind: str, prefix: str, ends: Sequence[Event] = ()
) -> dict[str, Any]:
    """The fields that all objects of one answer begin with; ``ends`` where it is whole."""
    return {
        "id": prefix + os.urandom(12).hex(),
        "object": kind,
        "created": int(time.time()),
        "model": body["model"] or (ends[0].model if ends else ""),
        "system_fingerprint": FINGERPRINT,
    }


def finish_reason(event: Event) -> str:
    """Why it ended, in OpenAI's words; a request that somebody cancelled was stopped."""
    return _FINISH.get(event.reason, "stop")


def usage(ends: Sequence[Event], choices: int = 1) -> dict[str, Any]:
    """Of all requests together; a prompt with several answers counts once."""
    prompts = ends[::choices]
    prompt = sum(event.tokens("prompt_tokens") for event in prompts)
    completion = sum(event.tokens("completion_tokens") for event in ends)
    cached = sum(event.tokens("cached_tokens") for event in prompts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def wants_usage(body: dict[str, Any]) -> bool:
    """Whether a stream ends with its usage."""
    return object_of(body, "stream_options").get("include_usage") is True


def several(message: dict[str, Any], choices: int) -> list[dict[str, Any]]:
    """The same request so many times; a seed goes on from one to the next."""
    seed = message.get("seed")
    if choices > 1 and isinstance(seed, int):
        return [{**message, "seed": seed + number} for number in range(choices)]
    return [message] * choices


def chat_logprobs(tokens: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """``logprobs`` of a chat's choice; ``tokens`` are as ``eos`` lists them."""
    return {"content": [entry_of(token, token.get("top_logprobs")) for token in tokens]}


def text_logprobs(tokens: Sequence[dict[str, Any]], offset: int = 0) -> dict[str, Any]:
    """``logprobs`` of a completion's choice; ``offset`` characters went before."""
    offsets, texts = [], [str(token.get("text") or "") for token in tokens]
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [finite(token.get("logprob")) for token in tokens],
        "top_logprobs": [_by_text(token["top_logprobs"] or ()) for token in tokens],
        "text_offset": offsets,
    }


def _by_text(top: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Most likely first; of tokens with the same text the likeliest."""
    found: dict[str, float] = {}
    for each in top:
        found.setdefault(str(each["text"]), finite(each["logprob"]))
    return found


def prompt_logprobs(
    rated: Sequence[dict[str, Any]], tokens: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """The same of a prompt from its start on, and of the answer's ``tokens``: nothing is known of
    the first token."""
    told = text_logprobs([*rated, *tokens])
    told["token_logprobs"][:1] = told["top_logprobs"][:1] = [None]
    return told


def chosen_logprobs(body: dict[str, Any]) -> dict[str, Any]:
    """The socket's ``logprobs`` for a chat's ``logprobs`` and ``top_logprobs``."""
    wanted, top = body.get("logprobs"), body.get("top_logprobs")
    if wanted is None and body.get("n_probs"):
        return {"logprobs": body["n_probs"]}
    if wanted not in (None, True, False):
        raise wrong("logprobs", "be true or false")
    if top is not None and not wanted:
        raise wrong("top_logprobs", 'come with "logprobs": true')
    return {"logprobs": top or 0} if wanted else {}


class Chunks:
    """The common half of OpenAI's streams."""

    content_type = EVENT_STREAM
    ping = SSE_COMMENT

    def __init__(self, head: dict[str, Any], choices: int, with_usage: bool) -> None:
        self._head, self._start = head, b"data: " + encode(head)[:-1]
        self._choices, self._with_usage = choices, with_usage
        self._ends: dict[int, Event] = {}

    def begin(self) -> bytes:
        return b""

    def begun(self, number: int, begin: Event) -> None:
        if not self._head["model"]:  # it was not there yet when the request came
            self._head["model"] = begin.model
            self._start = b"data: " + encode(self._head)[:-1]

    def fail(self, refusal: Refusal) -> bytes:
        return b"data: " + encode(openai_error(refusal)) + b"\n\n"

    def end(self) -> bytes:
        if not self._with_usage:
            return DONE
        ends = [self._ends[number] for number in sorted(self._ends)]
        return self._chunk(b'"choices":[],"usage":' + encode(usage(ends, self._choices))) + DONE

    def _chunk(self, rest: bytes) -> bytes:
        return b"%b,%b}\n\n" % (self._start, rest)
