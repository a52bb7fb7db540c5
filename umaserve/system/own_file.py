"""Files that this user names, to be written: nobody else decides where the bytes go.

In a folder where others may make files, such as ``/tmp``, the name that is written next may be
taken.  Somebody can put a link or a file of his there.  So no link is followed in such a folder,
and the file must be this user's and have no second name.  In a folder of this user's own, links are
his and are followed.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

from umaserve.system.peer import user_name
from umaserve.system.private_folder import others_can_write, steps
from umaserve.system.regular_file import open_regular

_ELSEWHERE = "name a file in a folder of your own"


class NotOurs(PermissionError):
    """``strerror`` says why the file is not written, and what to do."""


def check_own(path: str) -> bool:
    """Whether ``path`` leads to a folder where others may make files.  Raises ``NotOurs``."""
    return _look(path)[1]


def open_own(path: str, flags: int) -> int:
    """Descriptor of the file, made with mode 0600 where there is none.  Raises ``OSError``."""
    shared = check_own(path)
    if shared and _is_shared(os.path.dirname(os.path.abspath(path))):
        flags |= os.O_NOFOLLOW
    fd = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if shared:
        try:
            found = os.fstat(fd)
            _check_owner(path, found)
            # somebody may have made a link for a moment: then another file is open
            end, _ = _look(path)
            if not stat.S_ISDIR(end.st_mode) and not os.path.samestat(end, found):
                raise _refusal(path, "somebody is changing what it leads to")
        except OSError:
            os.close(fd)
            raise
    return fd


def read_own(path: str | os.PathLike[str], most_bytes: int = -1) -> bytes:
    """Bytes of a file that this program wrote for itself, up to ``most_bytes`` of them.

    Raises ``OSError``: also for a link, for what is no regular file, and where others may write.
    """
    with open_to_read(path) as file:
        return file.read(most_bytes)


def open_to_read(path: str | os.PathLike[str]) -> BinaryIO:
    """Such a file, opened.  Raises ``OSError``."""
    file = open_regular(path, follow=False)
    if others_can_write(os.fstat(file.fileno())):
        file.close()
        why = "it belongs to somebody else, or others may write to it"
        raise NotOurs(errno.EPERM, why, os.fspath(path))
    return file


def write_own(path: str | os.PathLike[str], data: bytes) -> None:
    """Make ``data`` all that the file holds.  Raises ``OSError``."""
    with os.fdopen(open_own(os.fspath(path), os.O_WRONLY), "wb") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.truncate()
        file.write(data)


def _look(path: str) -> tuple[os.stat_result, bool]:
    """Return the stat result of ``path``, or of its folder if it does not exist yet.

    The second value: True if others can write to the folder.  Raises `NotOurs` for a link in such a
    folder, and for a file there that another user owns or that has a second name.
    """
    way = list(steps(path))
    for step in way:
        if stat.S_ISLNK(step.found.st_mode) and _is_shared(os.path.dirname(step.path)):
            what = "it" if step.path == path else step.path
            raise _refusal(path, f"{what} is a link in a folder that others may write to")
    end = way[-1]
    if stat.S_ISDIR(end.found.st_mode):
        return end.found, others_can_write(end.found)
    shared = _is_shared(os.path.dirname(end.path))
    if shared:
        _check_owner(path, end.found)
    return end.found, shared


def _is_shared(folder: str) -> bool:
    return others_can_write(os.stat(folder))


def _check_owner(path: str, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise _refusal(path, f"it belongs to {user_name(found.st_uid)}")
    if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        raise _refusal(path, "it is a second name of another file")


def _refusal(path: str, why: str) -> NotOurs:
    return NotOurs(errno.EPERM, f"{why}; {_ELSEWHERE}", path)
