"""``umaserve gateway``: the HTTP gateway by itself, in front of a daemon that runs."""

from __future__ import annotations

import signal

import trio

from umaserve.cli.parts.common import (
    EXIT_CANNOT_SERVE,
    EXIT_OK,
    EXIT_USAGE,
    Parser,
    add_socket,
    say,
)
from umaserve.client.connect import socket_path
from umaserve.config import Config, ConfigError, add_flags, flag_values, load_config
from umaserve.server.clients.listener import SocketError
from umaserve.server.gateway.child import GatewayChild
from umaserve.server.gateway.listener import open_http, problem_with

LISTEN = "127.0.0.1:8080"
FLAGS = (
    "api_key_file", "tls_cert", "tls_key", "insecure_http", "allow_host", "allow_origin",
    "model_dir", "allow_image_urls", "max_connections", "idle_timeout_s", "core_dumps",
)  # fmt: skip


def gateway(arguments: list[str]) -> int:
    """The command: serves until SIGTERM or SIGINT."""
    parser = Parser(
        prog="umaserve gateway",
        description="Speak HTTP in front of a running daemon, as `umaserve serve --http` does.",
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT|unix:PATH",
        default=LISTEN,
        help=f"where HTTP is spoken (default: {LISTEN})",
    )
    add_socket(parser)
    add_flags(parser, FLAGS)
    options = parser.parse_args(arguments)
    try:
        told = {**flag_values(options), "http": options.listen}
        told["socket"] = socket_path(options.socket)
        config = load_config(told)
    except ConfigError as error:
        say(f"umaserve: {str(error).replace('flag --http', '--listen')}")
        return EXIT_USAGE
    problem = problem_with(config.http, config.socket)
    if problem:
        say(f"umaserve: {problem}")
        return EXIT_CANNOT_SERVE
    try:
        return trio.run(_serve, config)
    except SocketError as error:
        say(f"umaserve: {str(error).replace('--http', '--listen')}")
        return EXIT_CANNOT_SERVE


async def _serve(config: Config) -> int:
    """The gateway's process, followed as the daemon does it, until a signal."""
    async with (
        open_http(config) as http,
        trio.open_nursery() as nursery,
    ):
        assert http is not None
        status = EXIT_OK

        def log(level: str, text: str) -> None:
            say(f"umaserve: {text}" if level == "info" else f"umaserve: {level}: {text}")

        def on_ready() -> None:
            log("info", f"{http.url} answers for the daemon at {config.socket}")

        async def follow() -> None:
            nonlocal status
            child = GatewayChild(config, http, log, on_ready)
            if http.claimed is not None:
                nursery.start_soon(http.claimed.keep, log, child.serve)
            await child.run()
            status = EXIT_CANNOT_SERVE
            nursery.cancel_scope.cancel()

        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            nursery.start_soon(follow)
            async for _ in signals:
                nursery.cancel_scope.cancel()
                break
    return status
