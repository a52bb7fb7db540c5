"""Streams of the gateway: clients that leave, prompts that take long, daemons that are full."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_engine import answer
from tests.support.gateway import begun, everything, gateway, post, sse
from tests.support.http_client import port_of
from tests.support.server_harness import DaemonProcess, eventually
from umaserve.gateway.daemon.link import Link
from umaserve.gateway.translate.answers import answering

CHAT, TEXT, OURS = "/v1/chat/completions", "/v1/completions", "/generate"
STREAMS = {
    OURS: {"prompt": "x"},
    TEXT: {"prompt": "x", "max_tokens": 2000},
    CHAT: {"messages": [{"role": "user", "content": "x"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2000},
    "/api/chat": {"messages": [{"role": "user", "content": "x"}]},
    "/api/generate": {"prompt": "x"},
    "/completion": {"prompt": "x"},
}


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """An answer of 2000 tokens would take longer than a test may."""
    path = tmp_path_factory.mktemp("slow")
    with DaemonProcess(path, http="127.0.0.1:0", environment={"FAKE_TICK_MS": "60"}) as daemon:
        yield daemon


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", STREAMS)
def test_client_that_leaves_is_cancelled(slow: DaemonProcess, path: str, stream: bool) -> None:
    with begun(port_of(slow), path, {**STREAMS[path], "stream": stream}) as sock:
        eventually(lambda: [s for s in slow.info()["sessions"] if s["tokens"]], "it decodes")
        if stream:
            assert sock.recv(1000).startswith(b"HTTP/1.1 200 OK")
    slow.idle()


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves_with_more_in_line_is_cancelled(
    slow: DaemonProcess, stream: bool
) -> None:
    more = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n"
    with begun(port_of(slow), TEXT, {**STREAMS[TEXT], "stream": stream}) as sock:
        eventually(lambda: [s for s in slow.info()["sessions"] if s["tokens"]], "it decodes")
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)
        sock.sendall(more + b"x" * 99998)
    slow.idle()
    assert "failed" not in slow.log


@pytest.mark.parametrize(
    "more", [b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 90,
             b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n\r\n"
             + b"x" * 2_000_000],
)  # fmt: skip
def test_line_of_one_connection_is_bounded(slow: DaemonProcess, more: bytes) -> None:
    with begun(port_of(slow), TEXT, {**STREAMS[TEXT], "max_tokens": 9}) as sock:
        sock.sendall(more[:1_500_000])
        data = everything(sock)
        assert data.startswith(b"HTTP/1.1 200 ") and b"HTTP/1.1 429 " in data
        assert data.count(b"HTTP/1.1 200 ") <= 66
    slow.idle()


def test_client_that_leaves_while_it_waits_is_cancelled(tmp_path: Path) -> None:
    environment = {"FAKE_TICK_MS": "60"}
    with DaemonProcess(
        tmp_path, http="127.0.0.1:0", max_sessions=1, environment=environment
    ) as daemon:
        with begun(port_of(daemon), CHAT, STREAMS[CHAT]):
            eventually(lambda: len(daemon.info()["sessions"]) == 1)
            with begun(port_of(daemon), CHAT, {**STREAMS[CHAT], "stream": True}):
                eventually(lambda: len(daemon.info()["sessions"]) == 2)
            eventually(lambda: len(daemon.info()["sessions"]) == 1, "the second is gone")
        daemon.idle()


@pytest.mark.parametrize(
    ("path", "ping"),
    [
        (TEXT, b": \n\n"),
        ("/v1/messages", b": \n\n"),
        ("/completion", b": \n\n"),
        ("/api/chat", b'"content":""},"done":false}\n'),
    ],
)
def test_streams_say_that_they_are_there_while_a_prompt_is_computed(
    slow: DaemonProcess, monkeypatch: pytest.MonkeyPatch, path: str, ping: bytes
) -> None:
    monkeypatch.setattr(answering, "HOLD_S", 0.0)
    monkeypatch.setattr(answering, "PING_S", 0.01)
    with gateway(slow.path) as port, begun(port, path, {**STREAMS[path], "stream": True}) as sock:
        data = b""
        while data.count(ping) < 2:
            data += sock.recv(1000)
        head, _, body = data.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert b"data:" not in body.split(ping)[0]
    slow.idle()


def test_responses_say_it_by_events(slow: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codex gives up after five minutes without one."""
    monkeypatch.setattr(answering, "HOLD_S", 0.0)
    monkeypatch.setattr(answering, "PING_S", 0.01)
    body, data = {"input": "x", "stream": True}, b""
    with gateway(slow.path) as port, begun(port, "/v1/responses", body) as sock:
        while data.count(b"event: response.in_progress") < 4 or not data.endswith(b"\n\n\r\n"):
            data += sock.recv(1000)
        events = sse(data.partition(b"\r\n\r\n")[2])
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    kinds = [event["type"] for event in events]
    assert kinds == ["response.created", *["response.in_progress"] * (len(kinds) - 1)]
    slow.idle()


def test_more_clients_than_there_is_room(tmp_path: Path) -> None:
    """All finish, or are told to come again."""
    with DaemonProcess(tmp_path, http="127.0.0.1:0", max_sessions=8, max_queue=40) as daemon:
        port = port_of(daemon)

        def one(number: int) -> tuple[int, bool]:
            prompt, stream = f"client {number}", bool(number % 2)
            body = {"prompt": prompt, "max_tokens": 30, "stream": stream}
            reply = post(port, TEXT, body)
            if reply.status != 200:
                return reply.status, reply.headers["retry-after"] == "1"
            text = answer(prompt, 30).decode("utf-8", "replace")
            if stream:
                return 200, "".join(c["choices"][0]["text"] for c in sse(reply.body)[:-1]) == text
            return 200, reply.json["choices"][0]["text"] == text

        with ThreadPoolExecutor(200) as pool:
            told = Counter(pool.map(one, range(200)))
        assert {status for status, _ in told} <= {200, 429} and told[(200, True)] >= 48
        assert all(right for _, right in told), told
        daemon.idle()


def test_engine_that_dies_in_a_stream_is_not_noticed(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, http="127.0.0.1:0") as daemon:
        prompt = "[abort-once@9] x"
        body = {"prompt": prompt, "max_tokens": 40, "stream": True}
        chunks = sse(post(port_of(daemon), TEXT, body).body)
        assert chunks[-1] == "[DONE]"
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1])
        assert text == answer(prompt, 40).decode("utf-8", "replace")


@pytest.mark.parametrize("path", STREAMS)
def test_answers_that_fail_say_so(tmp_path: Path, path: str) -> None:
    body = json.loads(json.dumps(STREAMS[path]).replace('"x"', '"[error@5] x"'))
    with DaemonProcess(tmp_path, http="127.0.0.1:0") as daemon:
        whole = post(port_of(daemon), path, {**body, "stream": False})
        assert whole.status == 500 and "E_RUNTIME_001" in whole.body.decode()
        begun = post(port_of(daemon), path, {**body, "stream": True})
        if begun.status != 500:  # some of it had been sent
            last = begun.body.decode().rstrip().splitlines()[-1].removeprefix("data: ")
            assert begun.status == 200 and "E_RUNTIME_001" in json.dumps(json.loads(last))
        assert post(port_of(daemon), TEXT, {"prompt": "y"}).status == 200


# --- who asks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "headers", "lane"),
    [
        ({"priority": "background"}, {}, "background"),
        ({}, {"X_UMA_Priority": "background"}, "background"),
        ({"service_tier": "flex"}, {}, "background"),
        ({"service_tier": "flex", "priority": "interactive"}, {}, "interactive"),
        ({"priority": "interactive"}, {"X_UMA_Priority": "background"}, "interactive"),
    ],
)
def test_lanes(
    slow: DaemonProcess, body: dict[str, Any], headers: dict[str, str], lane: str
) -> None:
    connection = HTTPConnection("127.0.0.1", port_of(slow), timeout=60)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    asked = json.dumps({"prompt": "x", "stream": True, "max_tokens": 900, **body})
    connection.request("POST", TEXT, asked, named)
    response = connection.getresponse()
    assert response.getheader("x-uma-lane") == f"{lane}; asked for"
    (session,) = slow.info()["sessions"]
    assert session["lane"] == lane
    other = {"interactive": "background", "background": "interactive"}[lane]
    moved = {"serial": session["serial"], "priority": other}
    assert post(port_of(slow), "/priority", moved).json == {"priority": other}
    assert slow.info()["sessions"][0]["lane"] == other
    connection.close()
    slow.idle()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", STREAMS)
def test_answers_say_their_lane_and_what_was_cached(
    slow: DaemonProcess, path: str, stream: bool
) -> None:
    few = {"max_tokens": 2, "n_predict": 2, "options": {"num_predict": 2}}
    reply = post(port_of(slow), path, {**STREAMS[path], **few, "stream": stream})
    assert reply.status == 200
    assert reply.headers["x-uma-lane"] == "interactive; nobody named a lane"
    cached, prompt = map(int, reply.headers["x-uma-cache"].split("/"))
    text = reply.body.decode()
    for name in ("prompt_tokens", "input_tokens", "prompt_eval_count", "tokens_evaluated"):
        if f'"{name}"' in text:  # every time, the first one too
            assert set(re.findall(f'"{name}":([0-9]+)', text)) == {str(prompt)}
    assert cached == 0 < prompt


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [path for path in STREAMS if path != OURS])
def test_answers_name_the_model_that_was_asked_for_or_the_loaded_one(
    slow: DaemonProcess, path: str, stream: bool
) -> None:
    few = {"max_tokens": 1, "n_predict": 1, "options": {"num_predict": 1}}
    loaded = slow.info()["model"]["name"]
    for asked, name in (({"model": "mine"}, "mine"), ({}, loaded), ({"model": None}, loaded)):
        reply = post(port_of(slow), path, {**STREAMS[path], **few, **asked, "stream": stream})
        assert set(re.findall(r'"model":"(.*?)"', reply.body.decode())) == {name}


@pytest.mark.parametrize("stream", [True, False])
def test_the_daemon_is_asked_for_nothing_but_the_answer(
    slow: DaemonProcess, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """Each question before it would be a turn more until the first token."""
    asked, ask = [], Link.ask

    async def spied(link: Link, message: dict[str, Any], *more: Any) -> dict[str, Any]:
        asked.append(message)
        return await ask(link, message, *more)

    monkeypatch.setattr(Link, "ask", spied)
    with gateway(slow.path) as port:
        assert post(port, TEXT, {"prompt": "x", "max_tokens": 1}).status == 200
        asked.clear()  # the daemon's limits, once
        for path in (TEXT, CHAT, "/v1/messages", "/completion"):
            few = {"max_tokens": 1, "n_predict": 1, "stream": stream}
            assert post(port, path, {**STREAMS[path], **few}).status == 200
    assert not asked


def test_the_beginning_is_the_socket_s(slow: DaemonProcess) -> None:
    reply = post(port_of(slow), OURS, {"prompt": "xyz", "max_tokens": 1, "begin": True})
    begin = sse(reply.body)[0]
    assert begin["event"] == "begin" and begin["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize("path", ["/completion", CHAT, TEXT, "/v1/responses"])
def test_streams_tell_how_much_of_a_prompt_is_computed(slow: DaemonProcess, path: str) -> None:
    prompt = "[prompt@20]" + "x" * 100
    asked = {"stream": True, "return_progress": True, "timings_per_token": True}
    body = {"prompt": prompt, "messages": [{"role": "user", "content": prompt}], "input": prompt}
    taken = {CHAT: "messages", "/v1/responses": "input"}.get(path, "prompt")
    size = {"max_output_tokens" if taken == "input" else "max_tokens": 2}
    reply = post(port_of(slow), path, {**asked, **size, taken: body[taken]})
    parts = [part for part in sse(reply.body) if isinstance(part, dict)]
    told = [part for part in parts if "prompt_progress" in part]
    done = [part["prompt_progress"]["processed"] for part in told]
    assert len(done) > 2 and done == sorted(set(done))
    assert done[0] == 0 == told[0]["timings"]["prompt_ms"]
    assert {done[-1]} == {part["prompt_progress"]["total"] for part in told}
    for name in ("prompt_ms", "prompt_n"):
        values = [part["timings"][name] for part in told]
        assert values == sorted(values) and values[1] > 0
    assert [part["timings"]["prompt_n"] for part in told] == done
    assert parts.index(told[-1]) == len(told) - 1 + parts.index(told[0])


def test_models_are_loaded_from_their_folders_alone(tmp_path: Path) -> None:
    inside, outside = tmp_path / "models", tmp_path / "models-too"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "other.gguf").write_bytes(b"GGUF\x03\0\0\0" + bytes(16))
    (inside / "link.gguf").symlink_to(outside / "other.gguf")
    with DaemonProcess(tmp_path, http="127.0.0.1:0", model_dir=str(inside)) as daemon:
        port = port_of(daemon)
        for name in (
            str(outside / "other.gguf"), "../models-too/other.gguf", "link.gguf", "none.gguf", "",
            "/etc/passwd", ".", "\0", "x" * 9000,
        ):  # fmt: skip
            assert post(port, "/load", {"model": name}).status in (400, 403), name
        for name in ("other.gguf", str(inside / "other.gguf")):
            reply = post(port, "/load", {"model": name})
            assert reply.json == {"model": str(inside / "other.gguf"), "success": True}
        assert post(port, "/unload", {}).json == {"success": True, "unloaded": True}
        assert post(port, TEXT, {"prompt": "x"}).status == 503
    with DaemonProcess(tmp_path, http="127.0.0.1:0") as daemon:
        reply = post(port_of(daemon), "/load", {"model": str(inside / "other.gguf")})
        assert (reply.status, reply.json["error"]["code"]) == (403, "model_dir_needed")


def test_socket_events_as_they_are(slow: DaemonProcess) -> None:
    reply = post(port_of(slow), OURS, {"id": "mine", "prompt": "x", "max_tokens": 3})
    told = sse(reply.body)
    assert [each["event"] for each in told] == ["token"] * 3 + ["eos"]
    assert {each["id"] for each in told} == {"mine"}
    assert bytes(each["token_id"] for each in told[:3]) == answer("x", 3)
    refused = post(port_of(slow), OURS, {"prompt": "x", "max_tokens": 10**6})
    assert (refused.status, refused.json["error"]["uma_code"]) == (400, "E_PROTO_003")
    for kind in ("unload", "cache"):
        assert post(port_of(slow), OURS, {"type": kind, "id": "mine"}).status == 400


# --- pages ---------------------------------------------------------------------------------------


def test_pages_of_other_origins_get_nothing(slow: DaemonProcess) -> None:
    evil = {"Origin": "http://evil.example"}
    for path, body in STREAMS.items():
        reply = post(port_of(slow), path, body, **evil)
        assert (reply.status, b"origin" in reply.body) == (403, True)
        assert not [name for name in reply.headers if name.startswith("access-control")]
    for headers in ({"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}, {"Origin": "http://["},
                    {"Origin": "http://localhost.evil.example"}):  # fmt: skip
        assert post(port_of(slow), TEXT, {"prompt": "x"}, **headers).status == 403
    assert not slow.info()["sessions"]


def test_pages_that_may_ask() -> None:
    origin = "http://localhost:3000"
    with gateway(origins=(origin,), keys={"a-key-of-the-page-1": "page"}) as port:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST",
                 "Access-Control-Request-Headers": "authorization",
                 "Access-Control-Request-Private-Network": "true"}  # fmt: skip
        connection.request("OPTIONS", CHAT, headers=asked)
        response = connection.getresponse()
        assert response.status == 204 and not response.read()
        assert response.getheader("access-control-allow-origin") == origin
        assert "authorization" in (response.getheader("access-control-allow-headers") or "")
        assert response.getheader("access-control-allow-private-network") == "true"
        reply = post(port, CHAT, {}, Origin=origin)
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (401, origin)
        reply = post(port, CHAT, {}, Origin=origin, Authorization="Bearer a-key-of-the-page-1")
        assert (reply.status, reply.headers["vary"]) == (400, "origin")
        assert post(port, CHAT, {}, Origin="http://localhost:3001").status == 403
        same = {"Origin": f"http://127.0.0.1:{port}", "X_Api_Key": "a-key-of-the-page-1"}
        assert post(port, CHAT, {}, **same).status == 400
