"""``ps`` and ``stop``: what a running daemon has loaded and for whom, and its end."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

from umaserve.cli.parts.common import (
    EXIT_CANNOT_SERVE,
    EXIT_OK,
    Parser,
    add_socket,
    in_a_line,
    say,
    show,
)
from umaserve.client import Client, ConnectionFailed, ServerError
from umaserve.client.connect import socket_path
from umaserve.system.peer import Peer

LOOK_S = 0.1
END_S = 15.0  # for a daemon to leave that has closed its connections
NAMES = ("umaserve", "umad")  # of a daemon's process
HEADINGS = ("MODEL", "STATE", "MEMORY", "CONTEXT", "USERS", "ADDRESS")


def ps(arguments: list[str]) -> int:
    """Print a line for each model."""
    parser = Parser(
        prog="umaserve ps",
        description="The models that a daemon has loaded: state, memory, and who uses them.",
    )
    parser.add_argument("--json", action="store_true", help="as one JSON array")
    add_socket(parser)
    options = parser.parse_args(arguments)
    with Client(options.socket) as client:
        info = client.info()
        rows = [
            _row(model, info)
            for model in info["models"]
            if model["state"] != "unloaded" or not model["default"]
        ]
    if options.json:
        show(json.dumps(rows, ensure_ascii=False))
    elif not rows:
        show("no model is loaded; `umaserve load MODEL` serves one")
    else:
        table = [HEADINGS, *map(_cells, rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for cells in table:
            padded = (text.ljust(width) for text, width in zip(cells, widths, strict=True))
            show("  ".join(padded).rstrip())
    return EXIT_OK


def _row(model: dict[str, Any], info: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": os.path.basename(model["id"]),
        "path": model["path"],
        "state": "stopping" if info["state"] == "stopping" else model["state"],
        "progress": model.get("progress"),
        "rss_gb": model["rss_gb"],
        "n_ctx": model.get("n_ctx"),
        "users": model["users"],
        "socket": info["socket"],
        "http": info["http"],
        "pid": info["pid"],
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    state, memory = str(row["state"] or "-"), row["rss_gb"]
    if row["progress"] is not None:
        state += f" {row['progress']:.0%}"
    users = ", ".join(f"{app} {count}" for app, count in row["users"].items())
    addresses = (row["socket"], row["http"])
    return (
        in_a_line(str(row["name"])),
        state,
        "-" if memory is None else f"{memory:.1f} GB",
        str(row["n_ctx"] or "-"),
        in_a_line(users) or "nobody",
        in_a_line(" ".join(str(each) for each in addresses if each)) or "-",
    )


def stop(arguments: list[str]) -> int:
    """End the daemon as SIGTERM does, and wait until it has left."""
    parser = Parser(
        prog="umaserve stop",
        description="End the daemon: what runs may finish first (see --drain-s of serve).",
    )
    add_socket(parser)
    options = parser.parse_args(arguments)
    with Client(options.socket) as client:
        info = client.info()
        pid = int(info["pid"])
        if sys.platform.startswith("linux") and Peer(pid).app not in NAMES:
            say(
                f"error: process {pid} is not the daemon here; it may run in a container. Stop it "
                "where it was started"
            )
            return EXIT_CANNOT_SERVE
        os.kill(pid, signal.SIGTERM)
        running = len(info["sessions"])
        if running:
            what = "1 request has" if running == 1 else f"{running} requests have"
            limit_s = (info.get("limits") or {}).get("drain_s", 0)
            say(f"({what} {limit_s:g} s to end; `umaserve stop` again ends at once)")
        try:
            while True:
                client.ping()
                time.sleep(LOOK_S)
        except (ConnectionFailed, ServerError):
            pass
    _wait_for_the_end(str(info.get("socket") or socket_path(options.socket)), pid)
    show("stopped")
    return EXIT_OK


def _wait_for_the_end(path: str, pid: int) -> None:
    """Wait until another daemon can have the socket."""
    until_s = time.monotonic() + END_S
    while os.path.lexists(f"{path}.lock") and time.monotonic() < until_s:
        try:
            os.kill(pid, 0)
        except OSError:
            return
        time.sleep(LOOK_S)
