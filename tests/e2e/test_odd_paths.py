"""Paths and names with bytes that are no UTF-8."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_engine import answer
from tests.support.fixtures.commands import outcome, run
from tests.support.fixtures.fake_daemon import FakeDaemon
from tests.support.server_harness import DaemonProcess, RawClient, eventually, model_file, running
from umaserve.protocol import encode_frame
from umaserve.system.peer import peer_of
from umaserve.texts import path_of, printable, sendable_path
from umaserve.wire import messages as m

ODD = "x\udcff\udc80 é.gguf"  # as Python spells the bytes ff and 80
SHOWN = "x\ufffd\ufffd é.gguf"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    folder = tmp_path_factory.mktemp("daemon")
    yield from running(
        folder,
        model=model_file(folder / ODD),
        socket=str(folder / "s\udcfe.sock"),
        log_json=True,
        scorecard=str(folder / "c\udcff.csv"),
    )


def uri(path: str) -> str:
    return Path(path).as_uri()


def test_a_daemon_serves_and_shows_them(daemon: DaemonProcess, client: RawClient) -> None:
    assert bytes(client.generate("x", max_tokens=5).tokens) == answer("x", 5)
    info = daemon.info()
    assert info["model"]["path"] == printable(daemon.model)
    assert info["socket"] == printable(daemon.path)
    assert daemon.metrics()["model"] == SHOWN.removesuffix(".gguf")
    eventually(lambda: "serving" in daemon.log)
    client.send(type="metrics", sessions=True)
    log = client.answer("metrics")["log"]
    assert any(printable(daemon.path) in line["text"] for line in log)
    assert "Traceback" not in daemon.log


def test_an_engine_is_started_again_with_the_same(daemon: DaemonProcess, client: RawClient) -> None:
    result = client.generate("[abort-once@2]", max_tokens=5)
    assert bytes(result.tokens) == answer("[abort-once@2]", 5)


def test_load_takes_them_as_uris(daemon: DaemonProcess, client: RawClient) -> None:
    other = model_file(daemon.directory / ("2" + ODD))
    client.send(type="load", model=uri(other))
    assert client.answer("loaded")["model"] == printable(other)
    client.send(type="load", model=uri(daemon.model + "nowhere"))
    error = client.answer("loaded")
    assert error["code"] == "E_MODEL_002"
    assert f"{printable(daemon.model)}nowhere does not exist" in error["message"]
    broken = model_file(daemon.directory / ("load-fails" + ODD))
    client.send(type="load", model=uri(broken))
    assert f"load-fails{SHOWN} is broken on purpose" in client.answer("loaded")["message"]


def test_a_client_whose_name_is_no_text_is_served(daemon: DaemonProcess) -> None:
    """A name is cut after 15 bytes, which may be within a character."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the name of a process comes from /proc")
    libc = ctypes.CDLL(None)
    before = ctypes.create_string_buffer(16)
    libc.prctl(16, before, 0, 0, 0)  # PR_GET_NAME
    libc.prctl(15, "fourteen bytesé".encode()[:15], 0, 0, 0)  # PR_SET_NAME
    try:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            assert peer_of(ours).app == "fourteen bytes\ufffd"
        with daemon.client() as client:
            client.ask("a", "x", max_tokens=500)
            client.wait_tokens("a", 1)
            client.send(type="info")
            (session,) = client.answer("info")["info"]["sessions"]
            assert session["app"] == "fourteen bytes\ufffd"
    finally:
        libc.prctl(15, before, 0, 0, 0)


def test_load_of_the_command_line_sends_a_uri(tmp_path: Path) -> None:
    path = str(tmp_path / ODD)
    with FakeDaemon(str(tmp_path / "d.sock")) as daemon:
        run("load", os.fsencode(path), daemon=daemon)
        run("load", os.fsencode(uri(path)), daemon=daemon)
        run("load", str(tmp_path / "é.gguf"), daemon=daemon)
        sent = [message.model for message in daemon.seen]
    assert sent == [uri(path), uri(path), str(tmp_path / "é.gguf")]


@pytest.mark.parametrize("how", ["flag", "environment"])
def test_a_model_that_is_not_there_is_named(how: str) -> None:
    path = b"/nowhere/x\xff.gguf"
    if how == "flag":
        done = run("--model", path)
    else:
        done = run(UMA_MODEL=os.fsdecode(path))
    assert done.returncode == 1
    assert "/nowhere/x" in done.stderr and "does not exist" in done.stderr


def test_odd_arguments_are_refused_in_words() -> None:
    for arguments in ([b"x\xff"], ["--n-ctx", b"\xff"], ["--config", b"/nowhere/\xff"]):
        done = run(*arguments)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    code, _, err = outcome(run("generate", "-p", b"\xff", "--socket", b"/nowhere/\xff"))
    assert code in (2, 3) and err.startswith("error: ")


def test_a_path_gets_to_the_engine_as_it_is() -> None:
    for path in ("/tmp/é.gguf", f"/tmp/{ODD}", "/tmp/50%FF.gguf"):
        start = m.Start(model_path=path, n_slots=1, n_ctx=8, n_seq=1)
        assert m.Channel("engine").feed(m.encode(start)) == [start]
        assert path_of(sendable_path(path)) == path
    (log,) = m.Channel("front").feed(m.encode(m.Log("warn", f"no {ODD}")))
    assert log == m.Log("warn", f"no {SHOWN}")
    (failed,) = m.Channel("front").feed(m.encode(m.Failed([3], "E", ODD)))
    assert failed == m.Failed([3], "E", SHOWN)


def test_frames_show_what_is_no_character() -> None:
    frame = encode_frame({"a": [ODD, {"b\udcff": (1, ODD)}]})
    assert frame[4:].decode() == f'{{"a":["{SHOWN}",{{"b\ufffd":[1,"{SHOWN}"]}}]}}'
