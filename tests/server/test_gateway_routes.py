"""Routes: other ways to write a path, the same path in two families, and what is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.support.gateway import Posted, post
from tests.support.http_client import port_of
from tests.support.server_harness import DaemonProcess, model_file
from umaserve.gateway.families import absent

VERSION = {"anthropic-version": "2023-06-01"}
HELLO = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("daemon"), http="127.0.0.1:0") as daemon:
        yield daemon


def send(port: int, method: str, path: str, headers: dict[str, str] | None = None) -> Posted:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, headers=headers or {})
        return Posted(connection.getresponse())
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/v1/models/", "//v1//models", "/v1/models///", "/models/"])
def test_slashes_too_many_are_none(daemon: DaemonProcess, path: str) -> None:
    port = port_of(daemon)
    assert send(port, "GET", path).json == send(port, "GET", "/v1/models").json
    for path in ("/v1/chat/completions/", "/v1//chat/completions"):
        assert post(port, path, {"messages": HELLO, "max_tokens": 1}).status == 200
    refused = post(port, "//v1/messages/", {"messages": HELLO})
    assert (refused.status, refused.json["type"]) == (400, "error")
    assert send(port, "GET", "//").json["server"] == "umaserve"
    assert send(port, "GET", "/v1/nothing/").status == 404


def test_models_as_anthropic_lists_them(daemon: DaemonProcess) -> None:
    port, name = port_of(daemon), daemon.info()["model"]["name"]
    told = send(port, "GET", "/v1/models?limit=20", VERSION).json
    (model,) = told["data"]
    # one that Claude Code takes into its menu, which it tells by these words
    id = f"anthropic-local/{name}"
    assert (model["type"], model["id"], model["display_name"]) == ("model", id, name)
    assert {k: v for k, v in told.items() if k != "data"} == {
        "has_more": False, "first_id": id, "last_id": id,
    }  # fmt: skip
    for each in (name, id):
        assert send(port, "GET", f"/v1/models/{each}", VERSION).json == model
    body = {"model": id, "max_tokens": 1, "messages": HELLO}
    assert post(port, "/v1/messages", body).json["model"]
    assert send(port, "GET", f"/v1/models/{id}").status == 404
    missing = send(port, "GET", "/v1/models/none", VERSION)
    assert (missing.status, missing.json["error"]["type"]) == (404, "not_found_error")
    assert missing.json["type"] == "error"
    assert send(port, "GET", f"/v1/models/{name}").json["object"] == "model"


@pytest.mark.parametrize(
    "method, path", [(e.method, e.path) for e in absent.ENDPOINTS if "501" in e.summary]
)
def test_what_is_not_there_says_so(daemon: DaemonProcess, method: str, path: str) -> None:
    reply = send(port_of(daemon), method, re.sub(r"{\w+}", "x", path))
    assert reply.status == 501 and reply.headers["x-should-retry"] == "false"
    error = reply.json["error"]
    assert "not supported by this server" in error["message"]
    if path.startswith("/v1/messages"):
        assert reply.json["type"] == "error"
    elif path == "/slots/{id}":
        assert error["code"] == 501
    else:
        assert error["type"] == "not_supported_error"


def test_what_is_not_there_is_in_the_documents() -> None:
    """Each path without its family's start and what follows the first name in it."""
    page = (Path(__file__).parents[2] / "docs/HTTP.md").read_text("utf-8")
    shown = page.partition("## What is not here")[2].partition("\n## ")[0]
    for endpoint in absent.ENDPOINTS:
        if "501" in endpoint.summary and not endpoint.path.startswith("/v1/messages"):
            name = endpoint.path.removeprefix("/v1").split("/{")[0]
            assert f"{name}" in shown, endpoint.path


def test_there_are_no_adapters(daemon: DaemonProcess) -> None:
    assert send(port_of(daemon), "GET", "/lora-adapters").json == []


ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 2},
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    "/v1/responses": {"input": "x", "max_output_tokens": 2},
    "/v1/messages": {"messages": HELLO, "max_tokens": 2},
    "/api/chat": {"messages": HELLO, "options": {"num_predict": 2}},
    "/api/generate": {"prompt": "x", "options": {"num_predict": 2}},
    "/completion": {"prompt": "x", "n_predict": 2},
}


def test_answers_asked_for_before_the_model_is_there_have_its_name(tmp_path: Path) -> None:
    slow = model_file(tmp_path / "load-slow.gguf")
    replies: dict[tuple[str, bool], bytes] = {}
    with DaemonProcess(tmp_path, model=slow, http="127.0.0.1:0", wait=False) as daemon:
        port = port_of(daemon)

        def ask(path: str, stream: bool) -> None:
            body = {**ASKED[path], "stream": stream}
            replies[path, stream] = post(port, path, body).body

        asked = [(path, stream) for path in ASKED for stream in (False, True)]
        threads = [Thread(target=ask, args=each) for each in asked]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        name = daemon.info()["model"]["name"]
    for each in asked:
        names = re.findall(r'"model":"(.*?)"', replies[each].decode())
        assert names and names[-1] == name, (each, replies[each])
