"""Texts that are kept on disk as well: what of the store is there, and what comes from there."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from umaserve.cache import disk
from umaserve.cache.entry import Entry, Part, text_of
from umaserve.cache.store import PrefixStore
from umaserve.cache.whole import MARK
from umaserve.wire import messages as m

from .shelf import Shelf


class DiskTexts:
    """``shelf`` of None: nothing is kept on disk."""

    def __init__(self, shelf: Shelf | None, store: PrefixStore) -> None:
        self._shelf, self._store = shelf, store

    @property
    def has_news(self) -> bool:
        """Whether `take` has something to do."""
        return self._shelf is not None and self._shelf.has_news

    def put(self, entry: Entry, domain: str, tokens: np.ndarray) -> None:
        """Write an entry when there is time; ``tokens`` (int32) are all up to its last."""
        if self._shelf is not None and m.ALONE not in domain:
            self._shelf.put(entry, domain, tokens.copy())

    def fetch(self, parts: Iterable[Part], domain: str) -> None:
        """Read what parts of a text have on disk alone."""
        if self._shelf is None:
            return
        needed = [(part.entry, domain) for part in parts]
        needed += [(part.mark, MARK + domain) for part in parts if part.mark is not None]
        wanted = [each for each in needed if not each[0].data.size and not each[0].comes]
        for entry, _ in wanted:
            entry.comes = True
        self._shelf.fetch((entry, kept_as(entry, name)) for entry, name in wanted)

    def take(self) -> None:
        """Take over entries read, written, found or lost on disk since the last time."""
        if self._shelf is None:
            return
        for kept in self._shelf.take_found():
            entry = self._store.find(kept.domain, kept.tokens, kept.p0, kept.cost_ms)
            if entry is not None:
                entry.path, entry.n_bytes = kept.path, kept.n_bytes
        for entry, data in self._shelf.take_read():
            entry.comes = False
            if data is not None:
                self._store.fill(entry, data)
            else:
                self._store.lose(entry)

    def clear(self) -> None:
        """Remove all files, and what is on its way: nothing of it comes back."""
        if self._shelf is not None:
            self._shelf.forget()


def kept_as(entry: Entry, domain: str) -> disk.Kept:
    """Contents that the file of an entry has to hold."""
    return disk.Kept(entry.path, domain, text_of(entry), entry.p0, entry.n_bytes, entry.cost_ms)
