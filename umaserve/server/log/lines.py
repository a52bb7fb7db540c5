"""The daemon's log: plain lines or JSON lines on stderr."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TextIO

from umaserve.texts import printable
from umaserve.visible import visible

KEPT = 200  # lines
FIRST_S, LONGEST_S = 10.0, 600.0  # between two words about a line that goes on coming
COMPARED = 64  # lines with which a new one is compared
LEVELS = {"debug": 0, "info": 1, "warn": 2, "warning": 2, "error": 3}


def trace(error: BaseException) -> str:
    """For the log: the error with its traceback."""
    return "".join(traceback.format_exception(error)).rstrip()


Key = tuple[str, str]  # level and text


@dataclass
class _Line:
    said_s: float  # when it, or the last word about it, was written
    wait_s: float
    count: int = 0


class Repeats:
    """The newest lines.  What comes again is counted; `due` says when that is to be told.  It is
    after ten seconds, then after twice as long each, up to ten minutes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines: dict[Key, _Line] = {}

    def again(self, level: str, text: str) -> bool:
        """Whether this line was written lately; then it is counted, and not to be written."""
        now_s, key = self._clock(), (level, text)
        line = self._lines.get(key)
        if line is None:
            self._lines[key] = _Line(now_s, FIRST_S)
            return False
        line.count += 1
        return True

    def due(self, *, all: bool = False) -> list[tuple[Key, int, float]]:
        """Return the lines whose repeats are to be told now; with ``all`` every repeated line.

        Each has the number of its repeats, and the seconds in which they came.
        """
        now_s = self._clock()
        out = []
        for key, line in list(self._lines.items()):
            crowded = len(self._lines) > COMPARED
            if not all and not crowded and now_s - line.said_s < line.wait_s:
                continue
            if line.count:
                out.append((key, line.count, now_s - line.said_s))
                line.wait_s = min(2 * line.wait_s, LONGEST_S)
            if crowded or not line.count:
                del self._lines[key]
            line.said_s, line.count = now_s, 0
        return out


class Log:
    """``log(level, text, **fields)``.

    A line about a request has its id in the text and as the field ``request``; JSON lines show the
    fields, plain lines do not.  While ``hold`` is true, lines are kept and not written: a dashboard
    owns the terminal.  ``recent`` has the newest of all lines, each with ``time`` (local),
    ``level`` and ``text``.  A line that was written lately is counted, not written again.
    ``on_trouble(level, text, fields)`` is called for each warning and error, even below the level
    that is written.
    """

    def __init__(self, level: str, as_json: bool, stream: TextIO | None = None) -> None:
        self._level = LEVELS.get(level, 1)
        self._json = as_json
        self._stream = stream if stream is not None else sys.stderr
        self._repeats = Repeats()
        self._held: deque[str] = deque(maxlen=KEPT)
        self.hold = False
        self.recent: deque[dict[str, str]] = deque(maxlen=KEPT)
        self.on_trouble: Callable[[str, str, dict[str, Any]], None] | None = None

    def __call__(self, level: str, text: str, **fields: Any) -> None:
        """Never raises: what is logged is trouble already."""
        try:
            self._take(level, text, fields)
        except Exception as error:
            self._write(f"error: a line of the log was lost ({type(error).__name__}: {error})")

    def _take(self, level: str, text: str, fields: dict[str, Any]) -> None:
        text = printable(text)
        if LEVELS.get(level, 1) >= LEVELS["warn"] and self.on_trouble is not None:
            self.on_trouble(level, text, fields)
        if LEVELS.get(level, 1) < self._level:
            return
        self.tell_repeats()
        if not self._repeats.again(level, text):
            self._put(level, text, fields)

    def tell_repeats(self, *, all: bool = False) -> None:
        """Say how often lines came again; to be called now and then, where no line may follow."""
        for (level, text), count, span_s in self._repeats.due(all=all):
            times = "once" if count == 1 else f"{count} times"
            text += f" (repeated {times} in {span_s:.0f} s)"
            self._put(level, text, {"repeated": count})

    def _put(self, level: str, text: str, fields: dict[str, Any]) -> None:
        now = datetime.now(timezone.utc)
        at = f"{now.astimezone():%H:%M:%S}"
        if self._json:
            stamp = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            entry = {"time": stamp, "level": level, "message": text, **fields}
            line = json.dumps(entry, ensure_ascii=False)
        else:
            mark = "" if level == "info" else f"{level}: "
            line = f"{at} {mark}{text}"
        self.recent.append({"time": at, "level": level, "text": text})
        if self.hold:
            self._held.append(line)
        else:
            self._write(line)

    def _write(self, line: str) -> None:
        line = visible(line)  # a name that a client chose must not pass for a command to a terminal
        try:
            try:
                print(line, file=self._stream, flush=True)
            except UnicodeEncodeError:
                print(line.encode("ascii", "backslashreplace").decode(), file=self._stream)
        except (OSError, ValueError):
            # the terminal or the pipe is gone, or the disk is full for a while; the daemon goes on
            return

    def release(self) -> None:
        """Write what was kept, and how often lines came again."""
        self.tell_repeats(all=True)
        self.hold = False
        while self._held:
            self._write(self._held.popleft())
