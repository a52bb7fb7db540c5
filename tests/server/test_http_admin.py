"""What a key may do and see: all with a key that is marked as an administrator's, else its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import begun, gateway, post
from tests.support.http_client import ask, port_of
from tests.support.server_harness import DaemonProcess, eventually, running
from umaserve.gateway import http_protocol
from umaserve.system.tcp_peer import UNTOLD

ALICE, BOB, ROOT = "key-of-alice-0001", "key-of-bob-000002", "key-of-root-00003"
FILE = f"alice {ALICE}\nbob {BOB}\nroot {ROOT} admin\n"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    folder = tmp_path_factory.mktemp("daemon")
    keys = folder / "keys"
    keys.write_text(FILE)
    keys.chmod(0o600)
    yield from running(folder, http="127.0.0.1:0", api_key_file=str(keys), model_dir=str(folder))


def get(daemon: DaemonProcess, path: str, key: str, **headers: str) -> Any:
    reply = ask(daemon, path, Authorization=f"Bearer {key}", **headers)
    assert reply.status == 200, reply.body
    return reply.body.decode() if "Accept" in headers else json.loads(reply.body)


def send(daemon: DaemonProcess, path: str, key: str, body: Any, **headers: str) -> Any:
    return post(port_of(daemon), path, body, Authorization=f"Bearer {key}", **headers)


def test_only_an_admin_loads_and_unloads(daemon: DaemonProcess) -> None:
    for path, body in (("/load", {"model": "model.gguf"}), ("/load", {}), ("/unload", {})):
        answer = send(daemon, path, ALICE, body)
        assert (answer.status, answer.json["error"]["code"]) == (403, "admin_needed"), path
    assert daemon.info()["state"] == "serving"
    assert send(daemon, "/load", ROOT, {"model": "model.gguf"}).status == 200
    assert send(daemon, "/unload", ROOT, {}).status == 200
    assert send(daemon, "/load", ROOT, {"model": "model.gguf"}).status == 200


def test_a_key_sees_its_own_requests(daemon: DaemonProcess) -> None:
    for key, app in ((ALICE, "editor"), (BOB, "indexer"), (BOB, "alice")):
        body = {"prompt": "x", "max_tokens": 2, "stream": False}
        assert send(daemon, "/generate", key, body, X_UMA_App=app).status == 200
    seen = {key: get(daemon, "/requests", key)["requests"] for key in (ALICE, BOB, ROOT)}
    assert {(row["key"], row["app"]) for row in seen[ALICE]} == {("alice", "editor")}
    assert {row["key"] for row in seen[BOB]} == {"bob"}
    assert {row["key"] for row in seen[ROOT]} == {"alice", "bob"}

    apps = {key: get(daemon, "/metrics", key)["apps"] for key in (ALICE, BOB, ROOT)}
    assert set(apps[ALICE]) == {"alice: editor"}  # and not what bob calls alice
    assert set(apps[BOB]) == {"bob: indexer", "bob: alice"}
    assert set(apps[ROOT]) == set(apps[ALICE]) | set(apps[BOB])
    assert apps[ALICE]["alice: editor"]["requests"] == 1
    totals = [get(daemon, "/metrics", key)["requests_total"] for key in (ALICE, ROOT)]
    assert totals[0] == totals[1] == 3
    for path in ("/metrics", "/metrics/prometheus"):
        text = get(daemon, path, ALICE, Accept="text/plain")
        assert "alice: editor" in text and "bob" not in text and "indexer" not in text


def test_a_key_moves_its_own_requests(daemon: DaemonProcess) -> None:
    body = {"prompt": "x" * 400, "max_tokens": 2000, "model": "slow"}
    with begun(port_of(daemon), "/generate", body, Authorization=f"Bearer {BOB}"):
        row = eventually(lambda: [r for r in daemon.info()["sessions"] if r["key"] == "bob"])[0]
        assert get(daemon, "/slots", ALICE) == []
        assert [slot["id_task"] for slot in get(daemon, "/slots", BOB)] == [row["serial"]]
        assert [slot["id_task"] for slot in get(daemon, "/slots", ROOT)] == [row["serial"]]
        for name in ("serial", "id"):
            wanted = {name: row[name], "priority": "background"}
            answer = send(daemon, "/priority", ALICE, wanted)
            assert answer.status == 400
            assert "name one request that runs or waits" in answer.json["error"]["message"]
        assert daemon.info()["sessions"][0]["lane"] != "background"
        for key, lane in ((BOB, "background"), (ROOT, "interactive")):
            wanted = {"serial": row["serial"], "priority": lane}
            assert send(daemon, "/priority", key, wanted).json == {"priority": lane}
            assert daemon.info()["sessions"][0]["lane"] == lane
        assert send(daemon, "/priority", BOB, {"serial": row["serial"]}).status == 400
    daemon.idle()


def test_a_path_is_for_an_admin(daemon: DaemonProcess) -> None:
    assert get(daemon, "/props", ROOT)["model_path"] == daemon.model
    assert get(daemon, "/props", ALICE)["model_path"] == "model.gguf"
    everything = "".join(
        json.dumps(get(daemon, path, ALICE))
        for path in (
            "/health", "/metrics", "/props", "/requests", "/slots", "/v1/models", "/api/tags",
            "/api/ps", "/api/version", "/openapi.json",
        )
    )  # fmt: skip
    assert str(Path(daemon.model).parent) not in everything


def test_a_model_that_is_gone_is_told_without_its_folder(daemon: DaemonProcess) -> None:
    folder = str(Path(daemon.model).parent)
    answer = send(daemon, "/load", ROOT, {"model": "keys"})
    assert answer.status == 400 and folder not in answer.body.decode()
    assert "keys" in answer.json["error"]["message"]


def test_the_owner_may_do_all_without_keys(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, http="127.0.0.1:0", model_dir=str(tmp_path)) as daemon:
        assert send(daemon, "/generate", "", {"prompt": "x", "max_tokens": 1}).status == 200
        with daemon.client() as client:
            client.generate("x", max_tokens=1, key="carol")
        assert {row["key"] for row in get(daemon, "/requests", "none")["requests"]} == {"", "carol"}
        assert send(daemon, "/unload", "none", {}).status == 200


def test_where_users_are_not_told_only_the_owners_key_unloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol.TcpPeers, "uid", lambda *_: UNTOLD)
    with (
        DaemonProcess(tmp_path) as daemon,
        gateway(daemon.path, owner=1, keys={ROOT: ""}, asked=False) as port,
    ):
        answer = post(port, "/unload", {})
        assert answer.status == 403 and "the owner's key" in answer.json["error"]["message"]
        assert post(port, "/unload", {}, X_Api_Key=ROOT).status == 200
