"""HTTP for this machine, where a person starts the daemon and does not say where HTTP is."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace

from umaserve.config import Config

HOST, PORT = "127.0.0.1", 8080


def with_local_http(config: Config, tell: Callable[[str], None], port: int = PORT) -> Config:
    """``config`` with HTTP at loopback, unless somebody says where HTTP is, or has a config file.

    Where another program has the port, ``tell`` gets a sentence, and there is no HTTP.
    """
    if config.origin.get("http", "default") != "default" or config.config:
        return config
    if not is_free(port):
        tell(in_use(port))
        return config
    return replace(config, http=f"{HOST}:{port}")


def in_use(port: int) -> str:
    """Return the sentence for a port that another program has."""
    return (
        f"port {port} is in use by another program, so there is no HTTP; "
        f"--http {HOST}:{port + 1} takes another port"
    )


def is_free(port: int) -> bool:
    """Whether the daemon could listen there; connections that have ended do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
