"""Requests as programs send them, whose prompts repeat: what `benchmarks.cache` plays.

A prompt is a list of token ids, and the answer's ids go into the next one: both servers get prompts
of the same lengths.  Answers are sampled from a few words, each a token: every token then comes as
whole text, and nothing is lost where a server holds half a character back.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import trio

from benchmarks import streams
from benchmarks.daemon import Client
from benchmarks.sides import SAMPLING, Marks, Ours
from umaserve.bench.prompts import WORDS, Prompts

Ids = list[int]
ANSWER_WORDS, BIAS = 64, 100.0
SOCKET_IDS, HTTP_IDS = re.compile(rb'"token_id":(\d+)'), re.compile(rb'"tokens":\[(\d+)\]')
HTTP_CACHED = re.compile(rb'"cache_n":(\d+)[,}]')


@dataclass
class Answer:
    """One request: what was sent and said (token ids), and when (``perf_counter`` seconds).

    ``step`` is its place in the trace; ``computed`` and ``cached`` are of the prompt, as the server
    counts them.
    """

    step: str
    prompt: Ids
    sent_s: float
    first_s: float = 0.0
    end_s: float = 0.0
    ids: Ids = field(default_factory=list)
    computed: int = 0
    cached: int = 0


class Target(NamedTuple):
    """How a server is asked: ``connect`` opens a connection, ``request`` makes the bytes."""

    connect: Callable[[], Awaitable[trio.SocketStream]]
    request: Callable[[Ids, int], bytes]
    marks: Marks
    ids: re.Pattern[bytes]
    cached: re.Pattern[bytes]
    cached_within: bool  # whether what is counted as prompt tokens has the cached ones too


def over_socket(side: Ours, bias: list[list[float]]) -> Target:
    def request(prompt: Ids, n: int) -> bytes:
        fields: dict[str, Any] = {"id": "s", "tokens": prompt, "max_tokens": n}
        return streams.frame({**fields, "ignore_eos": True, "logit_bias": bias, **SAMPLING})

    cached = side.marks.cached
    assert cached is not None
    return Target(side.connect, request, side.marks, SOCKET_IDS, cached, True)


def over_http(port: int, marks: Marks, bias: list[list[float]]) -> Target:
    async def connect() -> trio.SocketStream:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return stream

    def request(prompt: Ids, n: int) -> bytes:
        fields: dict[str, Any] = {"prompt": prompt, "n_predict": n, "stream": True}
        more = {"ignore_eos": True, "return_tokens": True, "logit_bias": bias, **SAMPLING}
        return streams.http_post("/completion", {**fields, **more})

    return Target(connect, request, marks, HTTP_IDS, HTTP_CACHED, False)


class Asker:
    """Asks one server, and notes every answer."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.answers: list[Answer] = []

    async def ask(self, step: str, prompt: Ids, n: int) -> Ids:
        """The ``n`` tokens of an answer.  Raises RuntimeError where they are not as many."""
        target, marks = self._target, self._target.marks
        answer = Answer(step, list(prompt), time.perf_counter())
        self.answers.append(answer)
        data = b""
        async with await target.connect() as stream:
            await stream.send_all(target.request(prompt, n))
            while True:
                new = bytes(await stream.receive_some(1 << 16))
                at, data = max(len(data) - 64, 0), data + new
                if not new or marks.error in data[at:]:
                    raise RuntimeError(f"a request ended early: {data[-400:]!r}")
                if not answer.first_s and marks.token in data[at:]:
                    answer.first_s = time.perf_counter()
                end = data.find(marks.end, at)
                if end >= 0:
                    answer.end_s = time.perf_counter()
                    while not self._counted(answer, data[end:]):
                        more = bytes(await stream.receive_some(1 << 16))
                        if not more:
                            raise RuntimeError(f"no counts at the end: {data[end:]!r}")
                        data += more
                    break
        answer.ids = [int(found) for found in target.ids.findall(data)]
        if len(answer.ids) != n:
            raise RuntimeError(f"an answer has {len(answer.ids)} tokens, not {n}: {data[-400:]!r}")
        return answer.ids

    def _counted(self, answer: Answer, end: bytes) -> bool:
        prompt, cached = self._target.marks.computed.search(end), self._target.cached.search(end)
        if prompt is None or cached is None:
            return False
        answer.cached = int(cached[1])
        answer.computed = int(prompt[1]) - (answer.cached if self._target.cached_within else 0)
        return True


class Words:
    """Random texts as token ids, each unlike all others from its first word on."""

    def __init__(self, path: str, seed: int) -> None:
        """``path``: the socket of a daemon that has the model."""
        self._documents, self._path = Prompts(seed), path

    def ids(self, words: int) -> Ids:
        return self.tokens(self._documents.words(words) + "\n")

    def tokens(self, text: str) -> Ids:
        with Client(self._path) as client:
            return client.call(type="tokenize", text=text, add_special=False)["tokens"]

    def answers(self) -> list[list[float]]:
        """The bias that leaves an answer a few words, as both servers take it."""
        found = self.tokens(" ".join(WORDS))
        return [[token, BIAS] for token in sorted(set(found))[:ANSWER_WORDS]]


class Sizes(NamedTuple):
    """Words and tokens of the traces."""

    agents: int
    words: int  # that all agents share
    turns: int
    answer: int = 32
    own: int = 40  # words of a turn
    chat_turns: int = 10
    file_tokens: int = 1500
    moves: int = 12
    move: int = 20
    reach: int = 2  # moves from the middle, either way
    completion: int = 16
    long_turns: int = 5  # before the compaction
    long_words: int = 150
    summary: int = 96
    turns_after: int = 3


Play = Callable[[Asker], Awaitable[None]]


async def talk(
    asker: Asker, prompt: Ids, turns: list[Ids], n: int, step: Callable[[int], str]
) -> None:
    """Turn by turn, each with all that was said before; ``prompt`` grows."""
    for i, said in enumerate(turns):
        prompt += said
        prompt += await asker.ask(step(i), prompt, n)


def turn(i: int) -> str:
    return f"turn {i + 1}"


def agents(words: Words, sizes: Sizes) -> Play:
    """Several at once with the same system prompt, each with its own turns."""
    system = words.ids(sizes.words)
    said = [[words.ids(sizes.own) for _ in range(sizes.turns)] for _ in range(sizes.agents)]

    async def play(asker: Asker) -> None:
        async with trio.open_nursery() as nursery:
            for turns in said:
                nursery.start_soon(talk, asker, [*system], turns, sizes.answer, turn)

    return play


def chat(words: Words, sizes: Sizes) -> Play:
    """One conversation."""
    system = words.ids(sizes.words)
    turns = [words.ids(sizes.own) for _ in range(sizes.chat_turns)]

    async def play(asker: Asker) -> None:
        await talk(asker, [*system], turns, sizes.answer, lambda i: LATER if i else FIRST)

    return play


def file(words: Words, sizes: Sizes) -> Play:
    """Completions at a cursor that moves back and forth: what stands before it is the prompt."""
    most = sizes.file_tokens + sizes.reach * sizes.move
    text: Ids = []
    while len(text) < most:
        text += words.ids(200)
    places = list(_back_and_forth(sizes.moves, sizes.reach))

    async def play(asker: Asker) -> None:
        for i, place in enumerate(places):
            prompt = text[: sizes.file_tokens + place * sizes.move]
            await asker.ask(LATER if i else FIRST, prompt, sizes.completion)

    return play


def _back_and_forth(count: int, reach: int) -> Iterator[int]:
    """0, 1, .. reach, .. 0, -1, .. -reach, .. and again."""
    place, way = 0, 1
    for _ in range(count):
        yield place
        if abs(place + way) > reach:
            way = -way
        place += way


def compaction(words: Words, sizes: Sizes) -> Play:
    """A long chat, a summary of it, and a chat that goes on from system prompt and summary."""
    system, wish = words.ids(sizes.words), words.ids(sizes.own)
    before = [words.ids(sizes.long_words) for _ in range(sizes.long_turns)]
    after = [words.ids(sizes.own) for _ in range(sizes.turns_after)]

    async def play(asker: Asker) -> None:
        past = [*system]
        await talk(asker, past, before, sizes.answer, lambda i: LATER if i else FIRST)
        summary = await asker.ask(SUMMARY, past + wish, sizes.summary)
        past = system + summary
        await talk(asker, past, after, sizes.answer, lambda i: "later on" if i else AFTER)

    return play


FIRST, LATER, SUMMARY, AFTER = "first", "later", "summary", "after it"
TRACES: dict[str, Callable[[Words, Sizes], Play]] = {
    "agents": agents, "chat": chat, "file": file, "compaction": compaction,
}  # fmt: skip


def new_tokens(answer: Answer, answers: list[Answer]) -> int:
    """Of its prompt: those that no answered request had at the same place, in prompt or answer."""
    known = 0
    for past in answers:
        if past.end_s <= answer.sent_s:
            known = max(known, _common(past.prompt + past.ids, answer.prompt))
    return len(answer.prompt) - known


def _common(a: Ids, b: Ids) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
