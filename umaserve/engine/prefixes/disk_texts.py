"""Texts that are kept on disk as well: what of the store is there, and what comes from there."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from umaserve.cache import disk
from umaserve.cache.entry import Entry, Part, text_of
from umaserve.cache.whole import MARK
from umaserve.engine.model.costs.cost_file import saved_by
from umaserve.engine.model.loaded import Setup
from umaserve.wire import messages as m

from .copies import PrefixStore
from .shelf import Shelf


class DiskTexts:
    """For the loop's thread.  Nothing is kept on disk unless that ``is_on``."""

    def __init__(self, setup: Setup, store: PrefixStore, is_on: bool) -> None:
        self._control, self._store = setup.control, store
        self.shelf = _open_shelf(setup) if is_on else Shelf(None)
        self._told = False
        self.shelf.start()

    def tell_problem(self) -> None:
        """Tell a person, once, why nothing can be written."""
        if self.shelf.problem and not self._told:
            self._told = True
            self._control.send(m.Log("warn", self.shelf.problem))

    def put(self, entry: Entry, domain: str, tokens: np.ndarray) -> None:
        """Write an entry when there is time; ``tokens`` (int32) are all up to its last."""
        if m.ALONE not in domain:
            self.shelf.put(entry, domain, tokens)

    def fetch(self, parts: Iterable[Part], domain: str) -> None:
        """Read what parts of a text have on disk alone."""
        needed = [(part.entry, domain) for part in parts]
        needed += [(part.mark, MARK + domain) for part in parts if part.mark is not None]
        wanted = [each for each in needed if not each[0].data.size and not each[0].comes]
        for entry, _ in wanted:
            entry.comes = True
        self.shelf.fetch(
            (each, disk.Kept(each.path, name, text_of(each), each.p0, each.n_bytes, each.cost_ms))
            for each, name in wanted
        )

    def take(self) -> None:
        """Take over entries read, written, found or lost on disk since the last time."""
        for kept in self.shelf.take_found():
            entry = self._store.find(kept.domain, kept.tokens, kept.p0, kept.cost_ms)
            if entry is not None:
                entry.path, entry.n_bytes = kept.path, kept.n_bytes
        for entry, data in self.shelf.take_read():
            entry.comes = False
            if data is not None:
                self._store.fill(entry, data)
            else:
                self._store.lose(entry)

    def clear(self) -> None:
        """Remove all files, and what is on its way: nothing of it comes back."""
        self.shelf.forget()


def _open_shelf(setup: Setup) -> Shelf:
    """Return the place on disk for texts, without a folder where there is none."""
    start, control = setup.start, setup.control
    if not (start.cache_dir and start.cache_disk and start.cache_bytes):
        return Shelf(None)
    try:
        folder = disk.folder_of(start.cache_dir, saved_by(start, setup.loaded))
    except OSError as error:
        why = f"{error.filename}: {error.strerror}" if error.strerror else str(error)
        control.send(m.Log("warn", f"texts are not kept on disk: {why}"))
        return Shelf(None)
    return Shelf(folder, start.cache_disk, control.notify)
