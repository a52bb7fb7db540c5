"""``run``: have a model served, and talk to it."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

from umaserve.cli.parts.common import (
    EXIT_CANNOT_SERVE,
    EXIT_OK,
    EXIT_USAGE,
    Parser,
    add_socket,
    answer,
    in_a_line,
    model_once_loaded,
    say,
)
from umaserve.client import Client, ConnectionFailed, OtherUser
from umaserve.client.connect import socket_path

LOOK_S = 0.1
TAIL = 5  # lines of the log of a daemon that did not start


def run(arguments: list[str]) -> int:
    """The command; returns the status of the conversation."""
    parser = Parser(
        prog="umaserve run",
        usage="umaserve run [NAME] [PROMPT] [OPTIONS]",
        description="Serve NAME if no daemon runs, then chat with it; the daemon stays.  With "
        "PROMPT: print one answer.",
        epilog="`umaserve stop` ends the daemon.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="as --model takes it")
    parser.add_argument("words", nargs="*", metavar="PROMPT", help="what to ask, instead of a chat")
    add_socket(parser)
    options = parser.parse_args(arguments)
    path = socket_path(options.socket)
    status = _have(path, options.name)
    if status != EXIT_OK:
        return status
    if options.words:
        from umaserve.cli.generate import generate

        return generate(["--socket", path, "-p", " ".join(options.words)])
    from umaserve.cli.chat.command import chat

    return chat(["--socket", path])


def _have(path: str, name: str | None) -> int:
    """Have a daemon at ``path`` that serves ``name``; an exit status."""
    from umaserve.cli.models.choose import NoModel, named, somebody_asks
    from umaserve.models.finding.places import places

    model = ""
    if name:
        try:
            where = places(model_dir=os.environ.get("UMA_MODEL_DIR", ""))
            model = named(name, where, somebody_asks()) or "demo"
        except NoModel as error:
            if str(error):
                say(f"umaserve: {error}")
            return error.status
    try:
        client = Client(path)
    except OtherUser:
        raise
    except ConnectionFailed:
        return _start(path, model)
    with client:
        info = model_once_loaded(client)
    return _serve_instead(path, name or "", model, info)


def _serve_instead(path: str, name: str, model: str, info: dict[str, Any]) -> int:
    """Load ``model`` into the daemon that runs, unless it has it: after a question, for it is for
    everybody."""
    from umaserve.assets import demo_model_path
    from umaserve.cli.models.choose import somebody_asks

    now = info.get("model") or {}
    file = str(demo_model_path()) if model == "demo" else model
    if not model or (now and os.path.realpath(file) == os.path.realpath(str(now.get("path", "")))):
        return EXIT_OK
    if now:
        say(f"the daemon serves {in_a_line(str(now.get('name')))}, for all its programs.")
        question = f"Serve {in_a_line(name)} instead? [y/N] "
        if not somebody_asks() or (answer(question) or "").lower() not in ("y", "yes"):
            say(f"nothing was changed; `umaserve load {in_a_line(name)}` serves it")
            return EXIT_USAGE
    from umaserve.cli.admin import load

    return load(["--socket", path, "--", model])


def _start(path: str, model: str) -> int:
    """Start a daemon that stays, and wait until it answers; an exit status."""
    from umaserve.cli.build import is_whole, make_whole
    from umaserve.cli.parts.local_http import with_local_http
    from umaserve.config import ConfigError, load_config
    from umaserve.system.own_python import run_module
    from umaserve.system.private_folder import make_private
    from umaserve.system.state_folder import OWN_STATE, state_folder

    try:
        config = load_config({"socket": path})
    except ConfigError as error:
        say(f"umaserve: {error}")
        return EXIT_USAGE
    if not is_whole(config.backend):
        status = make_whole(config.backend)
        if status != EXIT_OK:
            return status
    config = with_local_http(config, lambda text: say(f"umaserve: {text}"))
    words = [*run_module("umaserve"), "serve", "--socket", path, "--http", config.http]
    words += ["--model", model] if model else []
    folder = state_folder()
    make_private(folder, OWN_STATE)
    log = folder / "daemon.log"
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    say(f"(starting a daemon that stays until `umaserve stop`; its log: {log})")
    while True:
        try:
            with Client(path) as client:
                model_once_loaded(client)
                return EXIT_OK
        except ConnectionFailed:
            if child.poll() is not None:
                say("error: the daemon did not start:")
                for line in log.read_text("utf-8", "replace").splitlines()[-TAIL:]:
                    say(f"  {line}")
                return EXIT_CANNOT_SERVE
        time.sleep(LOOK_S)

