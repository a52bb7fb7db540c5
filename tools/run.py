"""``make run``: the daemon, with HTTP at 127.0.0.1:8080 unless somebody says otherwise.

Where another program has that port, the daemon runs without HTTP, and a line says so.  It asks for
no model: it serves the one that is named or was chosen before, else the bundled one, and names
models that could be fetched.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from umaserve.cli import is_model
from umaserve.cli.models.suggest import sentence
from umaserve.cli.parts.common import Parser
from umaserve.cli.parts.local_http import HOST, PORT, in_use, is_free
from umaserve.config import ConfigError, add_flags, flag_values, load_config
from umaserve.models.chosen import chosen
from umaserve.models.finding.reference import DEMO

SETTINGS = ("--http", "--config")  # whoever gives one of these says where HTTP is, if anywhere


def arguments(given: list[str], environment: Mapping[str, str], port: int = PORT) -> list[str]:
    """What to start ``umaserve`` with."""
    if given and given[0] != "serve" and not given[0].startswith("-") and not is_model(given[0]):
        return given
    return with_http(with_model(given, environment), environment, port)


def with_model(given: list[str], environment: Mapping[str, str]) -> list[str]:
    """Names the bundled model where nobody says or said which."""
    words = given[1:] if given[:1] == ["serve"] else given
    is_named = bool(words) and not words[0].startswith("-")
    if is_named or chosen() or any(map(is_model, given)):
        return given
    parser = Parser(prog="umaserve", add_help=False)
    add_flags(parser)
    known, _ = parser.parse_known_args(given)
    try:
        named = load_config(flag_values(known), environment).origin["model"] != "default"
    except ConfigError:  # the daemon says what is wrong
        return given
    if named:
        return given
    print(f"umaserve: {sentence()}", file=sys.stderr)
    return [*given, "--model", DEMO]


def with_http(given: list[str], environment: Mapping[str, str], port: int) -> list[str]:
    """Adds where HTTP is, where nobody says that."""
    named = any(word.split("=")[0] in SETTINGS for word in given)
    if named or environment.get("UMA_HTTP") or environment.get("UMA_CONFIG"):
        return given
    if not is_free(port):
        print(f'{in_use(port)} (make run ARGS="--http …")', file=sys.stderr)
        return [*given, "--http", "off"]
    return [*given, "--http", f"{HOST}:{port}"]


if __name__ == "__main__":
    words = arguments(sys.argv[1:], os.environ)
    os.execv(sys.executable, [sys.executable, "-m", "umaserve", *words])
