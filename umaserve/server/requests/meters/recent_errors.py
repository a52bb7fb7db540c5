"""The newest errors and warnings, for people who look at a dashboard."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

from umaserve.texts import printable

KEPT = 20
BURST_S = 1.0  # the same again within this time is one entry
LONGEST = 300  # characters of a text


class Client(Protocol):
    """Client that was told of an error."""

    @property
    def app(self) -> str: ...


@dataclass
class _Entry:
    at_s: float  # of the newest, on the wall clock
    code: str
    text: str
    request: str
    app: str
    count: int = 1


class RecentErrors:
    """Recent errors: errors that clients were told, by their code, and lines of the log, with
    "warn" or "error" as their code.

    Errors of one code that come within a second of each other are one entry, which shows the first
    and counts the others. A client that sends only invalid messages does not push out other errors.
    """

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque(maxlen=KEPT)

    def add(self, code: str, text: str, request: str = "", client: Client | None = None) -> None:
        """``request`` is the id; ``client`` is asked for its name when this is a new entry."""
        now_s, text = time.time(), printable(_one_line(text))
        for entry in self._entries:
            again = entry.code == code and (code.startswith("E_") or entry.text == text)
            if again and abs(now_s - entry.at_s) <= BURST_S:
                entry.at_s, entry.count = now_s, entry.count + 1
                return
        app = "" if client is None else client.app
        self._entries.append(_Entry(now_s, code, text, request, app))

    def log_line(self, level: str, text: str, fields: dict[str, Any]) -> None:
        """Take a warning or an error of the log; one about a request has its own code anyway."""
        if "request" not in fields:
            self.add(level, text)

    def read(self) -> list[dict[str, Any]]:
        """Oldest first: ``time`` (local), ``age_s``, ``code``, ``text``, ``request`` and ``app``
        (empty where there is none), ``count``."""
        now_s = time.time()
        return [
            {
                "time": time.strftime("%H:%M:%S", time.localtime(entry.at_s)),
                "age_s": round(max(now_s - entry.at_s, 0.0), 1),
                "code": entry.code,
                "text": entry.text,
                "request": entry.request,
                "app": entry.app,
                "count": entry.count,
            }
            for entry in sorted(self._entries, key=lambda entry: entry.at_s)
        ]


def _one_line(text: str) -> str:
    """The first line and the last, which of a traceback is what it says."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    text = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
