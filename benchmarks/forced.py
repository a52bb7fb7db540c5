"""Answers that are forced to be a given text, whatever the weights are.

Ours gets the text as a regular expression, llama-server as a grammar: both allow no other answer.
The tokens are the model's choice still: a token may be any beginning of what is left of the text.
Random weights would cut it as no model does, so that no two copies of a line were the same tokens.
A bias therefore favours the longest token, among those that the model's tokenizer makes of the
answer.  What a token costs is real, and how often a draft is right follows from the text alone.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import trio

from benchmarks import streams
from benchmarks.daemon import Client
from benchmarks.load import RequestFailed
from benchmarks.repeated_texts import Text
from benchmarks.sides import SAMPLING, Marks, Ours, Theirs

MOST_BIASES = 1024  # that a request may have
BIAS, MOST_BIAS = 20.0, 1000.0  # for each character of a token
_TEXT = re.compile(rb'"(?:text|content)":("(?:[^"\\]|\\.)*")')
_WHOLE = re.compile(rb"\}[\s0]*\Z")  # the last event; an empty chunk ends an answer over HTTP
_DRAFTED = re.compile(rb'"draft_n":(\d+)[,}]')
_ACCEPTED = re.compile(rb'"draft_n_accepted":(\d+)[,}]')


class Forced(NamedTuple):
    """A text, and the bias of a request: [token, bias] pairs."""

    text: Text
    bias: list[list[float]]


class Way(NamedTuple):
    """A way to ask: ``connect`` opens a connection, ``request`` makes its bytes."""

    name: str
    connect: Callable[[], Awaitable[trio.SocketStream]]
    request: Callable[[Forced], bytes]
    marks: Marks


@dataclass
class Heard:
    """An answer: when its tokens came (``perf_counter`` seconds), and its drafts as told."""

    kind: str
    sent_s: float
    times_s: list[float] = field(default_factory=list)
    end_s: float = 0.0
    drafted: int = 0
    accepted: int = 0


class Biases:
    """The biases of texts, by a daemon that has the model."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lengths: dict[int, int] = {}

    def of(self, text: Text) -> Forced:
        with Client(self._path) as client:
            found = client.call(type="tokenize", text=text.answer, add_special=False)["tokens"]
            for token in set(found) - set(self._lengths):
                shown = client.call(type="detokenize", tokens=[token])["text"]
                self._lengths[token] = len(shown)
        longest_first = sorted(set(found), key=lambda token: (-self._lengths[token], token))
        pairs = [[t, min(MOST_BIAS, BIAS * self._lengths[t])] for t in longest_first]
        return Forced(text, pairs[:MOST_BIASES])


def ours(side: Ours, name: str, lane: str, speculate: bool) -> Way:
    """Nothing is kept of a prompt: no answer then profits from another that was the same."""

    def request(forced: Forced) -> bytes:
        text = forced.text
        fields: dict[str, Any] = {"id": "s", "prompt": text.prompt, "regex": re.escape(text.answer)}
        fields |= {"max_tokens": _most(text), "logit_bias": forced.bias, "cache_prompt": False}
        return streams.frame({**fields, "priority": lane, "speculate": speculate, **SAMPLING})

    return Way(name, side.connect, request, side.marks)


def theirs(side: Theirs, name: str) -> Way:
    def request(forced: Forced) -> bytes:
        text = forced.text
        fields: dict[str, Any] = {"prompt": text.prompt, "grammar": literal(text.answer)}
        fields |= {"n_predict": _most(text), "logit_bias": forced.bias, "cache_prompt": False}
        return streams.http_post("/completion", {**fields, "stream": True, **SAMPLING})

    return Way(name, side.connect, request, side.marks)


def literal(text: str) -> str:
    """The grammar (GBNF) of one ASCII text."""
    # JSON escapes what a grammar has to have escaped, and more in a way that it knows not
    return f"root ::= {json.dumps(text)}"


def _most(text: Text) -> int:
    """Tokens that the answer has at most, its end counted."""
    return len(text.answer) + 1


async def ask(way: Way, forced: Forced) -> Heard:
    """One answer.  Raises RequestFailed where it is not the text."""
    marks, text = way.marks, forced.text
    request = way.request(forced)
    heard = Heard(text.kind, time.perf_counter())
    data, at, ended = b"", 0, False
    overlap = max(len(marks.token), len(marks.end), len(marks.error)) - 1
    async with await way.connect() as stream:
        await stream.send_all(request)
        while not (ended and _WHOLE.search(data, at)):
            new = bytes(await stream.receive_some(1 << 16))
            now = time.perf_counter()
            seen, data = max(len(data) - overlap, 0), data + new
            if not new or data.find(marks.error, seen) >= 0:
                raise RequestFailed(f"{way.name}: {data[-600:].decode(errors='replace')}")
            if ended:
                continue
            before = data.count(marks.token, seen, len(data) - len(new))
            arrived = data.count(marks.token, seen) - before
            if (end := data.find(marks.end, seen)) >= 0:
                ended, at, heard.end_s = True, end, now
                arrived -= marks.events_without_token
            heard.times_s += [now] * max(arrived, 0)
    said = "".join(json.loads(part) for part in _TEXT.findall(data))
    if said != text.answer:
        raise RequestFailed(f"{way.name} said {said[-200:]!r}, not {text.answer[-200:]!r}")
    heard.drafted, heard.accepted = _number(_DRAFTED, data, at), _number(_ACCEPTED, data, at)
    return heard


def _number(pattern: re.Pattern[bytes], data: bytes, at: int) -> int:
    found = pattern.search(data, at)
    return int(found[1]) if found else 0
