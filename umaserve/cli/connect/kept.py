"""Copies of files, and records of edits, that ``connect`` keeps for ``--undo``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path as Folder

import msgspec

from umaserve.cli.connect import files
from umaserve.connect.apps import App, Change, Places, Target
from umaserve.connect.edits import Put, Unreadable
from umaserve.connect.text import Language
from umaserve.system.own_file import read_own
from umaserve.system.private_folder import make_private, require_private
from umaserve.system.state_folder import OWN_STATE, state_folder

_ANY = Target("", "any", "any", 1, 1, True)  # with a key, which some apps keep in another file


@dataclass
class KeptFile:
    """``backup`` is the name of the copy; empty where there was no file.  ``after``: the digest of
    what was written.  ``folders`` were made for it."""

    path: str
    language: Language
    backup: str
    after: str
    edits: list[Put]
    folders: list[str] = field(default_factory=list)


class Kept:
    """The changes of one app, the newest last; each is the files that it wrote.

    Only files of the app are taken from the record, and only copies that lie beside it.  Raises
    ``OSError`` where the folder cannot be used or others may write there, and ``Unreadable``.
    """

    def __init__(self, app: App, here: Places) -> None:
        self.folder = os.path.join(state_folder(), "connect", app.name)
        self._record = os.path.join(self.folder, "changes.json")
        require_private(Folder(self.folder), OWN_STATE)
        data = _read(self._record)
        try:
            self.steps = msgspec.json.decode(data or b"[]", type=list[list[KeptFile]])
        except (ValueError, RecursionError):
            raise Unreadable(f"{self._record} is damaged; the copies are beside it") from None
        for kept in (each for step in self.steps for each in step):
            problem = _problem(kept, app, here)
            if problem:
                raise Unreadable(f"{self._record} is not from `umaserve connect`: {problem}")

    def before(self, kept: KeptFile) -> bytes | None:
        """The file as it was."""
        if not kept.backup:
            return None
        data = _read(os.path.join(self.folder, kept.backup))
        if data is None:
            raise FileNotFoundError(2, "the backup is gone", os.path.join(self.folder, kept.backup))
        return data

    def add(self, changes: list[tuple[Change, bytes | None, bytes]]) -> list[KeptFile]:
        """Keep copies before anything is written.

        Where the files are as the newest change left them, the new one becomes a part of it.
        """
        make_private(Folder(self.folder), OWN_STATE)
        newest = {each.path: each for each in self.steps[-1]} if self.steps else {}
        goes_on = bool(newest) and all(
            change.path in newest and newest[change.path].after == files.digest(before)
            for change, before, _ in changes
        )
        made = []
        for change, before, after in changes:
            old = newest.get(change.path) if goes_on else None
            if old is not None:
                places = [edit.path for edit in change.edits]
                old.edits = [edit for edit in old.edits if edit.path not in places]
                old.edits += change.edits
                old.after = files.digest(after)
                made.append(old)
                continue
            name = ""
            if before is not None:
                name = f"{len(self.steps) + 1}-{os.path.basename(change.path)}"
                files.replace(os.path.join(self.folder, name), before)
            edits, digest = list(change.edits), files.digest(after)
            made.append(KeptFile(change.path, change.language, name, digest, edits))
        if not goes_on:
            self.steps.append(made)
        self.save()
        return made

    def save(self) -> None:
        record = msgspec.json.format(msgspec.json.encode(self.steps), indent=1)
        files.replace(self._record, record)

    def forget_newest(self) -> None:
        """With its copies."""
        step = self.steps.pop()
        self.save()
        for kept in step:
            if kept.backup:
                os.unlink(os.path.join(self.folder, kept.backup))


def _read(path: str) -> bytes | None:
    """Read a file that `connect` wrote; ``None`` for no file.  Raises ``OSError``."""
    try:
        return read_own(path, files.MOST_BYTES)
    except FileNotFoundError:
        return None


def _problem(kept: KeptFile, app: App, here: Places) -> str:
    """Why `connect` cannot have recorded this, or an empty string."""
    where = here._replace(exists=lambda path: _is_on_the_way(path, kept.path))
    own = [(change.path, change.language) for change in app.changes(where, _ANY)]
    if (kept.path, kept.language) not in own:
        return f"{kept.path} is no file of {app.title} here"
    if kept.backup and (kept.backup in (".", "..") or os.path.basename(kept.backup) != kept.backup):
        return f"the copy {kept.backup} would lie elsewhere"
    real = os.path.realpath(kept.path)
    if not all(_is_on_the_way(folder, real) for folder in kept.folders):
        return f"a folder was not made for {kept.path}"
    return ""


def _is_on_the_way(path: str, to: str) -> bool:
    return to == path or to.startswith(path.rstrip("/") + "/")
