"""A file of lines that is written beside the daemon's work and never in its way."""

from __future__ import annotations

import os
import stat
import threading
from collections import deque
from collections.abc import Callable

import trio

from umaserve.system.own_file import NotOurs, check_own, open_own

WRITE_S = 0.5  # lines wait so long for company
RETRY_S = 2.0
PENDING_BYTES = 4 * 1024 * 1024  # kept for a file that cannot be written; then the oldest go
CLOSE_S = 2.0


class RecordError(Exception):
    """A file cannot be what it should be; the message says which and why."""


class RecordFile:
    """Lines are taken at once by ``put`` and written in a thread by ``run``.

    The file is appended to.  It moves to FILE.1 (FILE.1 to FILE.2, up to ``keep``) when it would
    grow past ``max_bytes`` (0 = never) or begins with another ``header``.  What a full, read-only
    or slow disk does not take waits, within bounds, and is tried again.  The log hears of the first
    failure and of the recovery.  A whole line is written or none of it.  A new file is mode 0600.
    """

    def __init__(
        self,
        path: str,
        log: Callable[..., None],
        *,
        header: bytes = b"",
        max_bytes: int = 0,
        keep: int = 1,
    ) -> None:
        """Raises ``RecordError`` where there is no such folder, or others choose the file."""
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder) or os.path.isdir(path):
            what = "it is a folder" if os.path.isdir(path) else f"{folder} does not exist"
            raise RecordError(f"{path} cannot be written: {what}; name a file in a folder that is")
        try:
            check_own(path)
        except NotOurs as error:
            raise RecordError(f"{path} is not written: {error.strerror}") from None
        self.path = path
        self.header = header
        self.lost = 0  # lines, since the last success
        self._max_bytes, self._keep = max_bytes, keep
        self._log = log
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._fd = -1
        self._regular = False
        self._size = 0
        self._failing = False
        self._lock = threading.Lock()  # a thread that was given up may still be writing

    def put(self, line: bytes) -> None:
        """``line`` ends with a newline."""
        self._pending.append(line)
        self._pending_bytes += len(line)
        while self._pending_bytes > PENDING_BYTES:
            self._pending_bytes -= len(self._pending.popleft())
            self.lost += 1

    async def run(self) -> None:
        """Write until cancelled, and then what is left, for a moment."""
        try:
            while True:
                await trio.sleep(RETRY_S if self._failing else WRITE_S)
                await self._write()
        finally:
            with trio.move_on_after(CLOSE_S, shield=True):
                await self._write()
                await trio.to_thread.run_sync(self._append, [], abandon_on_cancel=True)

    async def _write(self) -> None:
        if not self._pending:
            return
        lines = list(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        error = await trio.to_thread.run_sync(self._append, lines, abandon_on_cancel=True)
        if error is None:
            if self._failing:
                lost = f"; {self.lost} lines were lost" if self.lost else ""
                self._log("info", f"{self.path} is written again{lost}", file=self.path)
            self._failing, self.lost = False, 0
            return
        if not self._failing:
            self._failing = True
            text = f"{self.path} cannot be written ({error}); it is tried again, serving goes on"
            self._log("warn", text, file=self.path)
        newer = list(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        for line in lines + newer:
            self.put(line)

    # --- in the thread ----------------------------------------------------------------------------

    def _append(self, lines: list[bytes]) -> str | None:
        """Write all lines or none, and close the file when there are none; why it failed."""
        with self._lock:
            if lines:
                return self._append_locked(b"".join(lines))
            self._close()
        return None

    def _append_locked(self, data: bytes) -> str | None:
        try:
            self._open()
            if self._full(len(data)):
                self._move_aside(self._keep)
                self._open()
            if self._regular and not self._size:
                data = self.header + data
            before = self._size
            try:
                self._put_bytes(data)
            except OSError:
                if self._regular:
                    os.ftruncate(self._fd, before)
                raise
            self._size += len(data)
        except OSError as error:
            self._close()
            return error.strerror or str(error)
        return None

    def _put_bytes(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def _open(self) -> None:
        """Open the file, again where somebody has moved or removed it."""
        if self._fd >= 0:
            try:
                there, ours = os.stat(self.path), os.fstat(self._fd)
                if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                    return
            except FileNotFoundError:
                pass  # removed: made again below
            self._close()
        # not blocking: a pipe that nobody reads counts as a full disk
        flags = os.O_APPEND | os.O_NONBLOCK
        try:
            self._fd = open_own(self.path, flags | os.O_RDWR)
        except NotOurs:
            raise
        except OSError:
            self._fd = open_own(self.path, flags | os.O_WRONLY)
        found = os.fstat(self._fd)
        self._regular = stat.S_ISREG(found.st_mode)
        self._size = found.st_size if self._regular else 0
        if self._regular and self._size:
            self._look_at_start()

    def _look_at_start(self) -> None:
        """A file with other columns is not continued; a line that was cut short is closed."""
        try:
            other = self.header and os.pread(self._fd, len(self.header), 0) != self.header
            cut = os.pread(self._fd, 1, self._size - 1) != b"\n"
        except OSError:  # it may be written and not read
            return
        if other:  # moved aside even where none is kept: it is somebody's data
            self._move_aside(max(1, self._keep))
            self._open()
        elif cut:
            self._put_bytes(b"\n")
            self._size += 1

    def _full(self, more: int) -> bool:
        limit = self._max_bytes
        return bool(limit and self._regular and self._size and self._size + more > limit)

    def _move_aside(self, keep: int) -> None:
        """FILE to FILE.1 and so on; where the folder does not allow that, nothing is written."""
        self._close()
        if not keep:
            os.remove(self.path)
            return
        for number in range(keep - 1, 0, -1):
            if os.path.exists(f"{self.path}.{number}"):
                os.replace(f"{self.path}.{number}", f"{self.path}.{number + 1}")
        os.replace(self.path, f"{self.path}.1")

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
