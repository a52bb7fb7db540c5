"""Answers that are what they are to be, whatever the weights are: real texts, or chains of tokens.

*Literal.*  Ours gets the answer as a regular expression, llama-server as a grammar: both allow no
other.  The tokens are the model's choice still: a token may be any beginning of what is left of the
text.  Random weights would cut it as no model does, so that no two copies of a line were the same
tokens.  A bias therefore favours the longest token, among those that the model's tokenizer makes of
the answer.

*Chain.*  The weights are those of ``tools/make_model.py --chain``: token t + 1 follows token t.  So
nothing has to bind the answer, on either side.  `woven` gives each token of the answer an id of its
own, and the prompt's tokens the ids of those that repeat them.  What repeats within the answer
alone is lost, so drafts are right less often than with the text itself.  No two answers of a run
have an id in common: nothing is known of a chain from one before.

What a token costs is real in both, and how often a draft is right follows from the text.
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
from benchmarks.repeated_texts import KEY, Text
from benchmarks.sides import SAMPLING, Marks, Ours, Theirs

LITERAL, CHAIN = "literal", "chain"
Ids = list[int]
Fields = dict[str, Any]
MOST_BIASES = 1024  # that a request may have
MARGIN = 4  # one token more in so many, as a bias may cut a text in other tokens
BIAS, MOST_BIAS = 20.0, 1000.0  # for each character of a token
# Of a chain, neither single bytes nor control tokens: ids that no answer has, and those of answers.
FILLERS, ANSWERS = range(1000, 40_000), range(40_000, 150_000)
_TEXT = re.compile(rb'"(?:text|content)":("(?:[^"\\]|\\.)*")')
_IDS = re.compile(rb'"(?:token_id":|tokens":\[)(\d+)')
_WHOLE = re.compile(rb"\}[\s0]*\Z")  # the last event; an empty chunk ends an answer over HTTP
_DRAFTED = re.compile(rb'"(?:draft_n|drafted_tokens)":(\d+)[,}]')
_ACCEPTED = re.compile(rb'"(?:draft_n_accepted|accepted_tokens)":(\d+)[,}]')


class Forced(NamedTuple):
    """A request for one answer: its fields on either side, and the answer, as text or as ids."""

    kind: str
    ours: Fields
    theirs: Fields
    said: str | Ids

    def has_said(self, data: bytes) -> bool:
        """Whether the bytes of all events say the answer.  llama-server keeps the id of a token to
        itself that is a part of a character."""
        if isinstance(self.said, str):
            return "".join(json.loads(part) for part in _TEXT.findall(data)) == self.said
        found = [int(token) for token in _IDS.findall(data)]
        return bool(found) and set(found) <= set(self.said)


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
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0


class Forcing:
    """Makes requests of texts, with the tokenizer of a daemon that has the model."""

    def __init__(self, path: str, how: str) -> None:
        self._path, self._how = path, how
        self._lengths: dict[int, int] = {}
        self._next = ANSWERS.start

    def all_of(self, texts: list[Text]) -> list[Forced]:
        """Requests that run together: their chains have no id in common."""
        with Client(self._path) as client:
            if self._how == LITERAL:
                return [self._literal(client, text) for text in texts]
            filler, out = FILLERS.start, []
            for text in texts:
                prompt, answer = (self._tokens(client, part) for part in (text.prompt, text.answer))
                out.append(chain(text.kind, *woven(prompt, answer, filler, self._next)))
                filler += len(prompt)
                self._next += len(answer) + 1
        if filler > FILLERS.stop or self._next > ANSWERS.stop:
            raise SystemExit(
                f"a chain has {len(ANSWERS)} ids for the answers of all rounds and {len(FILLERS)} "
                "for prompts that run together: choose fewer --rounds, --words or --streams, or a "
                "shorter --answer"
            )
        return out

    def _literal(self, client: Client, text: Text) -> Forced:
        found = self._tokens(client, text.answer)
        for token in set(found) - set(self._lengths):
            shown = client.call(type="detokenize", tokens=[token])["text"]
            self._lengths[token] = len(shown)
        longest_first = sorted(set(found), key=lambda token: (-self._lengths[token], token))
        pairs = [[t, min(MOST_BIAS, BIAS * self._lengths[t])] for t in longest_first]
        both = {"prompt": text.prompt, "logit_bias": pairs[:MOST_BIASES]}
        most = len(found) + len(found) // MARGIN + MARGIN
        return Forced(
            text.kind,
            {**both, "regex": re.escape(text.answer), "max_tokens": most},
            {**both, "grammar": grammar(text.answer), "n_predict": most},
            text.answer,
        )

    @staticmethod
    def _tokens(client: Client, text: str) -> Ids:
        return client.call(type="tokenize", text=text, add_special=False)["tokens"]


def grammar(text: str) -> str:
    """The grammar (GBNF) of one ASCII text."""
    return f"root ::= {json.dumps(text)}"  # both escape alike what these texts have


def chain(kind: str, prompt: Ids, answer: Ids) -> Forced:
    """The request whose answer follows from its prompt's last token."""
    both = {"ignore_eos": True}
    ours = {**both, "tokens": prompt, "max_tokens": len(answer)}
    theirs = {**both, "prompt": prompt, "n_predict": len(answer), "return_tokens": True}
    return Forced(kind, ours, theirs, answer)


def woven(prompt: Ids, answer: Ids, filler: int, first: int) -> tuple[Ids, Ids]:
    """Prompt and answer in other ids, each once in either of them.

    The prompt's last id is ``first``, and the answer's follow it.  A token of the prompt has the id
    of the answer's token that repeats it: both follow ``KEY`` tokens that are alike, and a token of
    the prompt is repeated once.  The prompt's other ids are from ``filler`` on.
    """
    own = [first + 1 + j for j in range(len(answer))]
    ids = [filler + p for p in range(len(prompt))]
    is_taken, is_given = [False] * len(prompt), [False] * len(answer)
    behind = {tuple(prompt[p - KEY : p]): p for p in range(KEY, len(prompt))}
    at = -1
    for j, token in enumerate(answer):
        if at < 0 or at == len(prompt) or is_taken[at] or prompt[at] != token:
            at = behind.get(tuple(answer[j - KEY : j]), -1) if j >= KEY else -1
            if at < 0 or is_taken[at] or prompt[at] != token:
                at = -1
                continue
            for back in range(1, KEY + 1):
                if not is_taken[at - back] and not is_given[j - back]:
                    ids[at - back] = own[j - back]
                    is_taken[at - back] = is_given[j - back] = True
        ids[at], is_taken[at], is_given[j] = own[j], True, True
        at += 1
    return [*ids[:-1], first], own


def ours(side: Ours, name: str, lane: str, speculate: bool) -> Way:
    """Nothing is kept of a prompt: no answer then profits from another that was the same."""
    common = {"id": "s", "cache_prompt": False, "priority": lane, "speculate": speculate}

    def request(forced: Forced) -> bytes:
        return streams.frame({**common, **forced.ours, **SAMPLING})

    return Way(name, side.connect, request, side.marks)


def theirs(side: Theirs, name: str) -> Way:
    common = {"stream": True, "cache_prompt": False}

    def request(forced: Forced) -> bytes:
        return streams.http_post("/completion", {**common, **forced.theirs, **SAMPLING})

    return Way(name, side.connect, request, side.marks)


async def ask(way: Way, forced: Forced) -> Heard:
    """One answer.  Raises RequestFailed where it is not what it is to be."""
    marks, request = way.marks, way.request(forced)
    heard = Heard(forced.kind, time.perf_counter())
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
    if not forced.has_said(data):
        raise RequestFailed(f"{way.name} did not say {forced.said!r}: {data[-300:]!r}")
    heard.tokens = len(forced.said) if isinstance(forced.said, list) else len(heard.times_s)
    heard.drafted, heard.accepted = _number(_DRAFTED, data, at), _number(_ACCEPTED, data, at)
    return heard


def _number(pattern: re.Pattern[bytes], data: bytes, at: int) -> int:
    found = pattern.search(data, at)
    return int(found[1]) if found else 0
