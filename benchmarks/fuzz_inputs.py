"""Hostile inputs for both doors: the same seed makes the same bytes, and the same end.

They are messages and requests of every kind, with wrong values in any place, in frames and heads
that may lie, sent slowly or at once, by clients that read, leave or close half of the connection.
None of them loads or unloads a model, or names another's request by its ``serial``: the daemon's
own user may do both.
"""

from __future__ import annotations

import json
import re
import struct
from random import Random
from typing import Any, NamedTuple

from benchmarks.http_mutants import HOST, LINES, mutant, pieces
from umaserve.gateway.app import ENDPOINTS
from umaserve.gateway.translate.endpoint import Endpoint
from umaserve.protocol.tables.fields import ADMIN_FIELDS, GENERATE_FIELDS

SOCKET, HTTP = "socket", "http"
# what a client does once it has sent all: read, close, reset, end its half and read, or be silent
READ, LEAVE, RESET, HALF, SILENT = ENDS = ("read", "leave", "reset", "half", "silent")
MOST_BYTES = 4_000_000
MOST_PAUSE_S = 0.2
LEFT_OUT = ("load", "unload", "serial", "/load", "/unload", "/models/load", "/models/unload")


class Input(NamedTuple):
    """``parts`` are sent one after another, ``pause_s`` apart."""

    door: str
    parts: list[bytes]
    pause_s: float
    end: str


def made(seed: int) -> Input:
    """Return the input of this number."""
    random = Random(seed)
    door = random.choice((SOCKET, HTTP))
    data = (_frames(random) if door == SOCKET else _requests(random))[:MOST_BYTES]
    parts = pieces(data, random)
    if len(data) < 200 and random.random() < 0.05:  # byte by byte
        parts = [data[at : at + 1] for at in range(len(data))]
    pause_s = random.choice((0.0, 0.0, 0.0, 0.01, MOST_PAUSE_S)) if len(parts) < 9 else 0.001
    return Input(door, parts, pause_s, random.choice((READ, *ENDS)))


# --- values ---------------------------------------------------------------------------------------

WRONG = (
    b"null", b"true", b"false", b"0", b"-1", b"1", b"-0", b"0.5", b"1e308", b"1e-999", b"1e999",
    b"9223372036854775808", b"-9223372036854775809", b"18446744073709551616", b"9" * 400,
    b"4294967296", b"2147483648", b'""', b'"a"', b'"\\u0000"', b'"' + b"a" * 200 + b'"',
    b'"' + b"\xf0\x9f\x98\x80" * 4000 + b'"', b'"' + b"a" * 100_000 + b'"', b"[]", b"{}", b"[[]]",
    b"[{}]", b"[null]", b'["a"]', b"[1]", b"[1.5]", b"[-1]", b'{"":0}',
    b'{"a":1,"a":2}', b"[[1,2]]",
    b'{"type":"x"}', b'[{"type":[]}]', b'{"role":{}}', b'[{"role":"user"}]', b'{"type":"function"}',
    b"[" + b"[]," * 5000 + b"0]", b"[" * 100 + b"]" * 100, b'{"a":' * 90 + b"1" + b"}" * 90,
    b"{" + b'"a":0,' * 3000 + b'"b":0}', b'"<|im_end|>"', b'"../../etc/passwd"', b'"(a*)*$"',
    b'"http://127.0.0.1:1/x"', b'"data:image/png;base64,A"', b'"root ::= root"', b'"root ::= "',
    b'{"type":"object","$ref":"#"}', b'{"pattern":"(a|a)*b"}', b'{"type":"json_schema"}',
    b'{"type":"image_url","image_url":{"url":[]}}', b'[{"type":"text","text":null}]', b'"{{ x }}"',
)  # fmt: skip
BROKEN = (
    b"-1e999", b"NaN", b"Infinity", b"01", b"1.", b"+1", b"0x1", b'"\\ud800"', b'"\\udc00\\ud800"',
    b'"\xff\xfe"', b'"\xc3("', b'"\xed\xa0\x80"', b'"\x00"', b'"\\x"', b'"a', b"[1,", b"[" * 9999,
    b"[" * 5000 + b"]" * 5000, b'{"a":' * 900 + b"1" + b"}" * 900, b"", b"//", b"'a'",
)  # fmt: skip
SAYS = [
    {"role": "system", "content": "short"},
    {"role": "user", "content": [{"type": "text", "text": "hi \u00e9\U0001f600"}]},
    {"role": "assistant", "content": "", "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "42"},
    {"role": "user", "content": "go on"},
]  # fmt: skip
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
# values that these fields may have, on the socket and in any family
RIGHT: dict[str, Any] = {
    "messages": SAYS, "prompt": "hi", "input": "hi", "text": "hi", "content": "hi", "query": "hi",
    "documents": ["a", "b"], "tokens": [300, 301], "max_tokens": 3, "max_output_tokens": 3,
    "n_predict": 3, "max_completion_tokens": 3, "temperature": 0.5, "stream": True,
    "tools": TOOLS, "tool_choice": "auto", "stop": ["x"], "logprobs": 1, "seed": 1, "json_schema":
    SCHEMA, "grammar": 'root ::= "a"', "regex": "a+", "response_format": {"type": "json_object"},
    "logit_bias": {"300": 1}, "metadata": {"a": "b"}, "session": "s", "app": "a", "slo":
    {"latency_cap": 2}, "options": {"num_predict": 3, "stop": ["x"]}, "input_prefix": "a",
    "input_suffix": "b", "input_extra": [{"filename": "a", "text": "b"}], "suffix": "b", "n": 2,
    "system": "short", "thinking": True, "chat_template_kwargs": {"a": 1}, "instructions": "short",
    "previous_response_id": "resp_1", "echo": True, "samplers": ["top_k"], "interval_ms": 60_000,
}  # fmt: skip
_ODD_MARK = "\x01odd"


def _body(right: dict[str, Any], names: list[str], random: Random) -> bytes:
    """JSON of an object whose values are right, but for some of any depth."""
    body = {name: value for name, value in right.items() if random.random() < 0.7}
    odd: list[bytes] = []
    for _ in range(random.choice((0, 0, 1, 1, 1, 3))):
        if names and random.random() < 0.5:
            body[random.choice(names)] = _mark(odd, random)
        else:
            body = _with_odd(body, odd, random)
    data = json.dumps(body).encode()
    for number, value in enumerate(odd):
        data = data.replace(json.dumps(f"{_ODD_MARK}{number}").encode(), value)
    return data


def _mark(odd: list[bytes], random: Random) -> str:
    odd.append(random.choice(WRONG if random.random() < 0.9 else BROKEN))
    return f"{_ODD_MARK}{len(odd) - 1}"


def _with_odd(value: Any, odd: list[bytes], random: Random) -> Any:
    """``value`` with one odd value in a random place within it."""
    if isinstance(value, dict) and value:
        name = random.choice(list(value))
        return {**value, name: _odd_or_within(value[name], odd, random)}
    if isinstance(value, list) and value:
        at = random.randrange(len(value))
        within = _odd_or_within(value[at], odd, random)
        return [*value[:at], *[within] * random.choice((1, 1, 1, 2, 30)), *value[at + 1 :]]
    return value


def _odd_or_within(value: Any, odd: list[bytes], random: Random) -> Any:
    if isinstance(value, (dict, list)) and value and random.random() < 0.7:
        return _with_odd(value, odd, random)
    return _mark(odd, random)


# --- the socket -----------------------------------------------------------------------------------

KINDS = ("", "", "", "", *(kind for kind in ADMIN_FIELDS if kind not in LEFT_OUT))


def _message(random: Random) -> bytes:
    kind = random.choice(KINDS)
    fields = ADMIN_FIELDS[kind] if kind else GENERATE_FIELDS
    names = [field.name for field in fields if field.name not in LEFT_OUT]
    right: dict[str, Any] = {name: RIGHT[name] for name in names if name in RIGHT}
    if kind:
        right["type"] = kind
    elif random.random() < 0.5:
        right.pop("messages", None)
    else:
        right.pop("prompt", None), right.pop("tokens", None)
    constraints = [n for n in ("grammar", "regex", "json_schema", "response_format") if n in right]
    for name in random.sample(constraints, max(len(constraints) - 1, 0)):
        del right[name]
    return _body({**right, "id": f"{random.randrange(5)}"}, names, random)


def _frame(body: bytes, random: Random) -> bytes:
    size = len(body)
    lies = (0, 1, max(size - 1, 0), size + 1, size + 1000, 2**24, 2**31, 2**32 - 1)
    said = random.choice(lies) if random.random() < 0.1 else size
    data = struct.pack("<I", said) + body
    if random.random() < 0.1:
        at = random.randrange(len(data))
        data = data[:at] + random.randbytes(random.randrange(1, 9)) + data[at:]
    return data


def _frames(random: Random) -> bytes:
    data = b"".join(
        _frame(_message(random), random) for _ in range(random.choice((1, 1, 1, 2, 8, 40)))
    )
    if random.random() < 0.1:
        data = data[: random.randrange(len(data) + 1)]
    if random.random() < 0.05:
        data = random.randbytes(random.randrange(200))
    return data


# --- HTTP -----------------------------------------------------------------------------------------

ROUTES = tuple(each for each in ENDPOINTS if each.path.removeprefix("/v1") not in LEFT_OUT)
WITH_FIELDS = tuple(each for each in ROUTES if each.fields)
METHODS = ("GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "TRACE", "CONNECT", "get", "X\x00")
PLACE = re.compile(r"\{[^}]*\}")  # of a route's path
ENDINGS = ("/", "?stream=true", "?%ff=%00&=", "?" + "a=b&" * 500, "//x", "/../x")
NAMES = ("x", "resp_1", "%00", "..%2f..", "%ff", "a" * 3000, "\u00e9", "", "?", "#")


def _requests(random: Random) -> bytes:
    if random.random() < 0.3:
        return mutant(random)
    return b"".join(_request(random) for _ in range(random.choice((1, 1, 1, 1, 2, 20))))


def _request(random: Random) -> bytes:
    route = random.choice(ROUTES if random.random() < 0.3 else WITH_FIELDS)
    method = route.method if random.random() < 0.9 else random.choice(METHODS)
    path = PLACE.sub(lambda _: random.choice(NAMES), route.path)
    if random.random() < 0.1:
        path += random.choice(ENDINGS)
    head = f"{method} {path} HTTP/1.1\r\n".encode("utf-8", "surrogateescape") + HOST
    for _ in range(random.choice((0, 0, 0, 1, 3))):
        head += random.choice(LINES) + b"\r\n"
    if random.random() < 0.02:
        head += b"X: y\r\n" * 5000
    if not route.fields and random.random() < 0.9:
        return head + b"\r\n"
    return head + _framed(_http_body(route, random), random)


def _http_body(route: Endpoint, random: Random) -> bytes:
    names = [name for name in route.fields if name not in LEFT_OUT]
    return _body({name: RIGHT[name] for name in names if name in RIGHT}, names, random)


def _framed(body: bytes, random: Random) -> bytes:
    """A body behind its head: with its length, in chunks, or with either of them wrong."""
    way = random.randrange(10)
    if way < 6:
        return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    if way == 6:
        wrong = random.choice((0, 1, len(body) // 2, len(body) + 5, 2**31, 10**12))
        return b"Content-Length: %d\r\n\r\n%b" % (wrong, body)
    size = random.choice((1, 7, 4096)) if len(body) < 5000 else 4096
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    last = b"0\r\n\r\n"
    if way == 7:
        last = random.choice((b"", b"0\r\nX: y\r\n\r\n", b"-1\r\n", b"0\r\n" + b"X: y\r\n" * 999))
    if way == 8:
        first = random.choice((b"ffffffffffffffff\r\n", b"1;" + b"x" * 9000 + b"\r\na\r\n"))
        chunks = first + chunks
    return b"Transfer-Encoding: chunked\r\n\r\n" + chunks + last
