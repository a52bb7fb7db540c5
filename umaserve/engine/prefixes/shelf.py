"""A thread that writes entries of the prefix cache to disk, and reads them again.

The loop never waits for it.  What it has done is taken by the loop between two ticks.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from umaserve.cache import disk
from umaserve.cache.entry import Entry
from umaserve.engine.native import disk_reads
from umaserve.engine.native.niceness import stand_back

MOST_PENDING = 256 << 20  # bytes that wait to be written; more are not kept on disk
READ_BYTES_PER_MS = 0.5e6  # from disk and checked: what is computed sooner is not written
CLOSE_S = 5.0
SHRINK_EVERY = 16  # files


class Shelf:
    """Entries in files below ``folder``, ``most_bytes`` of them.  ``notify`` wakes the loop.

    Without a folder nothing is kept.  `start` finds what is there.  ``problem`` says why nothing
    can be written.
    """

    def __init__(
        self, folder: disk.Folder | None, most_bytes: int = 0,
        notify: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.folder, self._most, self._notify = folder, most_bytes, notify
        self.problem = ""
        self.bytes_read = 0  # from disk, by this thread
        self._wanted = threading.Condition()
        self._to_read: deque[tuple[Entry, disk.Kept]] = deque()
        self._to_write: deque[tuple[Entry, str, np.ndarray, np.ndarray]] = deque()
        self._pending = 0
        self._forgotten = 0  # times that everything was
        self._closing = False
        self._found: deque[disk.Kept] = deque()
        self._read: deque[tuple[Entry, np.ndarray | None]] = deque()
        self._thread = threading.Thread(
            target=self._work, args=(folder,), name="shelf", daemon=True
        )

    def start(self) -> None:
        if self.folder is not None:
            self._thread.start()

    @property
    def has_news(self) -> bool:
        """Whether `take_found` or `take_read` have something."""
        return bool(self._found or self._read)

    @property
    def is_full(self) -> bool:
        """Whether half of `MOST_PENDING` waits to be written: `put` may soon leave entries out."""
        return 2 * self._pending > MOST_PENDING

    def put(self, entry: Entry, domain: str, tokens: np.ndarray) -> None:
        """Write an entry when there is time; ``tokens`` (int32, copied) are all up to its last."""
        is_dear = entry.cost_ms <= 0.0 or entry.cost_ms > entry.data.size / READ_BYTES_PER_MS
        if self.folder is None or self.problem or not is_dear:
            return
        if self._pending + entry.data.size > MOST_PENDING:
            return
        with self._wanted:
            self._pending += entry.data.size
            self._to_write.append((entry, domain, tokens.copy(), entry.data))
            self._wanted.notify()

    def fetch(self, entries: Iterable[tuple[Entry, disk.Kept]]) -> None:
        """Read these, in this order, before anything is written; each with what its file holds."""
        with self._wanted:
            self._to_read += entries
            self._wanted.notify()

    def take_found(self) -> list[disk.Kept]:
        """Entries of earlier daemons, those of shorter texts first."""
        return [self._found.popleft() for _ in range(len(self._found))]

    def take_read(self) -> list[tuple[Entry, np.ndarray | None]]:
        """Entries that were asked for, with their data; None: the file was damaged, or is gone."""
        return [self._read.popleft() for _ in range(len(self._read))]

    def forget(self) -> None:
        """Remove all files, and what is on its way to disk or from there.

        A file that is being written goes once it is there: its thread sees that all was forgotten.
        """
        with self._wanted:
            self._forgotten += 1
            self._pending = 0
            for each in (self._to_read, self._to_write, self._found, self._read):
                each.clear()
        if self.folder is not None:
            disk.remove_all(self.folder)

    def close(self) -> None:
        """Write what waits, for some seconds at most."""
        with self._wanted:
            self._closing = True
            self._wanted.notify()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def _work(self, folder: disk.Folder) -> None:
        stand_back()
        self._scan(folder)
        written = 0
        while True:
            with self._wanted:
                while not (self._to_read or self._to_write or self._closing):
                    self._wanted.wait()
                forgotten = self._forgotten
                to_read = self._to_read.popleft() if self._to_read else None
                to_write = self._to_write.popleft() if self._to_write and not to_read else None
                if to_write is not None:
                    self._pending -= to_write[3].size
            if to_read is not None:
                data = disk.read(folder, to_read[1])
                self._tell(forgotten, self._read, [(to_read[0], data)])
            elif to_write is not None:
                self._write(folder, forgotten, *to_write)
                written += 1
                if written % SHRINK_EVERY == 0:
                    disk.shrink(folder, self._most)
            else:
                return

    def _scan(self, folder: disk.Folder) -> None:
        """Find the entries of earlier daemons."""
        forgotten = self._forgotten
        with contextlib.suppress(OSError):
            disk.shrink(folder, self._most)
            found = sorted(disk.scan(folder), key=lambda kept: kept.p0)
            self._tell(forgotten, self._found, found)

    def _tell(self, forgotten: int, news: deque[Any], what: list[Any]) -> None:
        """Let the loop have ``what`` was read, unless all was forgotten meanwhile."""
        self.bytes_read = disk_reads.by_thread()
        with self._wanted:
            if forgotten == self._forgotten:
                news += what
        self._notify()

    def _write(
        self, folder: disk.Folder, forgotten: int, entry: Entry, domain: str, tokens: np.ndarray,
        data: np.ndarray,
    ) -> None:  # fmt: skip
        """Write an entry, unless all is ``forgotten`` more often when its file is there."""
        if self.problem or entry.path:
            return
        try:
            path = disk.write(folder, domain, tokens, entry.p0, data, entry.cost_ms)
        except OSError as error:
            self.problem = f"texts are not kept on disk: {folder.path}: {error.strerror}"
            return
        with self._wanted:
            if forgotten == self._forgotten:
                entry.n_bytes, entry.path = data.size, path
                return
        disk.remove(path)
