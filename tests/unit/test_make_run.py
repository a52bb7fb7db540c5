"""What ``make run`` starts the daemon with."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tools.room import too_little
from tools.run import arguments, is_free, with_http, with_model
from umaserve.models import chosen

ROOT = Path(__file__).parents[2]


@pytest.fixture
def port() -> Iterator[int]:
    """One that is free."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        number = taken.getsockname()[1]
    yield number


@pytest.mark.parametrize("given", [[], ["--dashboard", "off"], ["serve", "--parallel", "4"]])
def test_http_is_on(given: list[str], port: int) -> None:
    http = ["--http", f"127.0.0.1:{port}"]
    assert with_http(given, {"UMA_HTTP": ""}, port) == [*given, *http]
    assert arguments(given, {"UMA_HTTP": ""}, port) == [*given, "--model", "demo", *http]


@pytest.mark.parametrize(
    ("given", "environment"),
    [
        (["--http", "off"], {}),
        (["--http=unix:/tmp/h.sock"], {}),
        (["--config", "uma.toml"], {}),
        ([], {"UMA_HTTP": "off"}),
        ([], {"UMA_CONFIG": "uma.toml"}),
    ],
)
def test_whoever_says_where_http_is_has_it_so(
    given: list[str], environment: dict[str, str], port: int
) -> None:
    assert with_http(given, environment, port) == given


def test_another_command_gets_nothing_more(port: int) -> None:
    assert arguments(["doctor"], {}, port) == ["doctor"]


@pytest.mark.parametrize(
    ("given", "environment"),
    [
        (["--model", "m.gguf"], {}),
        (["--model=hf:a/b"], {}),
        (["-m", "m.gguf"], {}),
        (["m.gguf"], {}),
        (["serve", "m.gguf", "--mlock"], {}),
        (["serve", "qwen3-4b"], {}),
        ([], {"UMA_MODEL": "m.gguf"}),
        (["--config", "named.toml"], {}),
        ([], {"UMA_CONFIG": "named.toml"}),
        (["--config", "gone.toml"], {}),  # the daemon says so
    ],
)
def test_whoever_names_a_model_gets_it(
    given: list[str], environment: dict[str, str], files: Path
) -> None:
    assert with_model(given, environment) == given


@pytest.mark.parametrize("given", [[], ["--mlock"], ["serve"], ["--config", "unnamed.toml"]])
def test_where_nobody_names_a_model_it_is_the_bundled_one_and_nobody_is_asked(
    given: list[str], files: Path
) -> None:
    assert with_model(given, {}) == [*given, "--model", "demo"]


def test_what_was_chosen_before_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMA_STATE_DIR", str(tmp_path / "state"))
    chosen.choose("hf:a/b")
    assert with_model(["--mlock"], {}) == ["--mlock"]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Config files in the current folder: one names a model, the other does not."""
    (tmp_path / "named.toml").write_text('[model]\npath = "m.gguf"\n')
    (tmp_path / "unnamed.toml").write_text("[model]\nn_ctx = 512\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        assert with_http(["--mlock"], {}, port) == ["--mlock", "--http", "off"]
    told = capsys.readouterr().err
    assert f"port {port} is in use" in told and f"--http 127.0.0.1:{port + 1}" in told
    assert len(told.splitlines()) == 1


def test_a_port_of_a_connection_that_has_ended_is_free() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = listener.accept()
            accepted.close()  # the side that closes first keeps the port for a while
    assert is_free(port)


def test_a_full_disk_is_told_before_anything_is_fetched(tmp_path: Path) -> None:
    assert too_little(1, str(tmp_path / "not/yet/there")) == ""
    for name in ("ROOM", "TMP_ROOM"):
        words = ["make", "setup", f"VENV={tmp_path}/venv", f"{name}=1000000000000000000"]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and "Traceback" not in done.stderr
        assert "is too full: " in done.stderr and "this takes up to 1000000000.0 GB" in done.stderr
        assert not (tmp_path / "venv").exists()


def test_models_to_fetch_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with_model([], {})
    assert "umaserve: real models for this machine: " in capsys.readouterr().err
    with_model(["--model", "demo"], {})
    assert capsys.readouterr().err == ""
