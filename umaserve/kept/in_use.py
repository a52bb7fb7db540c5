"""Which folders of the cache somebody uses, and the removal of those that nobody used for long.

Every version of umaserve keeps what it compiles in folders of its own.  A process that uses such a
folder has a shared lock on the file ``.used`` in it, for as long as the process lives.  The time of
that file is when the last use began, so nobody has to guess from names.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Collection
from pathlib import Path

STAMP = ".used"
UNUSED_S = 30 * 86400.0
_GOING = ".old-"  # what a folder's name begins with while it is removed

_held: dict[str, int] = {}  # folder: descriptor that has the lock


def hold(folder: str | os.PathLike[str]) -> None:
    """Keep every sweep away from ``folder`` until this process ends.

    A folder that cannot be written is left as it is: no sweep of this user's removes it.
    """
    path = os.fspath(folder)
    if path in _held:
        return
    with contextlib.suppress(OSError):
        stamp = _open_stamp(path)
        try:
            fcntl.flock(stamp, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.utime(stamp)
        except OSError:
            os.close(stamp)
            raise
        _held[path] = stamp


def last_used(folder: Path) -> float:
    """Seconds since the epoch; for a folder without a stamp, when something was added to it."""
    for path in (folder / STAMP, folder):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
    return time.time()


def folders(root: Path) -> list[Path]:
    """Return the folders in ``root``; none where ``root`` is missing.

    Folders that are being made or removed are left out: their names begin with a dot.
    """
    with contextlib.suppress(OSError):
        return [path for path in root.iterdir() if path.name[0] != "." and path.is_dir()]
    return []


def sweep(folders: Collection[Path], newest: int | None = None) -> list[Path]:
    """Remove those of ``folders`` that no process uses, and nobody has used for `UNUSED_S`.

    With ``newest``, no more than so many stay of what nobody uses.  What cannot be removed stays.
    Returns what is gone.
    """
    by_age = sorted(((last_used(folder), folder) for folder in folders), reverse=True)
    gone = []
    for place, (used, folder) in enumerate(by_age):
        is_late = used < time.time() - UNUSED_S
        if is_late or (newest is not None and place >= newest):
            with contextlib.suppress(OSError):
                if _remove(folder, used):
                    gone.append(folder)
    return gone


def sweep_remains(root: Path) -> None:
    """Remove what a sweep of ``root`` that was killed has left."""
    for folder in root.glob(f"{_GOING}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _remove(folder: Path, used: float) -> bool:
    # the time of a folder without a stamp is lost with the stamp that is made here
    had_stamp = (folder / STAMP).exists()
    stamp = _open_stamp(folder)
    try:
        try:
            fcntl.flock(stamp, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.utime(stamp)  # in use now, however long ago that began
            return False
        if had_stamp and last_used(folder) != used:  # somebody came and went since the look
            return False
        aside = folder.with_name(f"{_GOING}{folder.name}-{os.getpid()}")
        folder.rename(aside)  # whoever looks for it now finds none, instead of a half
        shutil.rmtree(aside, ignore_errors=True)
        return True
    finally:
        os.close(stamp)


def _open_stamp(folder: str | os.PathLike[str]) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(os.path.join(folder, STAMP), flags, 0o600)
