"""Looks after a socket's file while the daemon runs: somebody may delete or replace it.

Who is connected already notices nothing of that; nobody else would come in any more.
"""

from __future__ import annotations

from collections.abc import Callable
from socket import socket

import trio

from umaserve.server.clients.listener import ClaimedSocket, SocketError
from umaserve.server.engines.slow_files import ask_file

EVERY_S = 4.0
AGAIN_S = 3.0  # where it cannot be bound now


async def keep_socket(
    claimed: ClaimedSocket, log: Callable[..., None], serve: Callable[[socket], None]
) -> None:
    """Bind again where the file is not ours any more, and ``serve`` the new socket; until
    cancelled.  Where that is impossible it is said once, and tried again."""
    said = ""
    while True:
        await trio.sleep(AGAIN_S if said else EVERY_S)
        try:
            if await ask_file(lambda _: claimed.is_there(), claimed.path):
                continue
            old = claimed.socket
            what = claimed.renew()
        except SocketError as error:
            if said != str(error):
                said = str(error)
                log("error", f"nobody can connect any more: {said}")
            continue
        except Exception as error:  # its folder does not answer, say
            log("debug", f"{claimed.path} cannot be looked at: {error}")
            continue
        said = ""
        log("warn", f"{what} was gone; it is there again")
        if claimed.socket is not old:
            serve(claimed.socket)
            trio.lowlevel.notify_closing(old)
            old.close()
