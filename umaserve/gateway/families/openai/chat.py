"""``/v1/chat/completions``."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from umaserve.gateway.daemon.event import Event
from umaserve.gateway.daemon.link import link_of
from umaserve.gateway.daemon.refusal import encode
from umaserve.gateway.families.openai import shapes
from umaserve.gateway.translate.answers.answering import answer, json_response
from umaserve.gateway.translate.answers.parts import Piece, Pieces, answer_of
from umaserve.gateway.translate.answers.rated import token_of
from umaserve.gateway.translate.answers.timings import progress_fields
from umaserve.gateway.translate.body import read_object, whole_of
from umaserve.gateway.translate.caller import caller_fields
from umaserve.gateway.translate.endpoint import Endpoint
from umaserve.gateway.translate.messages import chat_fields, chat_messages
from umaserve.gateway.translate.model import read_request
from umaserve.gateway.translate.prompts import count_of
from umaserve.gateway.translate.sampling import MAX_CHOICES, most_tokens, settings_fields, several
from umaserve.gateway.translate.schemas import AT_LEAST_1, CHAT, FLAG, SOCKET


async def chat_completions(request: Request) -> Response:
    """A conversation's next message, ``n`` times."""
    body = await read_request(request)
    message = {
        "messages": chat_messages(body),
        **settings_fields(body),
        **most_tokens(body, "max_completion_tokens", "max_tokens", "n_predict"),
        **shapes.chosen_logprobs(body),
        **chat_fields(body),
        "deltas": body.get("reasoning_format") != "none",
        **progress_fields(body),
        **shapes.metadata_field(body.get("metadata")),
        **caller_fields(request, body),
    }
    choices = whole_of(body, "n", 1, 1, MAX_CHOICES)
    chunks = _ChatChunks(body, choices, "logprobs" in message)
    return await answer(request, body, several([message], choices), chunks)


async def input_tokens(request: Request) -> Response:
    """How many tokens the model would read."""
    body = await read_object(request)
    fields = {"messages": chat_messages(body), **chat_fields(body)}
    return json_response(shapes.COUNTED | await count_of(link_of(request), fields))


class _ChatChunks(shapes.Chunks):
    """``chat.completion`` and ``chat.completion.chunk`` objects."""

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl-"
    nothing = b'"delta":{},"finish_reason":null'

    def __init__(self, body: dict[str, Any], choices: int, with_logprobs: bool) -> None:
        super().__init__(body, choices)
        self._with_logprobs = with_logprobs
        self._pieces = [Pieces() for _ in range(choices)]
        self._tokens: list[list[dict[str, Any]]] = [[] for _ in range(choices)]
        self._begun = [False] * choices

    def choice(self, number: int, end: Event) -> dict[str, Any]:
        said, reason = answer_of(end), shapes.finish_reason(end)
        # a cut call is told as OpenAI does it, where the reason says that it is cut
        calls = said.calls if reason == "length" else said.whole_calls
        message: dict[str, Any] = {"role": "assistant", "content": said.text}
        if said.reasoning:
            message["reasoning_content"] = said.reasoning
        if calls:
            message["content"] = said.text or None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in calls
            ]
        logprobs = shapes.chat_logprobs(end.logprobs) if end.logprobs is not None else None
        return {"index": number, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def begun(self, number: int, begin: Event) -> None:
        super().begun(number, begin)
        self._pieces[number].takes_deltas = begin.deltas

    def feed(self, number: int, event: Event) -> bytes:
        out = b"" if self._begun[number] else self._first(number)
        out += self._timed(number, event)
        if event.event in ("begin", "progress"):
            return out
        if event.event == "token" and self._with_logprobs:
            self._tokens[number].append(token_of(event))
        piece = self._pieces[number].of(event)
        if piece or (self._with_logprobs and self._tokens[number] and event.event != "delta"):
            out += self._delta(number, piece)
        if event.event == "eos":
            out += self._choice(number, {}, shapes.finish_reason(event), event)
        return out

    def _first(self, number: int) -> bytes:
        self._begun[number] = True
        delta = {"role": "assistant", "content": ""}
        choice = {"index": number, "delta": delta, "finish_reason": None}
        return self._chunk(b'"choices":[%b]' % encode(choice))

    def _delta(self, number: int, piece: Piece) -> bytes:
        delta: dict[str, Any] = {}
        if piece.text or (not piece and self._with_logprobs):
            delta["content"] = piece.text
        if piece.reasoning:
            delta["reasoning_content"] = piece.reasoning
        if piece.calls:
            delta["tool_calls"] = [_call_delta(call) for call in piece.calls]
        return self._choice(number, delta, None)

    def _choice(
        self, number: int, delta: dict[str, Any], reason: str | None, end: Event | None = None
    ) -> bytes:
        choice: dict[str, Any] = {"index": number, "delta": delta, "finish_reason": reason}
        if self._with_logprobs and self._tokens[number]:
            choice["logprobs"] = shapes.chat_logprobs(self._tokens[number])
            self._tokens[number] = []
        return self._chunk(b'"choices":[%b]%b' % (encode(choice), self._tail(number, end)))


def _call_delta(call: dict[str, Any]) -> dict[str, Any]:
    """Return the new part of a tool call; its id and name come once."""
    function = {name: call[name] for name in ("name", "arguments") if call.get(name) is not None}
    out: dict[str, Any] = {"index": call.get("index", 0)}
    if call.get("id"):
        out |= {"id": call["id"], "type": "function"}
    return {**out, "function": function}


_FIELDS = {
    **shapes.FIELDS,
    **CHAT,
    "max_tokens": AT_LEAST_1,
    "max_completion_tokens": AT_LEAST_1,
    "logprobs": FLAG,
    "top_logprobs": SOCKET["logprobs"],
}
ENDPOINTS = tuple(
    Endpoint(
        "POST", start + "/chat/completions" + end, handler, summary, "OpenAI", _FIELDS,
        ("messages",),
    )
    for start in ("/v1", "")
    for end, handler, summary in (
        ("", chat_completions, "a conversation's next message"),
        ("/input_tokens", input_tokens, "tokens of a conversation"),
    )
)  # fmt: skip
