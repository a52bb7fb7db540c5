"""The HTTP gateway of a real daemon process: what it answers, and whom it does not trust."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

import umaserve
from tests.support.fake_engine import answer
from tests.support.http_client import ask, port_of, raw, replies
from tests.support.server_harness import DaemonProcess, eventually, running
from umaserve.metrics.names import HELP
from umaserve.metrics.prometheus import _apart
from umaserve.protocol import ERRORS
from umaserve.server.requests.meters import recent_requests

SCRAPE = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.1"
TEXT = "text/plain; version=0.0.4; charset=utf-8"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    path = tmp_path_factory.mktemp("daemon")
    yield from running(path, http="127.0.0.1:0", max_frame_bytes=128 * 1024)


# --- metrics -------------------------------------------------------------------------------------


def test_metrics_are_the_object_of_the_socket(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        client.generate("x", max_tokens=3)
        client.send(id="a", prompt=5)
        client.answer("error")

        def both() -> tuple[Any, Any]:
            client.send(type="metrics")
            return json.loads(ask(daemon, "/metrics").body), client.answer("metrics")["metrics"]

        # a reading is given again for a moment, to either
        http, sock = eventually(lambda: (p := both())[0] == p[1] and p, "the same reading")
    assert http["errors_total"]["E_PROTO_003"] >= 1 and http["requests_total"] >= 1
    assert list(http) == list(sock)


def test_formats_of_metrics(daemon: DaemonProcess) -> None:
    reply = ask(daemon, "/metrics")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    always = "/metrics/prometheus"
    for path, accept in (
        ("/metrics", SCRAPE), ("/metrics", "text/plain"), (always, "*/*"), (always, "image/png"),
    ):  # fmt: skip
        reply = ask(daemon, path, Accept=accept)
        assert (reply.status, reply.headers["content-type"]) == (200, TEXT), accept
    reply = ask(daemon, "/metrics", Accept="image/png")
    assert reply.status == 406
    assert json.loads(reply.body)["error"]["code"] == "not_acceptable"
    assert reply.headers["vary"] == "accept"


def test_exposition_has_every_number(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        client.generate("x", max_tokens=20)
        client.generate("y", id="b", max_tokens=20, priority="background")
    numbers = json.loads(ask(daemon, "/metrics").body)
    text = ask(daemon, "/metrics/prometheus").body.decode()
    families = {f.name: f for f in text_string_to_metric_families(text)}
    shown = {name.removeprefix("umaserve_") for name in families}
    for name, value in numbers.items():
        if isinstance(value, str):
            assert families["umaserve_model_info"].samples[0].labels[name] == value
            continue
        if name == "apps":
            for figures in ("requests", "tokens_generated"):
                samples = families[f"umaserve_app_{figures}"].samples
                assert {s.labels["app"] for s in samples} == set(value), figures
            continue
        if name == "models":
            for figure in ("loaded", "requests", "tokens_generated"):
                (sample,) = families[f"umaserve_model_{figure}"].samples
                assert sample.labels["model"] == numbers["model"]
            assert sample.value == value[numbers["model"]]["tokens"] >= 40
            continue
        family, lane = _apart(name)
        assert family in HELP, f"{family} has no help text"
        if value is not None and (lane or f"interactive.{name}" not in numbers):
            assert family.removesuffix("_total") in shown, name
    assert all(name.startswith(("umaserve_", "uma_", "vllm:")) for name in families)
    assert families["vllm:num_requests_waiting"].samples[0].value == 0
    codes = {s.labels["code"] for s in families["umaserve_errors"].samples}
    assert codes == set(ERRORS)
    for name in ("ttft_ms", "inter_token_ms", "decode_ms", "batch_size"):
        assert families[f"umaserve_{name}"].type == "histogram"
    counts = {s.labels["le"]: s.value for s in families["umaserve_ttft_ms"].samples
              if s.name.endswith("_bucket")}  # fmt: skip
    assert counts["+Inf"] == numbers["ttft_ms"]["count"] >= 2
    assert list(counts.values()) == sorted(counts.values())
    lanes = {s.labels["lane"] for s in families["umaserve_p95_ms"].samples}
    assert lanes == {"interactive", "background"}


def test_the_newest_requests_are_told_without_their_texts(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        for i in range(recent_requests.KEPT + 1):
            client.generate(f"a secret {i}", id=f"id-{i}", app="zed", max_tokens=3)
        client.generate("x", id="b", app="nightly", max_tokens=2, priority="background")
        client.send(id="c", prompt="y", app="nightly", max_tokens=0.5)
        client.answer("error")  # never began: it is no request that ended
    reply = ask(daemon, "/requests")
    found = json.loads(reply.body)["requests"]
    assert reply.headers["cache-control"] == "no-store" and len(found) == recent_requests.KEPT
    newest, before = found[-1], found[-2]
    assert (newest["app"], newest["lane"], newest["lane_reason"]) == (
        "nightly", "background", "asked for",
    )  # fmt: skip
    assert (before["app"], before["lane"], before["completion_tokens"]) == ("zed", "interactive", 3)
    assert newest["reason"] == "length" and newest["completion_tokens"] == 2
    assert before["age_s"] >= newest["age_s"] >= 0 and newest["ttft_ms"] <= newest["total_ms"]
    assert [row["serial"] for row in found] == sorted({row["serial"] for row in found})
    assert b"secret" not in reply.body and b"id-" not in reply.body


# --- the rest of HTTP ----------------------------------------------------------------------------


def test_head_is_get_without_the_body(daemon: DaemonProcess) -> None:
    get, head = ask(daemon, "/health"), ask(daemon, "/health", "HEAD")
    assert head.body == b"" and head.status == 200
    for headers in (get.headers, head.headers):
        headers.pop("date")
    assert get.headers == head.headers
    for path in ("/metrics", "/metrics/prometheus"):
        head = ask(daemon, path, "HEAD")
        assert head.status == 200 and int(head.headers["content-length"]) > 1000
        assert head.body == b""


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/metrics/x"), ("GET", "/Health"),
        ("GET", "/metrics/../health"), ("GET", "/v1/nothing"), ("DELETE", "/nothing"),
        ("POST", "/v1"), ("POST", "/health/x"),
    ],
)  # fmt: skip
def test_everything_else_is_not_found(daemon: DaemonProcess, method: str, path: str) -> None:
    reply = ask(daemon, path, method)
    error = json.loads(reply.body)["error"]
    assert (reply.status, error["code"], error["type"]) == (
        404, "unknown_url", "not_found_error",
    )  # fmt: skip
    assert path in error["message"] and "/openapi.json" in error["message"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_other_methods_are_told_the_right_ones(daemon: DaemonProcess, method: str) -> None:
    for path in ("/metrics", "/metrics/prometheus", "/health"):
        reply = ask(daemon, path, method)
        assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
        assert json.loads(reply.body)["error"]["code"] == "method_not_allowed"


def test_query_is_ignored_and_nothing_is_cached(daemon: DaemonProcess) -> None:
    reply = ask(daemon, "/metrics?name=x")
    assert reply.status == 200 and reply.headers["cache-control"] == "no-store"


def test_connection_is_kept(daemon: DaemonProcess) -> None:
    connection = HTTPConnection("127.0.0.1", port_of(daemon), timeout=60)
    for path, status in (("/health", 200), ("/none", 404), ("/metrics", 200), ("/health", 200)):
        connection.request("GET", path)
        sock = connection.sock
        response = connection.getresponse()
        response.read()
        assert response.status == status and connection.sock is sock
    connection.close()


@pytest.mark.parametrize(("size", "status"), [(100_000, 404), (900_000, 413)])
def test_large_body_does_not_drown_the_answer(
    daemon: DaemonProcess, size: int, status: int
) -> None:
    with raw(daemon) as sock:
        sock.sendall(b"POST /nothing HTTP/1.1\r\nHost: localhost\r\n"
                     b"Content-Length: %d\r\n\r\n" % size)  # fmt: skip
        sock.sendall(b"x" * size)
        (reply,) = replies(sock, 1)
        assert reply.status == status
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert replies(sock, 1)[0].status == 200


def test_garbage_gets_an_error_and_the_daemon_goes_on(daemon: DaemonProcess) -> None:
    for garbage in (b"\x00" * 100_000, b"\x16\x03\x01\x00\n", b"{}\r\n\r\n"):
        with raw(daemon) as sock:
            sock.sendall(garbage)
            (reply,) = replies(sock, 1)
            assert reply.status in (400, 431)
            assert "error" in json.loads(reply.body)
    assert ask(daemon, "/health").status == 200
    assert "failed" not in daemon.log


# --- who is trusted ------------------------------------------------------------------------------


def test_pages_that_point_their_name_at_us_learn_nothing(daemon: DaemonProcess) -> None:
    for host in ("evil.example", f"evil.example:{port_of(daemon)}", "localhost.evil.example"):
        for path in ("/metrics", "/health", "/none"):
            reply = ask(daemon, path, Host=host)
            assert reply.status == 421
            error = json.loads(reply.body)["error"]
            assert error["code"] == "misdirected_request" and host in error["message"]
    with raw(daemon) as sock:  # a target of its own outdoes the header
        sock.sendall(b"GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
                     b"GET http://localhost/health HTTP/1.1\r\nHost: evil.example\r\n\r\n"
                     b"GET http://[x/ HTTP/1.1\r\nHost: localhost\r\n\r\n")  # fmt: skip
        assert [reply.status for reply in replies(sock, 3)] == [421, 200, 400]
    for host in ("localhost:1", "127.0.0.1", "[::1]:9", "192.168.1.2:80"):
        assert ask(daemon, "/health", Host=host).status == 200


def test_no_other_origin_may_read(daemon: DaemonProcess) -> None:
    for method in ("GET", "OPTIONS"):
        reply = ask(daemon, "/metrics", method, Origin="http://evil.example",
                    Access_Control_Request_Method="GET")  # fmt: skip
        assert not [name for name in reply.headers if name.startswith("access-control")]
        assert reply.headers["x-content-type-options"] == "nosniff"


def test_those_who_only_hold_connections_keep_nobody_out(daemon: DaemonProcess) -> None:
    most = 1024
    idle = [raw(daemon) for _ in range(most + 20)]
    try:
        for sock in idle[-5:]:  # these came last and are still there
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert replies(sock, 1)[0].status == 200
        assert ask(daemon, "/metrics").status == 200
        assert idle[0].recv(1) == b""  # the oldest made room
        (gateway,) = [p for p in daemon.children() if "umaserve.gateway" in " ".join(p.cmdline())]
        held = [c for c in gateway.net_connections("tcp") if c.status == psutil.CONN_ESTABLISHED]
        assert len(held) <= most
        with daemon.client() as client:
            result = client.generate("meanwhile", max_tokens=5)
            assert bytes(result.tokens) == answer("meanwhile", 5)
    finally:
        for sock in idle:
            sock.close()
    assert ask(daemon, "/health").status == 200


def test_max_connections_counts_here_too(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, http="127.0.0.1:0", max_connections=3) as daemon:
        first, *others = [raw(daemon) for _ in range(3)]
        others[0].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert replies(others[0], 1)[0].status == 200
        for _ in range(2):
            assert ask(daemon, "/health").status == 200
        assert first.recv(1) == b""
        for sock in (first, *others):
            sock.close()


# --- health --------------------------------------------------------------------------------------


def health(daemon: DaemonProcess) -> tuple[int, dict[str, Any]]:
    reply = ask(daemon, "/health")
    return reply.status, json.loads(reply.body)


def test_health_while_it_serves(daemon: DaemonProcess) -> None:
    about = {"status": "ok", "model": "model", "version": umaserve.__version__}
    assert health(daemon) == (200, about)


def test_health_while_it_loads_drains_or_has_no_model(tmp_path: Path) -> None:
    slow = tmp_path / "load-slow.gguf"
    slow.write_bytes(b"GGUF\x03\0\0\0" + bytes(16))
    with DaemonProcess(tmp_path, model=str(slow), http="127.0.0.1:0", wait=False,
                       environment={"FAKE_TICK_MS": "5"}) as daemon:  # fmt: skip
        status, about = health(daemon)
        assert (status, about["status"], about["model"]) == (503, "loading", None)
        assert about["error"]["type"] == "server_error" and "loaded" in about["error"]["message"]
        assert eventually(lambda: (h := health(daemon))[0] == 200 and h[1])["model"] == "load-slow"
        with daemon.client() as client:
            client.send(type="unload")
            assert client.answer("unloaded")["event"] == "unloaded"
            status, about = health(daemon)
            assert (status, about["status"], about["model"]) == (503, "unloaded", None)
            assert about["error"]["code"] == "E_MODEL_001"
            client.send(type="load", model=daemon.model)
            assert client.answer("loaded")["event"] == "loaded"
            assert health(daemon)[0] == 200
            client.ask("running", "x", max_tokens=300)
            client.wait_tokens("running", 2)
            daemon.children()
            daemon.process.terminate()
            eventually(lambda: "shutting down" in daemon.log)
            reply = ask(daemon, "/health")  # a new connection, for who watches from outside
            about = json.loads(reply.body)
            assert (reply.status, about["status"]) == (503, "stopping")
            assert about["error"]["code"] == "E_LIMIT_002"
            assert reply.headers["retry-after"] == "1"
            assert ask(daemon, "/metrics").status == 200
            (result,) = client.finish()
            assert len(result.tokens) == 300
        assert daemon.wait() == 0
