"""A file lock that says whom it waits for."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from umaserve.system.private_folder import make_private

_POLL_S = 0.2


@contextlib.contextmanager
def file_lock(path: Path, doing: str, say: Callable[[str], None]) -> Iterator[int]:
    """Holds an exclusive lock on `path`, waiting for whoever has it; yields the descriptor.

    The kernel drops the lock when the last process that has the descriptor ends, so a killed
    owner never leaves a stale one. Children that must not outlive the lock are handed the
    descriptor. If there is a wait, `say` gets a line once: a process is `doing` something.
    Raises `NotPrivate` where others could write to the folder.
    """
    descriptor = _open(path)
    try:
        said = False
        while not _try(descriptor):
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            if owner and not said:  # an owner that has just begun may not have written yet
                say(f"Process {owner} is {doing}; waiting for it")
                said = True
            time.sleep(_POLL_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Like `file_lock`, but never waits: yields whether the lock was free."""
    descriptor = _open(path)
    try:
        yield _try(descriptor)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    """In a folder of this user's alone: nobody else can hold the lock, or say who does."""
    make_private(path.parent)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
