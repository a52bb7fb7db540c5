"""The gateway as the front's child: ``python -m umaserve.gateway``, never started by hand.

Its argument is JSON: ``[SETTINGS, CONTROL, [SOCKET, ...]]``, with descriptors.  Over the control
socket go lines of JSON to the front: ``{"ready": true}``, ``{"level", "text"}`` for its log, and
``{}`` every `PULSE_S` while requests are taken, since a gateway that says nothing is replaced.
The end of that socket, which is also the end of the front, ends the gateway.
"""

from __future__ import annotations

# ruff: noqa: E402
import os

from umaserve.system.own_process import die_with_parent, forbid_core_dumps, name_process

if __name__ == "__main__":  # the next front may want the sockets that listen, at once
    die_with_parent(os.getppid())

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import uvloop

from umaserve.gateway.keys import KeyFileError, read_keys
from umaserve.gateway.process import serve
from umaserve.gateway.settings import Settings

PULSE_S = 2.0


def main(argument: str) -> int:
    """Serve until told to end; 1 where that cannot be."""
    name_process("uma-gateway")
    kind = tuple[Settings, int, list[int]]
    settings, control, listening = msgspec.json.decode(argument, type=kind)
    if not settings.core_dumps:
        forbid_core_dumps()
    front = socket.socket(fileno=control)
    front.setblocking(False)
    sockets = [socket.socket(fileno=number) for number in listening]

    def tell(**words: Any) -> None:
        with contextlib.suppress(OSError):  # the front reads nothing, or is gone
            front.send(msgspec.json.encode(words) + b"\n")

    def say(level: str, text: str) -> None:
        tell(level=level, text=text)

    def ready(loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> None:
        def heard() -> None:  # the front says nothing; this is its end
            with contextlib.suppress(BlockingIOError):
                front.recv(1)
                loop.remove_reader(front)
                end()

        def pulse() -> None:
            tell()
            loop.call_later(PULSE_S, pulse)

        loop.add_reader(front, heard)
        tell(ready=True)
        pulse()

    try:
        keys = read_keys(settings.api_key_file)
    except KeyFileError as error:
        say("error", str(error))
        return 1
    if not keys:
        try:
            keys = read_keys(settings.own_key_file, asked=False)
        except KeyFileError as error:
            say("warn", f"the owner's own key is not taken: {error}")
    uvloop.run(serve(settings, keys, sockets, say, ready))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
