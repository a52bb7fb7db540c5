"""Apps that are installed on this machine, and which of them are set up for a daemon."""

from __future__ import annotations

import os
import shutil
import sys
from urllib.parse import urlsplit

from umaserve.cli.connect import files
from umaserve.connect.apps import App, Places
from umaserve.connect.edits import Unreadable, found
from umaserve.connect.text import parse


def places() -> Places:
    """Return the places of this user's settings on this system."""
    home = os.path.expanduser("~")
    return Places(home, os.environ, sys.platform == "darwin", os.path.exists)


def where(app: App, here: Places) -> str:
    """The app's program, or its folder of settings; empty where neither is here."""
    program = next(filter(None, map(shutil.which, app.programs)), None)
    if program is not None:
        return program
    path = app.file(here)
    folder = os.path.dirname(path)
    if folder == here.home:
        return path if path and os.path.exists(path) else ""
    return folder if folder and os.path.isdir(folder) else ""


def state(app: App, here: Places, url: str) -> str:
    """Say whether the app is connected; ``url`` is the daemon's, empty while none is known."""
    if not app.file(here):
        return "has no file of settings"
    try:
        address = address_of(app, here)
    except (Unreadable, OSError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return f"{app.file(here)} cannot be read: {why}"
    if not address:
        return "not connected"
    if url and origin(address) == origin(url):
        return f"connected to {url}"
    return f"set to {address}"


def address_of(app: App, here: Places) -> str:
    """Return the address in the settings of ``app``; empty for none.

    Raises ``Unreadable`` and ``OSError``.
    """
    data = files.read(app.file(here))
    address = found(parse(app.language, data), app.address) if data else None
    return address if isinstance(address, str) else ""


def origin(url: str) -> str:
    """Scheme, host and port."""
    return "://".join(urlsplit(url)[:2])
