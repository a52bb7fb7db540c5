"""Clients of the daemon: ``Client`` over a blocking socket, ``TrioClient`` under trio.

    from umaserve.client import Client

    with Client() as client:
        print(client.complete("def fibonacci(n):", max_tokens=64).text)

``TrioClient`` is imported when it is asked for: a program that does not use it never loads trio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from umaserve.client.events import (
    Completion,
    ConnectionFailed,
    Eos,
    InvalidRequest,
    OtherUser,
    ProtocolError,
    ServerError,
    Timings,
    Token,
    UmaError,
    Usage,
)
from umaserve.client.options import Options
from umaserve.client.sync import Client, Stream

if TYPE_CHECKING:
    from umaserve.client.async_trio import TrioClient, TrioStream

__all__ = [
    "Client", "Completion", "ConnectionFailed", "Eos", "InvalidRequest", "Options", "OtherUser",
    "ProtocolError", "ServerError", "Stream", "Timings", "Token", "TrioClient", "TrioStream",
    "UmaError", "Usage",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in ("TrioClient", "TrioStream"):
        from umaserve.client import async_trio as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
