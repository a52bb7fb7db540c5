"""Bytes that are nearly HTTP: valid requests, cut, doubled, garbled, contradicting themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

HOST = b"Host: localhost\r\n"


def posted(path: str, body: object, *, chunked: int = 0) -> bytes:
    """A request with a body, in one piece or in chunks of so many bytes."""
    data = json.dumps(body).encode()
    head = b"POST %b HTTP/1.1\r\n%bContent-Type: application/json\r\n" % (path.encode(), HOST)
    if not chunked:
        return head + b"Content-Length: %d\r\n\r\n%b" % (len(data), data)
    parts = [data[at : at + chunked] for at in range(0, len(data), chunked)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


CHAT = {"messages": [{"role": "user", "content": "hi \u00e9\U0001f600"}], "max_tokens": 3}
TEXT = {"prompt": ["a", "b"], "max_tokens": 2, "logprobs": 2, "echo": False, "n": 2}
VALID = (
    b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /metrics HTTP/1.1\r\n" + HOST + b"Accept: text/plain\r\n\r\n",
    b"HEAD /v1/models HTTP/1.1\r\n" + HOST + b"Connection: keep-alive\r\n\r\n",
    b"OPTIONS /generate HTTP/1.1\r\n" + HOST + b"Origin: http://localhost\r\n"
    b"Access-Control-Request-Method: POST\r\n\r\n",
    b"GET /openapi.json HTTP/1.0\r\n\r\n",
    b"GET http://localhost/slots?x=%ff&y HTTP/1.1\r\n" + HOST + b"\r\n",
    posted("/v1/chat/completions", CHAT),
    posted("/v1/chat/completions", {**CHAT, "stream": True}, chunked=7),
    posted("/v1/completions", TEXT),
    posted("/v1/responses", {"input": "hi", "stream": True}, chunked=1),
    posted("/v1/messages?beta=true", {**CHAT, "stream": True}),
    posted("/api/chat", {**CHAT, "options": {"num_predict": 2}}),
    posted("/completion", {"prompt": [1, 2, 3], "n_predict": 2}),
    posted("/tokenize", {"content": "\u0000\u2028"}),
    posted("/generate", {"prompt": "x", "id": "a", "max_tokens": 2}).replace(
        HOST, HOST + b"Expect: 100-continue\r\n"
    ),
)
# headers that say where a body ends, or how many requests these bytes are
LINES = (
    b"Content-Length: 0", b"Content-Length: 5", b"Content-Length: 5, 5", b"Content-Length: +5",
    b"Content-Length: -1", b"Content-Length: 0x5", b"Content-Length: 99999999999999999999",
    b"Content-Length : 5", b"Content-Length: \x0b5", b" Content-Length: 5",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding : chunked", b"Transfer-Encoding:\x0bchunked", b"Transfer-Encoding: cHuNkEd",
    b"Connection: close", b"Connection: keep-alive, close", b"Connection: upgrade\r\nUpgrade: h2c",
    b"Upgrade: websocket", b"Expect: 100-continue", b"Expect: \xff", b"Host: evil.example",
    b"Host:", b"Origin: http://evil.example", b"Origin: \xff\xfe", b"X-UMA-App: \xe9\x01",
    b"X: " + b"y" * 9000,
    b"X-UMA-Session: " + b"s" * 5000, b"X-UMA-Priority: urgent", b"Authorization: Bearer \xff",
    b"Accept: */*;q=\xff", b"A: b\r\n c: folded", b"no colon", b": no name", b"\x00: zero",
)  # fmt: skip
BYTES = (
    b"\xff\xfe", b"\x00", b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"0\r\n\r\n", b"ffffffffffffffff\r\n",
    b"-1\r\n", b"1;ext=\"\xff\"\r\n", b"\xc3(", b"\xed\xa0\x80", b"{" * 5000, b"[" * 5000,
    b'"\\ud800"', b"1e999", b"%", b"%00", b"/../", b"HTTP/2.0", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",
)  # fmt: skip


def _place(data: bytes, random: Random) -> int:
    return random.randrange(len(data) + 1)


def _cut(data: bytes, random: Random) -> bytes:
    return data[: _place(data, random)]


def _drop(data: bytes, random: Random) -> bytes:
    first, last = sorted((_place(data, random), _place(data, random)))
    return data[:first] + data[last:]


def _double(data: bytes, random: Random) -> bytes:
    first, last = sorted((_place(data, random), _place(data, random)))
    return data[:last] + data[first:]


def _garble(data: bytes, random: Random) -> bytes:
    out = bytearray(data)
    for _ in range(random.randrange(1, 5)):
        if out:
            out[random.randrange(len(out))] = random.randrange(256)
    return bytes(out)


def _insert(data: bytes, random: Random) -> bytes:
    at = _place(data, random)
    return data[:at] + random.choice(BYTES) * random.choice((1, 1, 1, 3)) + data[at:]


def _line(data: bytes, random: Random) -> bytes:
    lines = data.split(b"\r\n")
    lines.insert(random.randrange(1, 4), random.choice(LINES))
    return b"\r\n".join(lines)


def _many_lines(data: bytes, random: Random) -> bytes:
    head, _, rest = data.partition(b"\r\n")
    return head + b"\r\n" + b"a: b\r\n" * random.choice((50, 3000)) + rest


def _next(data: bytes, random: Random) -> bytes:
    return data + random.choice(VALID)


MUTATIONS: tuple[Callable[[bytes, Random], bytes], ...] = (
    _cut, _drop, _double, _garble, _insert, _insert, _line, _line, _line, _many_lines, _next, _next,
)  # fmt: skip


def mutant(random: Random) -> bytes:
    """Not more than 200 kB."""
    data = random.choice(VALID)
    for _ in range(random.randrange(1, 5)):
        data = random.choice(MUTATIONS)(data, random)
    return data[:200_000]


def pieces(data: bytes, random: Random) -> list[bytes]:
    """The same bytes in a few parts."""
    cuts = sorted(_place(data, random) for _ in range(random.randrange(4)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
