"""The model that somebody chose once, kept for daemons that are told of none."""

from __future__ import annotations

import os
from pathlib import Path

from umaserve.private_folder import make_private, why_shared

_FILE = "model"
_MOST_BYTES = 4096


def state_folder() -> Path:
    """``$UMA_STATE_DIR``, else the user's folder for what programs remember."""
    given = os.environ.get("UMA_STATE_DIR")
    if given:
        return Path(given).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_state_dir("umaserve"))


def chosen() -> str:
    """The reference that was kept; empty where nobody chose, or where others could have."""
    path = state_folder() / _FILE
    try:
        if why_shared(path):
            return ""
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def choose(reference: str) -> None:
    """Keep it.  Raises ``OSError``."""
    folder = state_folder()
    make_private(folder)
    temporary = folder / f".{_FILE}-{os.getpid()}"
    temporary.write_text(reference + "\n", "utf-8")
    os.replace(temporary, folder / _FILE)
