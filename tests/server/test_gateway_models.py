"""Several models over HTTP: each dialect lists them, and a request chooses by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gateway import post
from tests.support.http_client import ask, port_of
from tests.support.server_harness import DaemonProcess, model_file

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    directory = tmp_path_factory.mktemp("daemon")
    models = {
        "coder": {"path": model_file(directory / "coder-file.gguf"), "aliases": ["fim"]},
        "third": {"path": model_file(directory / "third.gguf")},
    }
    with DaemonProcess(directory, models=models, http="127.0.0.1:0") as daemon:
        yield daemon
        daemon.idle()


def get(daemon: DaemonProcess, path: str, **headers: str) -> Any:
    reply = ask(daemon, path, **headers)
    assert reply.status == 200, reply.body
    return json.loads(reply.body)


def asked(daemon: DaemonProcess, path: str, body: dict[str, Any]) -> str:
    """The model that the answer's header names."""
    reply = post(port_of(daemon), path, body)
    assert reply.status == 200, reply.json
    return str(reply.headers["x-uma-model"])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 3}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 3}),
        ("/v1/messages", CHAT),
        ("/api/chat", {**CHAT, "stream": False}),
        ("/api/generate", {"prompt": "hi", "stream": False, "options": {"num_predict": 3}}),
        ("/completion", {"prompt": "hi", "n_predict": 3}),
    ],
)
def test_every_dialect_chooses_by_name(
    daemon: DaemonProcess, path: str, body: dict[str, Any]
) -> None:
    for name, file in (("coder", "coder-file"), ("fim", "coder-file"), ("gpt-4o", "model")):
        assert asked(daemon, path, {**body, "model": name}) == file
    assert asked(daemon, path, {**body, "model": "anthropic-local/coder"}) == "coder-file"
    reply = post(port_of(daemon), path, {**body, "model": "coder", "stream": True})
    assert reply.headers["x-uma-model"] == "coder-file"


def test_lists_have_all_models_and_say_which_are_loaded(daemon: DaemonProcess) -> None:
    asked(daemon, "/v1/chat/completions", {**CHAT, "model": "coder"})
    listed = get(daemon, "/v1/models")["data"]
    assert [each["id"] for each in listed] == ["model", "coder", "third"]
    assert [each["status"]["value"] for each in listed] == ["loaded", "loaded", "unloaded"]
    assert listed[1]["aliases"] == ["fim"] and "path" not in listed[2]
    assert get(daemon, "/v1/models/fim")["id"] == "coder"
    assert ask(daemon, "/v1/models/gpt-4o").status == 404
    tags = get(daemon, "/api/tags")["models"]
    assert [each["name"] for each in tags] == ["model", "coder", "third"]
    assert [each["name"] for each in get(daemon, "/api/ps")["models"]] == ["model", "coder"]
    claude = get(daemon, "/v1/models", anthropic_version="2023-06-01")
    assert [each["id"] for each in claude["data"]][1:] == [
        "anthropic-local/coder", "anthropic-local/third",
    ]  # fmt: skip
    assert (claude["first_id"], claude["last_id"]) == (
        "anthropic-local/model", "anthropic-local/third",
    )  # fmt: skip


def test_routes_about_a_model_are_about_the_one_that_is_named(daemon: DaemonProcess) -> None:
    port = port_of(daemon)
    assert post(port, "/api/show", {"model": "third"}).json["model_info"]["general.basename"] == (
        "third"
    )
    assert get(daemon, "/props?model=coder")["model_alias"] == "coder-file"
    assert get(daemon, "/props")["model_alias"] == "model"
    tokens = post(port, "/tokenize", {"content": "ab", "model": "coder"}).json["tokens"]
    assert tokens == [97, 98]


def test_models_are_loaded_and_freed_by_name(daemon: DaemonProcess) -> None:
    port = port_of(daemon)

    def status(name: str) -> str:
        listed = get(daemon, "/v1/models")["data"]
        return next(str(each["status"]["value"]) for each in listed if each["id"] == name)

    assert post(port, "/models/load", {"model": "third"}).json["success"] is True
    assert status("third") == "loaded"
    assert post(port, "/models/unload", {"model": "third"}).status == 200
    assert status("third") == "unloaded" and status("model") == "loaded"
    refused = post(port, "/v1/chat/completions", {**CHAT, "model": "third"})
    assert refused.status == 503 and "third is unloaded" in refused.json["error"]["message"]
    assert post(port, "/load", {"model": "/etc/passwd"}).status == 403
