"""Opens regular files only, and never waits for what is none.

Opening a named pipe waits until somebody writes to it, and reading a device may never end.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

_KINDS = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotRegular(OSError):
    """``strerror`` says what the file is instead."""


def open_regular(path: str | os.PathLike[str], follow: bool = True) -> BinaryIO:
    """The file, to be read; a link is followed if ``follow``.

    Raises ``NotRegular``, or another ``OSError``.
    """
    _check(os.stat(path, follow_symlinks=follow), path)
    # it may be another one by now: so this does not wait either
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    fd = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    try:
        _check(os.fstat(fd), path)
        os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return os.fdopen(fd, "rb")


def _check(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISREG(found.st_mode):
        return
    what = next((name for test, name in _KINDS if test(found.st_mode)), "something else")
    raise NotRegular(errno.EINVAL, f"it is {what}, not a regular file", os.fspath(path))
