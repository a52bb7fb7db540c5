"""What ``make run`` starts the daemon with."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from tools.run import arguments, is_free


@pytest.fixture
def port() -> Iterator[int]:
    """One that is free."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        number = taken.getsockname()[1]
    yield number


@pytest.mark.parametrize("given", [[], ["--dashboard", "off"], ["serve", "--parallel", "4"]])
def test_http_is_on(given: list[str], port: int) -> None:
    assert arguments(given, {"UMA_HTTP": ""}, port) == [*given, "--http", f"127.0.0.1:{port}"]


@pytest.mark.parametrize(
    ("given", "environment"),
    [
        (["--http", "off"], {}),
        (["--http=unix:/tmp/h.sock"], {}),
        (["--config", "uma.toml"], {}),
        ([], {"UMA_HTTP": "off"}),
        ([], {"UMA_CONFIG": "uma.toml"}),
        (["doctor"], {}),
    ],
)
def test_whoever_says_where_http_is_has_it_so(
    given: list[str], environment: dict[str, str], port: int
) -> None:
    assert arguments(given, environment, port) == given


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        assert arguments(["--mlock"], {}, port) == ["--mlock"]
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
