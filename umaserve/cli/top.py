"""``umaserve top``: the dashboard of a running daemon, attached over its socket."""

from __future__ import annotations

import argparse
import errno
import re
import sys
import time

from umaserve.cli.parts.common import (
    EXIT_CANNOT_SERVE,
    EXIT_OK,
    Parser,
    add_socket,
    say,
    show,
    silence,
)
from umaserve.client import Client
from umaserve.client.connect import socket_path
from umaserve.system.own_file import write_own

ANSWER_S = 5.0
BETWEEN_S = 1.0  # two looks, for rates


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,4})x(\d{1,4})", text)
    if not match or "0" in match.groups():
        raise argparse.ArgumentTypeError(f"{text!r} is no size; columns x lines, such as 80x24")
    return int(match[1]), int(match[2])


def top(arguments: list[str]) -> int:
    """Draw until ``q`` or a signal; a daemon that restarts is found again."""
    parser = Parser(
        prog="umaserve top",
        description="The live dashboard of a running daemon.",
        epilog="Keys: arrows select a request, Enter shows its details; ? lists all keys.",
    )
    parser.add_argument("--once", action="store_true", help="print the screen once and leave")
    parser.add_argument(
        "--interval", type=float, default=0.25, metavar="S", help="seconds between two (0.25)"
    )
    parser.add_argument(
        "--size", type=_size, metavar="WxH", help="with --once: columns and lines (80x24)"
    )
    parser.add_argument("--svg", metavar="FILE", help="with --once: a picture instead of text")
    add_socket(parser)
    options = parser.parse_args(arguments)
    if (options.svg or options.size) and not options.once:
        parser.error("--svg and --size go with --once")
    path = socket_path(options.socket)
    if options.once:
        try:
            return _once(path, options.size, options.svg)
        except OSError as error:
            return _unwritable(error, options.svg)
    # the first time, a missing daemon is an error
    Client(path, timeout=ANSWER_S).close()
    import trio

    from umaserve.dashboard import LEAVING, Dashboard, View
    from umaserve.dashboard.socket_feed import SocketFeed

    interval_s = min(max(options.interval, 0.05), 3600.0)
    view = View(where=path)

    async def run() -> tuple[int, OSError | None]:
        dashboard = Dashboard(SocketFeed(path), view, interval_s=interval_s, leaving=LEAVING)
        return await dashboard.run(), dashboard.broken

    status, broken = trio.run(run)
    # a terminal that is gone hears nothing any more
    return status if broken is None or broken.errno == errno.EIO else _unwritable(broken)


def _once(path: str, size: tuple[int, int] | None, picture: str | None) -> int:
    from umaserve.dashboard import Screen, View
    from umaserve.dashboard.canvas.line import svg, text

    view = View(where=path, keys=bool(picture))
    with Client(path, timeout=ANSWER_S) as client:
        view.update(client.overview())
        time.sleep(BETWEEN_S)
        view.update(client.overview())
    lines = Screen(*(size or (80, 24))).lines(view)
    if picture is None:
        show(text(lines))
        return EXIT_OK
    write_own(picture, svg(lines, f"umaserve top --socket {path}").encode())
    return EXIT_OK


def _unwritable(error: OSError, path: str | None = None) -> int:
    """Raises a ``BrokenPipeError`` on: a reader that has what it wanted."""
    if isinstance(error, BrokenPipeError):
        raise error
    if path is None:
        silence(sys.stdout)
    say(f"error: {path or 'the output'} cannot be written: {error.strerror}")
    return EXIT_CANNOT_SERVE
