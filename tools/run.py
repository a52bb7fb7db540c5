"""``make run``: the daemon, with HTTP at 127.0.0.1:8080 unless somebody says otherwise.

Where another program has that port, the daemon runs without HTTP, and a line says so.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping

HOST, PORT = "127.0.0.1", 8080
SETTINGS = ("--http", "--config")  # whoever gives one of these says where HTTP is, if anywhere


def arguments(given: list[str], environment: Mapping[str, str], port: int = PORT) -> list[str]:
    """What to start ``umaserve`` with."""
    serves = not given or given[0] == "serve" or given[0].startswith("-")
    named = any(word.split("=")[0] in SETTINGS for word in given)
    if not serves or named or environment.get("UMA_HTTP") or environment.get("UMA_CONFIG"):
        return given
    if not is_free(port):
        print(
            f"port {port} is in use by another program, so there is no HTTP; "
            f'make run ARGS="--http {HOST}:{port + 1}" takes another port',
            file=sys.stderr,
        )
        return given
    return [*given, "--http", f"{HOST}:{port}"]


def is_free(port: int) -> bool:
    """Whether the daemon could listen there; connections that have ended do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


if __name__ == "__main__":
    words = arguments(sys.argv[1:], os.environ)
    os.execv(sys.executable, [sys.executable, "-m", "umaserve", *words])
