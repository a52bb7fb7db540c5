"""Whether others can change what lies in a folder: what is loaded from it runs as this user.

Two things make a folder private.  Every folder and link on the way to it belongs to this user or to
root, and nobody else may write there.  Root may do everything anyway, so a read-only installation
of his for all users is as good.  As for OpenSSH's StrictModes, the folders above count: whoever may
write to one of them can rename what is below.  In a sticky folder, such as ``/tmp``, only the owner
can.

Many systems give every user a group of his own, and let it write what he makes.  Such a group is
nobody else.  Standard library only; a look costs a few calls of lstat(2).
"""

from __future__ import annotations

import functools
import os
import stat
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from umaserve.system.peer import user_name

_MOST_LINKS = 40  # as many as the kernel follows
OWN_CACHE = "set UMA_CACHE_DIR to a folder of your own"  # what to do where it is not private


class NotPrivate(PermissionError):
    """The message names the folder, says who may change it, and what to do."""


class Step(NamedTuple):
    """Something on the way to a path; ``found`` is what lstat(2) says of it."""

    path: str
    found: os.stat_result


def steps(path: str | os.PathLike[str]) -> Iterator[Step]:
    """Every folder and every link that leads to ``path``, and what lies there.

    They end early where something is not there.  The folder of a step is its path without the name.
    """
    ahead = deque(Path(path).parts)
    if not os.path.isabs(path):
        ahead.extendleft(reversed(Path(os.getcwd()).parts))
    here, links = "/", 0
    while ahead:
        name = ahead.popleft()
        if name == "..":
            here = os.path.dirname(here)
            continue
        there = os.path.join(here, name)
        try:
            found = os.lstat(there)
            target = os.readlink(there) if stat.S_ISLNK(found.st_mode) else ""
        except OSError:  # nobody can open it either
            return
        yield Step(there, found)
        if not target:
            here = there
            continue
        links += 1
        if links > _MOST_LINKS:
            return
        ahead.extendleft(reversed(Path(target).parts))


def why_shared(path: str | os.PathLike[str], advice: str = OWN_CACHE) -> str:
    """Return who else could change ``path``, and what to do; empty where nobody else could.

    A path that does not exist yet counts as private where only this user could create it.
    """
    try:
        end = os.stat(path)
    except OSError:
        end = None
    for step in steps(path):
        above = end is None or not os.path.samestat(step.found, end)
        sticky = above and bool(step.found.st_mode & stat.S_ISVTX)
        why = _problem(step, above, sticky, advice)
        if why:
            return why
    return ""


def why_shared_within(folder: str | os.PathLike[str]) -> str:
    """Return `why_shared` of ``folder``, else of the first shared path in it; empty if none is."""
    why = why_shared(folder)
    waiting = [] if why else [os.fspath(folder)]
    while waiting and not why:
        place = waiting.pop()
        try:
            entries = sorted(os.listdir(place))
        except FileNotFoundError:  # a temporary one of a process that is at work
            continue
        except OSError as error:
            return f"{place} cannot be looked at ({error.strerror}); {OWN_CACHE}"
        for name in entries:
            path = os.path.join(place, name)
            try:
                found = os.lstat(path)
            except FileNotFoundError:
                continue
            if stat.S_ISLNK(found.st_mode):
                why = why_shared(path)
            else:
                why = _problem(Step(path, found), False, False, OWN_CACHE)
            if why:
                break
            if stat.S_ISDIR(found.st_mode):
                waiting.append(path)
    return why


def make_private(folder: Path, advice: str = OWN_CACHE) -> None:
    """Make the folder where it is not there, with those above it, for this user alone.

    Raises ``NotPrivate`` where others could change what lies there, or another ``OSError``.
    """
    require_private(folder, advice)
    for path in reversed((folder, *folder.parents)):
        if not path.exists():
            try:
                path.mkdir(mode=0o700)
            except FileExistsError:  # somebody was quicker: a friend, as the next look tells
                continue
    require_private(folder, advice)


def require_private(folder: Path, advice: str = OWN_CACHE) -> None:
    """Raises ``NotPrivate`` where others could change what lies there."""
    _refuse(folder, why_shared(folder, advice))


def require_private_within(folder: Path) -> None:
    """Raises ``NotPrivate`` where others could change anything in it."""
    _refuse(folder, why_shared_within(folder))


def _refuse(folder: Path, why: str) -> None:
    if why:
        raise NotPrivate(f"{folder} is not used: {why}")


def others_can_write(found: os.stat_result) -> bool:
    """Whether somebody may write there who is neither root nor this user."""
    return not _is_trusted(found.st_uid) or _mode_lets_others(found)


def _problem(step: Step, above: bool, sticky: bool, advice: str = OWN_CACHE) -> str:
    """``above``: it only leads to what counts."""
    path, found = step
    if not _is_trusted(found.st_uid) and not (above and _is_outside_namespace(found.st_uid)):
        return f"{path} belongs to {user_name(found.st_uid)}; {advice}, or remove it"
    if stat.S_ISLNK(found.st_mode) or sticky or not _mode_lets_others(found):
        return ""
    mode = stat.S_IMODE(found.st_mode)
    return (
        f"others may write to {path} (mode {mode:04o}); {advice}, or, "
        f"if you trust what lies there, run: chmod go-w {path}"
    )


def _is_trusted(uid: int) -> bool:
    return uid in (0, os.geteuid())


def _mode_lets_others(found: os.stat_result) -> bool:
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_own_group(found.st_uid, found.st_gid)


@functools.lru_cache(maxsize=64)
def _is_own_group(uid: int, gid: int) -> bool:
    """Whether the group is that user's own: his name, his first group, and nobody else in it."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    names = (group.gr_name, *group.gr_mem)
    return user.pw_gid == gid and all(name == user.pw_name for name in names)


def _is_outside_namespace(uid: int) -> bool:
    """Whether this is how a container without root shows root: as a user that it does not know."""
    try:
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text())
        whole = Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
    except (OSError, ValueError):
        return False
    return uid == overflow and not whole
