"""The model that somebody chose once, kept for daemons that are told of none."""

from __future__ import annotations

import os

from umaserve.system.own_file import read_own
from umaserve.system.private_folder import make_private, why_shared
from umaserve.system.state_folder import OWN_STATE, state_folder

_FILE = "model"
_MOST_BYTES = 4096


def chosen() -> str:
    """The reference that was kept; empty where nobody chose, or where others could have."""
    path = state_folder() / _FILE
    try:
        if why_shared(path):
            return ""
        return read_own(path, _MOST_BYTES).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def choose(reference: str) -> None:
    """Keep it.  Raises ``OSError``."""
    folder = state_folder()
    make_private(folder, OWN_STATE)
    temporary = folder / f".{_FILE}-{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # whatever the umask
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(reference + "\n")
    os.replace(temporary, folder / _FILE)
