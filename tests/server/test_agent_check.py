"""The agent check of a load balancer: who may reach it, and that it answers whoever connects."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest
import trio

from tests.support.gateway import everything
from tests.support.ports import free_port
from tests.support.server_harness import DaemonProcess
from umaserve.config import load_config
from umaserve.server.agent_check import MOST_OPEN, open_agent_check
from umaserve.server.clients.listener import SocketError


def test_clients_that_stay_keep_no_other_from_an_answer(tmp_path: Path) -> None:
    port = free_port()
    with (
        DaemonProcess(tmp_path, agent_check=f"127.0.0.1:{port}") as daemon,
        contextlib.ExitStack() as held,
    ):
        for _ in range(3 * MOST_OPEN):
            sock = socket.create_connection(("127.0.0.1", port), 60)
            held.enter_context(sock)
            assert everything(sock) == b"up ready 100%\n"
        assert daemon.info()["state"] == "serving"


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_what_other_machines_reach_needs_keys(host: str) -> None:
    async def listen(**settings: str) -> int:
        config = load_config({"agent_check": f"{host}:0", **settings})
        async with open_agent_check(config) as listeners:
            return len(listeners)

    if host == "[::]" and not socket.has_ipv6:
        pytest.skip("there is no IPv6 here")
    with pytest.raises(SocketError, match="--agent-check .* needs --api-key-file"):
        trio.run(listen)

    async def with_keys() -> int:
        return await listen(api_key_file="/keys")

    assert trio.run(with_keys) >= 1
