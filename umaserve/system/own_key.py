"""The key of the daemon's own user: apps that take a key send it, and nobody else can read it.

Without an ``--api-key-file`` nobody needs it where the system tells whose a connection is.  Where
it does not, the key tells the user's own apps from those of other users.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile

from umaserve.system.private_folder import make_private
from umaserve.system.regular_file import open_regular
from umaserve.system.state_folder import state_folder

NAME = "http.key"
_BYTES = 32  # of randomness
_MOST_BYTES = 4096  # of the file


def own_key_file() -> str:
    """Path of the key's file."""
    return os.fspath(state_folder() / NAME)


def make_own_key() -> str:
    """Path of the key's file, which is made where it is not there.  Raises ``OSError``."""
    path = own_key_file()
    make_private(state_folder())
    if os.path.lexists(path):
        return path
    fd, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=f".{NAME}.")
    try:
        with os.fdopen(fd, "w") as file:
            file.write(secrets.token_urlsafe(_BYTES) + "\n")
        with contextlib.suppress(FileExistsError):  # another daemon was quicker: its key counts
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
    return path


def own_key() -> str:
    """The key; empty where there is none that only this user can read."""
    try:
        with open_regular(own_key_file()) as file:
            found = os.fstat(file.fileno())
            text = file.read(_MOST_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    is_private = found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077
    return text if is_private else ""
