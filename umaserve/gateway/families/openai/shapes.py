"""Shapes that OpenAI's routes share: the ends of answers, their usage, log-probabilities."""

from __future__ import annotations

import abc
import os
import time
from collections.abc import Sequence
from typing import Any

import umaserve
from umaserve.gateway.daemon.event import Event
from umaserve.gateway.daemon.refusal import Refusal, encode, openai_error, wrong
from umaserve.gateway.translate.answers.answering import Translator, sse
from umaserve.gateway.translate.answers.parts import unread_field
from umaserve.gateway.translate.answers.rated import entry_of, finite, own_text
from umaserve.gateway.translate.answers.timings import Progress, timings
from umaserve.gateway.translate.body import object_of
from umaserve.gateway.translate.sampling import MAX_CHOICES, n_probs
from umaserve.gateway.translate.schemas import ASKED, FLAG, PROGRESS, SOCKET, of_socket

COUNTED = {"object": "response.input_tokens"}  # an answer that counts tokens
# fields that chat and completions share
FIELDS = {
    **ASKED,
    **PROGRESS,
    **of_socket("metadata"),
    "stream_options": {"type": "object", "properties": {"include_usage": FLAG}},
    "n": {"type": "integer", "minimum": 1, "maximum": MAX_CHOICES},
    "n_predict": {"type": "integer", "minimum": -1},
    "n_probs": SOCKET["logprobs"],
}
DONE = b"data: [DONE]\n\n"
FINGERPRINT = f"umaserve-{umaserve.__version__}"
_FINISH = {"length": "length", "tool_calls": "tool_calls"}


def _head(model: str, kind: str, prefix: str) -> dict[str, Any]:
    """The fields that all objects of one answer begin with."""
    return {
        "id": prefix + os.urandom(12).hex(),
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": FINGERPRINT,
    }


def finish_reason(event: Event) -> str:
    """Why it ended, in OpenAI's words; a request that somebody cancelled was stopped."""
    return _FINISH.get(event.reason, "stop")


def usage(ends: Sequence[Event], choices: int = 1) -> dict[str, Any]:
    """Token counts of all requests together; a prompt with several answers counts once."""
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


def chat_logprobs(tokens: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """``logprobs`` of a chat's choice; ``tokens`` are as ``eos`` lists them.

    Entries have the token's id as well, as llama-server's do.
    """
    content = []
    for token in tokens:
        top = [_with_id(each) for each in token.get("top_logprobs") or ()]
        content.append(_with_id(token) | {"top_logprobs": top})
    return {"content": content}


def _with_id(token: dict[str, Any]) -> dict[str, Any]:
    return {"id": token["token_id"], **entry_of(token)}


def text_logprobs(tokens: Sequence[dict[str, Any]], offset: int = 0) -> dict[str, Any]:
    """``logprobs`` of a completion's choice; ``offset`` characters went before."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token["text"] or "")
    return {
        "tokens": [_key(token) for token in tokens],
        "token_logprobs": [finite(token.get("logprob")) for token in tokens],
        "top_logprobs": [_by_text(token["top_logprobs"] or ()) for token in tokens],
        "text_offset": offsets,
    }


def _by_text(top: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Most likely first; a token with the text of a likelier one is told by its id."""
    found: dict[str, float] = {}
    for each in top:
        key = _key(each)
        found[f"token_id:{each['token_id']}" if key in found else key] = finite(each["logprob"])
    return found


def _key(entry: dict[str, Any]) -> str:
    """A token's text; OpenAI's completions mark escapes of bytes that are no whole characters."""
    return own_text(entry, "bytes:")


def prompt_logprobs(
    rated: Sequence[dict[str, Any]], tokens: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """``logprobs`` of a completion with its whole prompt: ``rated``, then the answer's ``tokens``.

    The first token's log-probability and alternatives are ``None``: unknown.
    """
    told = text_logprobs([*rated, *tokens])
    told["token_logprobs"][:1] = told["top_logprobs"][:1] = [None]
    return told


def chosen_logprobs(body: dict[str, Any]) -> dict[str, Any]:
    """The socket's ``logprobs`` for a chat's ``logprobs`` and ``top_logprobs``."""
    wanted, top = body.get("logprobs"), body.get("top_logprobs")
    if wanted is None and body.get("n_probs"):
        return {"logprobs": n_probs(body)}
    if wanted not in (None, True, False):
        raise wrong("logprobs", "be true or false")
    if top and not wanted:
        raise wrong("top_logprobs", 'come with "logprobs": true')
    return {"logprobs": top or 0} if wanted else {}


def metadata_field(value: Any) -> dict[str, Any]:
    """Return the field for the request's metadata, which its answer echoes; empty without."""
    return {} if value is None else {"metadata": value}


class Chunks(Translator):
    """The common half of OpenAI's answers with ``choices``.  ``body`` has its ``model``."""

    kind, chunk_kind, prefix = "", "", ""  # names of an answer and of its parts, and of their ids
    nothing = b""  # the fields of a choice that adds nothing

    def __init__(self, body: dict[str, Any], choices: int) -> None:
        self._body, self._choices = body, choices
        self._ends: dict[int, Event] = {}

    @abc.abstractmethod
    def choice(self, number: int, end: Event) -> dict[str, Any]:
        """Return a whole choice."""

    def whole(self, ends: list[Event]) -> Any:
        return {
            **_head(self._body["model"] or ends[0].model, self.kind, self.prefix),
            "choices": [self.choice(number, end) for number, end in enumerate(ends)],
            "usage": usage(ends, self._choices),
            **unread_field(*ends),
            **metadata_field(ends[0].metadata),
            "timings": timings(ends[0]),
        }

    def begin(self) -> bytes:
        self._head = _head(self._body["model"], self.chunk_kind, self.prefix)
        self._start = b"data: " + encode(self._head)[:-1]
        self._with_usage = object_of(self._body, "stream_options").get("include_usage") is True
        self._progress = Progress(self._body)
        return b""

    def begun(self, number: int, begin: Event) -> None:
        if not self._head["model"]:  # it was not there yet when the request came
            self._head["model"] = begin.model
            self._start = b"data: " + encode(self._head)[:-1]
        self._progress.begun(number, begin)

    def _timed(self, number: int, event: Event) -> bytes:
        """Count an event; how far the prompt is goes before its own chunks."""
        told = self._progress.of_prompt(number, event)
        if not told:
            return b""
        choice = b'"choices":[{"index":%d,%b}],' % (number, self.nothing)
        return self._chunk(choice + encode(told)[1:-1])

    def _tail(self, number: int, end: Event | None = None) -> bytes:
        """The fields behind a choice: ``timings`` where asked for, and what the end tells."""
        if end is None:
            told = self._progress.timings(number)
        else:
            self._ends[number] = end
            told = {} if self._with_usage else {"timings": timings(end)}
            told |= unread_field(end) | metadata_field(end.metadata)
        return b"," + encode(told)[1:-1] if told else b""

    def fail(self, refusal: Refusal) -> bytes:
        return sse(openai_error(refusal))

    def end(self) -> bytes:
        if not self._with_usage:
            return DONE
        ends = [self._ends[number] for number in sorted(self._ends)]
        told = b'"choices":[],"usage":' + encode(usage(ends, self._choices))
        return self._chunk(told + b',"timings":' + encode(timings(ends[0]))) + DONE

    def _chunk(self, rest: bytes) -> bytes:
        return b"%b,%b}\n\n" % (self._start, rest)
