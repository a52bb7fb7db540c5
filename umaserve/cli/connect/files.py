"""Files of settings: read whole, and replaced whole."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from umaserve.connect.edits import Unreadable
from umaserve.system.private_folder import require_private
from umaserve.system.regular_file import open_regular

ADVICE = "keep these settings in a folder of your own"
MOST_BYTES = 8 << 20


def read(path: str) -> bytes | None:
    """Return the bytes of a file; ``None`` where there is no file.

    Raises ``Unreadable`` and ``OSError``.
    """
    try:
        with open_regular(path) as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(data) > MOST_BYTES:
        raise Unreadable(f"it has more than {MOST_BYTES >> 20} MiB")
    return data


def replace(path: str, data: bytes) -> list[str]:
    """Make ``data`` all that the file holds, at once; returns the folders that were made for it.

    A link goes on leading to the file.  Permissions stay, and a new file is this user's alone.
    Raises ``OSError``: also where others could change what lies there.
    """
    real = _private(path)
    folder = os.path.dirname(real)
    made = _make(folder)
    mode = 0o600
    with suppress(FileNotFoundError):
        mode = stat.S_IMODE(os.stat(real).st_mode)
    fd, temporary = tempfile.mkstemp(dir=folder, prefix=f".{os.path.basename(real)}.")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, real)
    except BaseException:
        os.unlink(temporary)
        raise
    return made


def remove(path: str, folders: list[str]) -> None:
    """Remove the file, and those of ``folders`` that are empty then.  Raises ``OSError``."""
    os.unlink(_private(path))
    for folder in reversed(folders):
        with suppress(OSError):
            os.rmdir(folder)


def digest(data: bytes | None) -> str:
    """Return the digest of a file's bytes; empty where there is no file."""
    return "" if data is None else hashlib.sha256(data).hexdigest()


def _private(path: str) -> str:
    """The file that ``path`` leads to.  Raises ``OSError`` where others decide that."""
    real = os.path.realpath(path)
    for folder in {os.path.dirname(path), os.path.dirname(real)}:
        require_private(Path(folder), ADVICE)
    return real


def _make(folder: str) -> list[str]:
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    missing.reverse()
    for each in missing:
        os.mkdir(each, 0o700)
    return missing
