"""What ``connect`` keeps so that ``--undo`` can give it back: copies of files, and its edits."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any

from umaserve.cli.connect import files
from umaserve.connect.apps import Change
from umaserve.connect.edits import Item, Path, Put, Unreadable
from umaserve.connect.text import Language
from umaserve.state_folder import state_folder


@dataclass
class KeptFile:
    """``backup`` is the name of the copy; empty where there was no file.  ``after``: the digest of
    what was written.  ``folders`` were made for it."""

    path: str
    language: Language
    backup: str
    after: str
    edits: list[tuple[list[str | list[str]], Any, bool]]
    folders: list[str] = field(default_factory=list)

    @property
    def puts(self) -> list[Put]:
        return [Put(_path(steps), value, lazy) for steps, value, lazy in self.edits]


class Kept:
    """The changes of one app, the newest last; each is the files that it wrote.

    Raises ``OSError`` where the folder cannot be used, and ``Unreadable``.
    """

    def __init__(self, app: str, folder: str | None = None) -> None:
        self.folder = os.path.join(folder or state_folder(), "connect", app)
        self._record = os.path.join(self.folder, "changes.json")
        data = files.read(self._record)
        try:
            steps = json.loads(data) if data else []
            self.steps = [[KeptFile(**each) for each in step] for step in steps]
        except (ValueError, TypeError):
            raise Unreadable(f"{self._record} is damaged; the copies are beside it") from None

    def before(self, kept: KeptFile) -> bytes | None:
        """The file as it was."""
        if not kept.backup:
            return None
        data = files.read(os.path.join(self.folder, kept.backup))
        if data is None:
            raise FileNotFoundError(2, "the backup is gone", os.path.join(self.folder, kept.backup))
        return data

    def add(self, changes: list[tuple[Change, bytes | None, bytes]]) -> list[KeptFile]:
        """Keep copies before anything is written.

        Where the files are as the newest change left them, the new one becomes a part of it.
        """
        newest = {each.path: each for each in self.steps[-1]} if self.steps else {}
        goes_on = bool(newest) and all(
            change.path in newest and newest[change.path].after == files.digest(before)
            for change, before, _ in changes
        )
        made = []
        for change, before, after in changes:
            edits = [(_steps(edit.path), edit.value, edit.if_missing) for edit in change.edits]
            old = newest.get(change.path) if goes_on else None
            if old is not None:
                places = [steps for steps, _, _ in edits]
                old.edits = [edit for edit in old.edits if edit[0] not in places] + edits
                old.after = files.digest(after)
                made.append(old)
                continue
            name = ""
            if before is not None:
                name = f"{len(self.steps) + 1}-{os.path.basename(change.path)}"
                files.replace(os.path.join(self.folder, name), before)
            made.append(KeptFile(change.path, change.language, name, files.digest(after), edits))
        if not goes_on:
            self.steps.append(made)
        self.save()
        return made

    def save(self) -> None:
        steps = [[asdict(each) for each in step] for step in self.steps]
        files.replace(self._record, json.dumps(steps, indent=1).encode())

    def forget_newest(self) -> None:
        """With its copies."""
        step = self.steps.pop()
        self.save()
        for kept in step:
            if kept.backup:
                os.unlink(os.path.join(self.folder, kept.backup))


def _steps(path: Path) -> list[str | list[str]]:
    return [list(step) if isinstance(step, Item) else step for step in path]


def _path(steps: list[str | list[str]]) -> Path:
    return tuple(step if isinstance(step, str) else Item(*step) for step in steps)
