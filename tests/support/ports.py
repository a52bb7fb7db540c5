"""Ports for programs that cannot say which port they took."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A TCP port of this machine that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
