"""LoRA adapters by every way to name them; beside llama-server with the same file."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import LlamaServer
from tests.support.gateway import Posted, post
from tests.support.http_client import port_of
from tests.support.real_daemon import real
from tests.support.server_harness import DaemonProcess
from tests.support.small_models import ROOT, write_model
from umaserve.assets import demo_model_path
from umaserve.llama import builds

sys.path.insert(0, str(ROOT / "tools"))

from make_lora import write_lora  # noqa: E402

PROMPT = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n"
ASKED = {"prompt": PROMPT, "n_predict": 24, "temperature": 0.0, "ignore_eos": True}
SCALES = ([], [{"id": 0, "scale": 0.0}], [{"id": 0, "scale": 0.5}], [{"id": 0, "scale": 1.0}])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_lora(demo_model_path(), tmp_path_factory.mktemp("lora") / "a.gguf"))


@pytest.fixture(scope="module")
def daemon(path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    folder = tmp_path_factory.mktemp("daemon")
    with real(folder, lora=f"noise={path}", http="127.0.0.1:0") as daemon:
        yield daemon


def get(port: int, path: str) -> Any:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    return Posted(connection.getresponse()).json


def texts(port: int) -> list[str]:
    answers = [post(port, "/completion", {**ASKED, "lora": scales}) for scales in SCALES]
    assert all(each.status == 200 for each in answers), [each.body for each in answers]
    return [each.json["content"] for each in answers]


def test_a_request_names_scales(daemon: DaemonProcess) -> None:
    unnamed, off, half, on = texts(port_of(daemon))
    assert unnamed == on
    assert len({off, half, on}) == 3
    answer = post(port_of(daemon), "/completion", {**ASKED, "lora": SCALES[2]}).json
    assert answer["generation_settings"]["lora"] == SCALES[2]
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
    said = [
        post(port_of(daemon), "/v1/chat/completions", {**chat, "max_tokens": 16, "lora": scales})
        for scales in SCALES[1::2]
    ]
    first, second = (each.json["choices"][0]["message"] for each in said)
    assert first != second


def test_wrong_ones_are_refused(daemon: DaemonProcess) -> None:
    for lora, words in (
        ([{"id": 1, "scale": 1.0}], "adapter 1; there are 1"),
        ([{"id": 0, "scale": 101}], '"lora[0].scale" must be a number from -100 to 100'),
        ("noise", '"lora" must be a list of at most 256 objects of id and scale'),
    ):
        answer = post(port_of(daemon), "/completion", {**ASKED, "lora": lora})
        assert answer.status == 400 and words in answer.json["error"]["message"], answer.body


def test_the_scales_of_all_others_change(daemon: DaemonProcess, path: str) -> None:
    port = port_of(daemon)
    unnamed, off, *_ = texts(port)
    (listed,) = get(port, "/lora-adapters")
    assert (listed["id"], listed["path"], listed["scale"]) == (0, path, 1.0)
    assert get(port, "/props")["lora_adapters"] == [listed]
    with daemon.client() as client:
        client.send(type="adapters")
        assert client.answer("adapters")["adapters"] == [listed]
    assert daemon.info()["model"]["adapters"] == [listed]
    try:
        assert post(port, "/lora-adapters", [{"id": 0, "scale": 0.0}]).json == {"success": True}
        assert get(port, "/lora-adapters") == [{**listed, "scale": 0.0}]
        assert texts(port)[0] == off
        assert post(port, "/lora-adapters", [{"id": 3, "scale": 1.0}]).status == 400
        assert post(port, "/lora-adapters", {}).status == 400
    finally:
        assert post(port, "/lora-adapters", [{"id": 0, "scale": 1.0}]).status == 200
    assert texts(port)[0] == unnamed


@pytest.mark.slow
@pytest.mark.skipif(
    not any((build.bin_dir / "llama-server").exists() for build in builds.installed()),
    reason="llama-server is not built: python build_llama.py --with-peers",
)
def test_llama_server_says_the_same(daemon: DaemonProcess, path: str) -> None:
    extra = ("--lora", path)
    model = str(demo_model_path())
    with LlamaServer(model, n_ctx=2048, parallel=1, threads=1, extra=extra) as server:
        assert texts(port_of(daemon)) == texts(server.port)
        ours, theirs = (get(port, "/lora-adapters") for port in (port_of(daemon), server.port))
    assert [{k: v for k, v in each.items() if k != "name"} for each in ours] == theirs


def test_what_began_with_another_file_of_an_adapter_ends(tmp_path: Path) -> None:
    """The next engine loads the file that is there; what does not use the adapter goes on."""
    first, second = (
        write_lora(demo_model_path(), tmp_path / f"{seed}.gguf", seed=seed) for seed in (1, 2)
    )
    fields: dict[str, Any] = {"max_tokens": 300, "temperature": 0, "ignore_eos": True}
    off: dict[str, Any] = {"lora": [{"id": 0, "scale": 0.0}], **fields}
    with real(tmp_path, lora=f"noise={first}") as daemon, daemon.client() as client:
        alone = client.generate(PROMPT, **off).text
        client.ask("changed", PROMPT, **fields)
        client.ask("off", PROMPT, **off)
        client.wait_tokens("changed", 2)
        client.wait_tokens("off", 2)
        shutil.copy(second, first)
        os.kill(daemon.engine_pid(), signal.SIGKILL)
        changed = client.finish("changed")[0]
        assert changed.error is not None and changed.error["code"] == "E_RUNTIME_002"
        assert "adapter noise is not the file" in changed.error["message"]
        assert client.finish("off")[0].text == alone
        assert client.generate(PROMPT, max_tokens=2).error is None


def test_other_models_have_none_of_the_default_one(path: str, tmp_path: Path) -> None:
    """An adapter fits its own model alone: another one would not load with it."""
    other = write_model(tmp_path / "other.gguf", "gemma3-micro")
    third = write_model(tmp_path / "third.gguf", "gemma3-micro")
    models = {"other": {"path": other}}
    with real(tmp_path, lora=f"noise={path}", models=models) as daemon, daemon.client() as client:
        assert daemon.info()["model"]["adapters"]
        assert client.generate("Hi", max_tokens=2, model="other").error is None
        for file, has_some in ((third, False), (str(demo_model_path()), True)):
            client.send(type="load", id=file, model=file)
            assert client.answer("loaded")["model"] == file
            assert ("adapters" in daemon.info()["model"]) == has_some
