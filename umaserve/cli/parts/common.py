"""Shared parts of the commands: exit statuses, parser, output, and handling of errors."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn, TextIO

from umaserve import __version__
from umaserve.cli.parts.inherited import settle
from umaserve.client import (
    Client,
    ConnectionFailed,
    InvalidRequest,
    OtherUser,
    ProtocolError,
    ServerError,
)
from umaserve.client.connect import socket_path
from umaserve.visible import for_reader, visible

EXIT_OK = 0
EXIT_CANNOT_SERVE = 1
EXIT_USAGE = 2
EXIT_SERVER = 2
EXIT_PROTOCOL = 3
EXIT_INTERRUPTED = 130

STARTING_S = 3.0
LOOK_S = 0.2  # while a model loads

# what other servers and clients call it
FOREIGN = {
    "--host": "--http HOST:PORT", "--port": "--http HOST:PORT",
    "-c": "--n-ctx N", "--ctx-size": "--n-ctx N", "-ngl": "--gpu-layers N",
    "--n-gpu-layers": "--gpu-layers N", "-t": "--threads N", "-np": "--parallel N",
    "-n": "--max-tokens N", "--n-predict": "--max-tokens N", "--temperature": "--temp X",
}  # fmt: skip

# closed, full, or gone
OUTPUT_ERRORS = (errno.EBADF, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENXIO)


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line, with the nearest flag in it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self.add_argument("--version", action="version", version=f"umaserve {__version__}")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        known, extra = self.parse_known_args(args, namespace)
        if extra:
            self.error(self._unknown(extra[0]))
        return known

    def print_help(self, file: Any = None) -> None:  # argparse's own keeps quiet when it fails
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {for_reader(message, sys.stderr)}\n")

    def _unknown(self, word: str) -> str:
        if not word.startswith("-"):
            return f"unexpected argument {word!r}"
        from difflib import get_close_matches

        flag = word.split("=")[0]
        if flag in FOREIGN and FOREIGN[flag].split()[0] in self._option_string_actions:
            return f"unknown flag {flag}; here it is {FOREIGN[flag]}"
        near = get_close_matches(flag, list(self._option_string_actions), n=1)
        hint = f"did you mean {near[0]}?" if near else f"see `{self.prog} --help`"
        return f"unknown flag {flag}; {hint}"


def add_socket(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--socket",
        metavar="PATH",
        help="the daemon's socket (default: UMA_SOCK, else $XDG_RUNTIME_DIR/uma.sock if it is "
        "there, else /tmp/uma.sock)",
    )


def show(text: str, end: str = "\n") -> None:
    """Output proper: on a terminal with its control characters spelled out, else as it is."""
    print(for_reader(text, sys.stdout), end=end, flush=True)


def say(text: str) -> None:
    """A line for the person, apart from the output proper; dropped where it cannot be written."""
    with contextlib.suppress(OSError):
        print(for_reader(text, sys.stderr), file=sys.stderr, flush=True)


def answer(question: str) -> str | None:
    """The line that a person types, without spaces around it; None where they end the input."""
    sys.stderr.write(question)
    sys.stderr.flush()
    typed = ""
    try:
        typed = sys.stdin.readline()
    finally:
        if not typed:  # Ctrl-C and Ctrl-D leave the cursor behind the question
            sys.stderr.write("\n")
    return typed.strip() if typed else None


def in_a_line(text: str) -> str:
    """In one line, with nothing in it that a terminal obeys."""
    from umaserve.texts import printable

    return visible(printable(text)).replace("\n", "\\n").replace("\t", "\\t")


def client_of(path: str | None) -> Client:
    """A client of the daemon at ``path``; one that is starting is given a few seconds.

    Raises ``ConnectionFailed``.
    """
    until_s, told = time.monotonic() + STARTING_S, False
    while True:
        try:
            return Client(path)
        except OtherUser:
            raise
        except ConnectionFailed:
            if time.monotonic() > until_s or not os.path.isdir(os.path.dirname(socket_path(path))):
                raise
        if not told:
            say("(no daemon answers yet; waiting a moment for one that starts)")
            told = True
        time.sleep(0.1)


def model_once_loaded(client: Client, model: str | None = None) -> dict[str, Any]:
    """Return ``info`` once the model of that name, or the default, is loaded, or is not to be; tell
    the user about the wait."""
    said = False
    while True:
        info = client.info(model)
        if info.get("state") not in ("loading", "asleep"):
            return info
        if not said:
            say("(the model is loading)")
            said = True
        if info["state"] == "asleep":
            client.tokenize("", model=model)  # wakes it
        time.sleep(LOOK_S)


def failure(error: Exception) -> int:
    """Say what went wrong with the daemon; returns the exit status that stands for it."""
    say(f"error: {error}")
    if isinstance(error, (ProtocolError, InvalidRequest)):
        return EXIT_PROTOCOL
    if isinstance(error, ServerError) and error.code.startswith("E_PROTO"):
        return EXIT_PROTOCOL
    return EXIT_SERVER


def guarded(command: Callable[[list[str]], int], arguments: list[str]) -> int:
    """Run a command; errors become a line and a status, an interrupt or a closed pipe is quiet."""
    settle()
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
    try:
        try:
            return command(arguments)
        finally:  # on the way out of --help too
            sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader has what it wanted
        silence(sys.stdout)
        return EXIT_OK
    except OSError as error:
        silence(sys.stdout)
        say(f"error: {_cannot(error)}")
        return EXIT_CANNOT_SERVE
    except (ConnectionFailed, ServerError, ProtocolError, InvalidRequest) as error:
        return failure(error)
    finally:
        try:
            sys.stderr.flush()
        except OSError:
            silence(sys.stderr)


def _cannot(error: OSError) -> str:
    why = error.strerror or str(error)
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {why}"
    return f"standard output cannot be written: {why}" if error.errno in OUTPUT_ERRORS else why


def silence(stream: TextIO) -> None:
    """Keep the interpreter from complaining when it flushes ``stream`` at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
