"""``umaserve service``: install, uninstall, status, logs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from difflib import get_close_matches, unified_diff
from pathlib import Path

from umaserve.cli.build import is_whole, make_whole
from umaserve.cli.models.choose import NoModel, with_model
from umaserve.cli.parts.common import EXIT_CANNOT_SERVE, EXIT_OK, EXIT_USAGE, Parser, say, show
from umaserve.cli.service.launchd import Launchd
from umaserve.cli.service.settings import Service
from umaserve.cli.service.settings import service as service_of
from umaserve.cli.service.systemd import Systemd
from umaserve.cli.service.units import MARK
from umaserve.client.connect import connect
from umaserve.client.events import ConnectionFailed, OtherUser
from umaserve.config import ConfigError, add_flags, flag_values, load_config
from umaserve.models.finding.reference import lasting
from umaserve.server.main import StartError, check_model
from umaserve.system.own_python import run_module
from umaserve.system.peer import peer_of
from umaserve.system.private_folder import make_private
from umaserve.texts import path_of

Manager = Systemd | Launchd
_LINES = 50
_OWN_UNITS = "set XDG_CONFIG_HOME to a folder of your own"


def service(arguments: list[str]) -> int:
    """The command; returns its exit status."""
    actions: dict[str, Callable[[Manager, list[str]], int]] = {
        "install": _install, "uninstall": _uninstall, "status": _status, "logs": _logs,
    }  # fmt: skip
    name, *rest = arguments or [""]
    if name in ("", "-h", "--help"):
        show(_overview(), end="")
        return EXIT_OK if name else EXIT_USAGE
    if name == "--version":
        Parser(prog="umaserve service").parse_args(arguments)
    if name not in actions:
        near = get_close_matches(name, actions, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(actions)}"
        say(f"umaserve service: unknown action {name!r}; {hint}")
        return EXIT_USAGE
    manager: Manager = Launchd() if sys.platform == "darwin" else Systemd()
    try:
        return actions[name](manager, rest)
    except RuntimeError as error:  # of the manager
        say(f"umaserve service: {error}")
        return EXIT_CANNOT_SERVE


def _overview() -> str:
    return (
        "usage: umaserve service install | uninstall | status | logs  [OPTIONS]\n\n"
        "  install    start the daemon when this user logs in; options as for `serve`\n"
        "  uninstall  stop it, and start it no more\n"
        "  status     whether it runs\n"
        "  logs       what it has logged\n\n"
        "`umaserve service ACTION --help` explains an action.\n"
    )


# --- install --------------------------------------------------------------------------------------


def _install_parser() -> Parser:
    parser = Parser(
        prog="umaserve service install",
        usage="umaserve service install [--on-demand] [--dry-run] [OPTIONS of serve]",
        description="Have the daemon start when this user logs in, with these options.  Shows the "
        "files that it writes.  May be run again with others.",
    )
    parser.add_argument(
        "--on-demand",
        action="store_true",
        help="start with the first program that connects, not at login (systemd)",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the files, and change nothing")
    add_flags(parser)
    return parser


def _install(manager: Manager, arguments: list[str]) -> int:
    options = _install_parser().parse_args(arguments)
    flags = flag_values(options)
    try:
        config = load_config(flags)
        served = with_model(config, False, lambda _: None)
        if config.model and ("model" in flags or os.environ.get("UMA_MODEL")):
            flags = {**flags, "model": lasting(config.model, path_of(served.model))}
        wanted = service_of(_program(), flags, config, os.environ, options.on_demand)
        files = manager.files(wanted)
        check_model(served)
    except (ConfigError, ValueError, StartError, NoModel) as error:
        say(f"umaserve service: {error}")
        return EXIT_USAGE
    changed = _show(files)
    if options.dry_run:
        return EXIT_OK
    problem = manager.problem() or _foreign(files) or _in_the_way(manager, wanted, files)
    if problem:
        say(f"umaserve service: nothing was installed: {problem}")
        return EXIT_CANNOT_SERVE
    if not changed and manager.is_running() and not manager.has_failed():
        show(f"Installed already, as it is: {manager.socket_path(wanted)}")
        return EXIT_OK
    if not is_whole(config.backend):
        status = make_whole(config.backend)  # here, where its progress is seen
        if status != EXIT_OK:
            return status
    for path, content in files.items():
        _write(path, content)
    return _start(manager, wanted)


def _start(manager: Manager, wanted: Service) -> int:
    say("starting the service; Ctrl-C leaves it to itself")
    if manager.start(wanted) != 0:
        say("umaserve service: it is installed, and does not run; see `umaserve service logs`")
        return EXIT_CANNOT_SERVE
    how = "starts with the first client" if wanted.on_demand else "runs"
    show(f"The service {how}: {manager.socket_path(wanted)}")
    return EXIT_OK


def _program() -> list[str]:
    """How this program is started from anywhere, by the name that outlives an upgrade."""
    for path in (Path(sys.argv[0]).absolute(), Path(sys.executable).with_name("umaserve")):
        if path.name in ("umaserve", "umad") and os.access(path, os.X_OK) and path.is_file():
            return [str(path)]
    return run_module("umaserve")


def _show(files: dict[Path, bytes]) -> bool:
    """Prints each file, or what changes in it; whether anything does."""
    changed = False
    for path, content in files.items():
        old = path.read_text("utf-8", "replace") if path.exists() else None
        new = content.decode()
        if old == new:
            show(f"{path}: stays as it is")
            continue
        changed = True
        if old is None:
            show(f"{path}:\n")
            show("".join(f"    {line}" for line in new.splitlines(keepends=True)))
        else:
            lines = unified_diff(
                old.splitlines(keepends=True), new.splitlines(keepends=True), str(path), str(path)
            )
            show("".join(lines))
    return changed


def _foreign(files: dict[Path, bytes]) -> str:
    for path in files:
        if path.exists() and not _is_ours(path):
            return f"{path} is not from `umaserve service install`; move it away first"
    return ""


def _is_ours(path: Path) -> bool:
    return MARK in path.read_text("utf-8", "replace")


def _in_the_way(manager: Manager, wanted: Service, files: dict[Path, bytes]) -> str:
    """A daemon that somebody started by hand: a service manager would take its socket away."""
    path = manager.socket_path(wanted)
    sockets = [(file, text) for file, text in files.items() if file.suffix == ".socket"]
    if manager.is_running() and all(f.exists() and f.read_bytes() == t for f, t in sockets):
        return ""  # who listens there is the manager
    try:
        with connect(path, 1.0) as sock:
            owner = peer_of(sock).pid
    except OtherUser as error:
        return str(error)
    except ConnectionFailed:
        return ""
    return f"a daemon serves at {path} already (process {owner or 'unknown'}); stop it first"


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    Raises ``NotPrivate`` where others could change the program that is started.
    """
    make_private(path.parent, _OWN_UNITS)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(content)
        os.replace(aside, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()


# --- the others -----------------------------------------------------------------------------------


def _uninstall(manager: Manager, arguments: list[str]) -> int:
    description = "Stop the daemon and remove the service.  Models and the cache stay."
    Parser(prog="umaserve service uninstall", description=description).parse_args(arguments)
    there = [path for path in manager.paths() if path.exists()]
    if not there:
        show("There is no service of umaserve; nothing to do.")
        return EXIT_OK
    for path in there:
        if not _is_ours(path):
            say(f"umaserve service: {path} is not from `umaserve service install`; it stays")
            return EXIT_CANNOT_SERVE
    if not manager.problem():
        manager.stop()
    for path in there:
        path.unlink()
        show(f"removed {path}")
    if not manager.problem():
        manager.forget()
    return EXIT_OK


def _status(manager: Manager, arguments: list[str]) -> int:
    description = "Say whether the service runs, as the service manager says it."
    Parser(prog="umaserve service status", description=description).parse_args(arguments)
    return _unless_absent(manager) or manager.status()


def _logs(manager: Manager, arguments: list[str]) -> int:
    parser = Parser(
        prog="umaserve service logs", description="Show the last lines that the daemon logged."
    )
    parser.add_argument("-f", "--follow", action="store_true", help="go on with new lines")
    parser.add_argument(
        "-n",
        "--lines",
        type=int,
        default=_LINES,
        metavar="N",
        help="how many (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    return _unless_absent(manager) or manager.logs(options.lines, options.follow)


def _unless_absent(manager: Manager) -> int:
    if not any(path.exists() for path in manager.paths()):
        say("umaserve service: there is no service; `umaserve service install` makes one")
        return EXIT_CANNOT_SERVE
    return EXIT_OK
