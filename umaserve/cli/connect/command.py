"""``umaserve connect``: what is here, a change of settings, its undoing, a request to check it."""

from __future__ import annotations

import difflib
import json
import os
import stat
from contextlib import suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING

from umaserve.cli.connect import files
from umaserve.cli.connect.daemon import NoDaemon, look, url_of, with_own_key
from umaserve.cli.parts.common import (
    EXIT_CANNOT_SERVE,
    EXIT_OK,
    EXIT_USAGE,
    Parser,
    add_socket,
    say,
    show,
)
from umaserve.client import ConnectionFailed
from umaserve.connect.edits import Unreadable
from umaserve.connect.others import APPS

if TYPE_CHECKING:
    from argparse import Namespace

    from umaserve.cli.connect.kept import Kept
    from umaserve.connect.apps import App, Change, Places

NOTHING = "nothing was changed"


def connect(arguments: list[str]) -> int:
    """The command."""
    options = _parser().parse_args(arguments)
    from umaserve.cli.connect.desk import places

    if options.app is None:
        if options.undo or options.check or options.yes:
            say("umaserve connect: which app? `umaserve connect` lists them")
            return EXIT_USAGE
        return _list(options, list(APPS.values()), places())
    if options.app not in APPS:
        near = get_close_matches(options.app, APPS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it can be {', '.join(APPS)}"
        say(f"umaserve connect: unknown app {options.app!r}; {hint}")
        return EXIT_USAGE
    app, here = APPS[options.app], places()
    try:
        if options.undo:
            return _undo(app, here, options.yes)
        if options.check:
            return _check(app, here, options)
        return _connect(app, here, options)
    except (NoDaemon, Unreadable) as error:
        say(f"error: {error}")
        return EXIT_CANNOT_SERVE


def _parser() -> Parser:
    parser = Parser(
        prog="umaserve connect",
        description="Set an editor or agent up for this daemon: shows the change, asks, keeps a "
        "copy. Without APP: list the apps that are installed here.",
    )
    parser.add_argument("app", nargs="?", metavar="APP", help=", ".join(APPS))
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--undo", action="store_true", help="restore the settings as they were")
    what.add_argument(
        "--check", action="store_true", help="ask as the app does, and print the daemon's view"
    )
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
    parser.add_argument(
        "--url", metavar="URL", help="the daemon's address (default: asked of the daemon)"
    )
    parser.add_argument(
        "--key",
        metavar="KEY",
        default=os.environ.get("UMA_API_KEY", ""),
        help="one of the keys of its --api-key-file (default: UMA_API_KEY, else the owner's)",
    )
    add_socket(parser)
    return parser


def _list(options: Namespace, apps: list[App], here: Places) -> int:
    from umaserve.cli.connect.desk import state, where

    url = ""
    with suppress(NoDaemon, ConnectionFailed):
        url = url_of(options.url, options.socket)
    places = {app: where(app, here) for app in apps}
    found = {app: place for app, place in places.items() if place}
    for app, place in found.items():
        show(f"{app.name:<12} {state(app, here, url)}\n{'':<12} {place}")
    others = ", ".join(app.name for app in apps if app not in found)
    if others:
        show(f"not found here: {others}" if found else f"none of these is here: {others}")
    show("\n`umaserve connect APP` sets one up; --check tries it, --undo takes it back.")
    if not url:
        say("(no daemon speaks HTTP here now; `umaserve --http 127.0.0.1:8080` starts one)")
    return EXIT_OK


# --- the change ----------------------------------------------------------------------------------


def _connect(app: App, here: Places, options: Namespace) -> int:
    refusal = app.refusal(here)
    if refusal:
        say(f"error: {refusal}")
        return EXIT_CANNOT_SERVE
    from umaserve.connect.apps import warnings

    target = look(url_of(options.url, options.socket), options.key)
    target = with_own_key(target, app, options.socket)
    plan = _plan(app.changes(here, target))
    if plan is None:
        return EXIT_CANNOT_SERVE
    changes = [each for each in plan if each[1] != each[2]]
    for change, before, after in changes:
        _show_change(change.path, before, after)
    for line in warnings(app, target):
        say(f"note: {line}")
    if plan and not changes:
        show(f"{app.title} is set up for {target.url} already.")
    elif changes:
        what = "these files" if len(changes) > 1 else "this file"
        if not _agreed(f"Change {what}?", options.yes) or not _write(app, here, changes):
            return EXIT_CANNOT_SERVE
        back = f"`umaserve connect {app.name} --undo` takes it back"
        show(f"{app.title} is set up for {target.url}; {back}.")
    for change, _, after in plan:
        path = change.path
        holds = target.key and target.key.encode() in after
        if holds and stat.S_IMODE(os.stat(path).st_mode) & 0o077:
            say(f"note: other users can read {path}, which holds the key; chmod 600 {path}")
    for line in app.notes(target):
        show(line if not plan else f"- {line}")
    return EXIT_OK


Planned = tuple["Change", "bytes | None", bytes]


def _plan(changes: list[Change]) -> list[Planned] | None:
    """Each file before and after; ``None`` where one cannot be changed, which is said."""
    from umaserve.connect.edits import spelled
    from umaserve.connect.text import edited

    plan: list[Planned] = []
    for change in changes:
        try:
            before = files.read(change.path)
            plan.append((change, before, edited(change.language, before or b"", change.edits)))
        except Unreadable as error:
            say(f"error: {change.path}: {error}; {NOTHING}. What belongs there:")
            for edit in change.edits:
                say(f"  {spelled(edit.path)}: {json.dumps(edit.value, ensure_ascii=False)}")
            return None
    return plan


def _write(app: App, here: Places, changes: list[Planned]) -> bool:
    """Copies first, then the files."""
    from umaserve.cli.connect.kept import Kept

    for change, before, _ in changes:
        if files.read(change.path) != before:
            say(f"error: {change.path} has changed meanwhile; {NOTHING}, try again")
            return False
    kept = Kept(app, here)
    written = kept.add(changes)
    for (change, _, after), file in zip(changes, written, strict=True):
        file.folders += files.replace(change.path, after)
    kept.save()
    return True


def _show_change(path: str, before: bytes | None, after: bytes | None) -> None:
    """As a unified diff."""
    names = "/dev/null" if before is None else path, "/dev/null" if after is None else path
    old, new = ((data or b"").decode(errors="replace").splitlines(True) for data in (before, after))
    for line in difflib.unified_diff(old, new, *names):
        whole = line.endswith("\n")
        show(line.rstrip("\r\n"))
        if not whole:
            show("\\ No newline at end of file")


def _agreed(question: str, yes: bool) -> bool:
    if yes:
        return True
    try:
        answer = input(f"{question} [y/N] ")
    except EOFError:
        answer = ""
        show("")
    if answer.strip().lower() in ("y", "yes"):
        return True
    show(f"{NOTHING[0].upper()}{NOTHING[1:]}; --yes answers yes.")
    return False


# --- back ----------------------------------------------------------------------------------------


def _undo(app: App, here: Places, yes: bool) -> int:
    from umaserve.cli.connect.kept import Kept

    kept = Kept(app, here)
    if not kept.steps:
        say(f"error: `umaserve connect {app.name}` has changed nothing that is not undone")
        return EXIT_CANNOT_SERVE
    plan = _plan_back(kept)
    if plan is None:
        return EXIT_CANNOT_SERVE
    changes = [each for each in plan if each[1] != each[2]]
    for path, now, back, _ in changes:
        _show_change(path, now, back)
    if changes and not _agreed("Take this back?", yes):
        return EXIT_CANNOT_SERVE
    for path, now, back, folders in reversed(changes):  # the first file's folder is made first
        if files.read(path) != now:
            say(f"error: {path} has changed meanwhile; try again")
            return EXIT_CANNOT_SERVE
        if back is None:
            files.remove(path, folders)
        else:
            files.replace(path, back)
    kept.forget_newest()
    show(f"{app.title} has its settings back.")
    if kept.steps:
        show(f"An older change is left: `umaserve connect {app.name} --undo` takes that back too.")
    return EXIT_OK


Back = tuple[str, "bytes | None", "bytes | None", list[str]]


def _plan_back(kept: Kept) -> list[Back] | None:
    """Each file now and as it should be; ``None`` where that cannot be, which is said.

    A file that is gone, or as it was written, gets its old bytes.  Out of another, only the edits
    go.
    """
    from umaserve.connect.edits import spelled
    from umaserve.connect.text import taken_back

    plan: list[Back] = []
    for file in kept.steps[-1]:
        try:
            now, before = files.read(file.path), kept.before(file)
            if files.digest(now) == file.after:
                plan.append((file.path, now, before, file.folders))
                continue
            if now is None:
                say(f"({file.path} is gone since)")
                plan.append((file.path, now, before, []))
                continue
            back, stay = taken_back(file.language, now, before or b"", file.edits)
            say(f"({file.path} has changed since; only what `connect` wrote goes)")
            if stay:
                say(f"(what you have changed since stays: {', '.join(map(spelled, stay))})")
            plan.append((file.path, now, back, []))
        except Unreadable as error:
            say(f"error: {file.path} has changed since, and: {error}")
            if file.backup:
                say(f"as it was before, it is in {os.path.join(kept.folder, file.backup)}")
            return None
    return plan


# --- the check -----------------------------------------------------------------------------------


def _check(app: App, here: Places, options: Namespace) -> int:
    from umaserve.cli.connect.check import check
    from umaserve.cli.connect.desk import address_of, origin

    url = url_of(options.url, options.socket)
    try:
        address = address_of(app, here) if app.file(here) else ""
    except Unreadable as error:
        say(f"({app.file(here)} cannot be read: {error})")
        address = ""
    if address and origin(address) != origin(url):
        say(f"({app.title} is set to {address}, which is not asked here)")
    elif app.file(here) and not address:
        say(f"({app.title} is not connected yet: umaserve connect {app.name})")
    target = with_own_key(look(url, options.key), app, options.socket)
    return check(app, target, options.socket)
