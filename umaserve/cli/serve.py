"""``umaserve serve``: flags, environment and file into a ``Config``, and the daemon with it."""

from __future__ import annotations

import sys
from functools import partial

from umaserve.cli.build import is_whole, make_whole
from umaserve.cli.models.choose import NoModel, somebody_asks, with_model
from umaserve.cli.parts.common import (
    EXIT_CANNOT_SERVE,
    EXIT_OK,
    EXIT_USAGE,
    Parser,
    say,
    show,
    silence,
)
from umaserve.cli.parts.local_http import with_local_http
from umaserve.config import Config, ConfigError, add_flags, flag_values, load_config


def _parser() -> Parser:
    parser = Parser(
        prog="umaserve serve",
        usage="umaserve serve [MODEL] [OPTIONS]",
        description="Run the daemon.  A flag beats the environment, which beats the config file.",
        epilog="Stop it with Ctrl-C or SIGTERM: it finishes what runs first (see --drain-s).",
    )
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print every setting and where it came from, as a config file, and leave",
    )
    add_flags(parser)
    return parser


def serve(arguments: list[str]) -> int:
    """The command; returns the daemon's exit status, 2 for settings that cannot be used."""
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--model", *arguments]
    options = _parser().parse_args(arguments)
    try:
        config = load_config(flag_values(options))
    except ConfigError as error:
        say(f"umaserve: {error}")
        return EXIT_USAGE
    for warning in config.warnings:
        say(f"umaserve: warning: {warning}")
    if options.print_config:
        show(config.explain())
        return EXIT_OK
    if sys.stdout.isatty():
        config = with_local_http(config, partial(_tell, config))
    try:
        config = with_model(config, somebody_asks(), partial(_tell, config))
    except NoModel as error:
        if str(error):
            say(f"umaserve: {error}")
        return error.status
    try:
        from umaserve.server.main import StartError, check_model
        from umaserve.server.main import serve as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("umaserve"):
            raise
        say(f"umaserve: {error.name} is not installed; `umaserve doctor` says what to do")
        return EXIT_CANNOT_SERVE
    if not is_whole(config.backend):
        try:
            check_model(config)  # before minutes of building
        except StartError as error:
            say(f"umaserve: {error}")
            return EXIT_CANNOT_SERVE
        status = make_whole(config.backend)
        if status != EXIT_OK:
            return status
    status = run(config)
    try:
        sys.stdout.flush()
    except OSError:  # a dashboard that nobody could see; the daemon served all the same
        silence(sys.stdout)
    return status


def _tell(config: Config, text: str) -> None:
    if not config.log_json:  # each line is an object then
        say(f"umaserve: {text}")
