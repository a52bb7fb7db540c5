"""How far a daemon is with a prompt whose first token takes over a second, in a line that goes."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from typing import Any

from umaserve.client import Client, UmaError

QUIET_S = 1.0  # before anything is shown
LOOK_S = 0.5
ANSWER_S = 2.0  # for the daemon to say how far it is


class Reading:
    """A context manager for one request, named by its ``id``; ``over`` is called with its first
    event.  Only a terminal is shown anything."""

    def __init__(self, socket: str | None, id: str) -> None:
        self._socket, self._id = socket, id
        self._over, self._lock = threading.Event(), threading.Lock()
        self._drawn = False

    def __enter__(self) -> Reading:
        if sys.stderr.isatty():
            threading.Thread(target=self._look, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over()

    def over(self) -> None:
        """Take the line away; nothing is shown from now on."""
        if not self._over.is_set():
            with self._lock:
                self._over.set()
                if self._drawn:
                    _draw("")

    def _look(self) -> None:
        if self._over.wait(QUIET_S):
            return
        with suppress(UmaError, OSError), Client(self._socket, timeout=ANSWER_S) as client:
            while True:
                rows = [row for row in client.info()["sessions"] if row.get("id") == self._id]
                if len(rows) == 1:
                    self._show(progress_text(rows[0]))
                if self._over.wait(LOOK_S):
                    return

    def _show(self, text: str) -> None:
        with self._lock:
            if (text or self._drawn) and not self._over.is_set():
                _draw(text)
                self._drawn = bool(text)


def progress_text(row: dict[str, Any]) -> str:
    """Say what the daemon does with a request, of which `info` has this row.

    Empty once the request is answered.
    """
    total, done, age_s = row.get("prompt_tokens") or 0, row.get("kv_cells") or 0, row.get("age_s")
    after = f", {age_s:.0f} s" if age_s else ""
    if row.get("state") in ("queued", "parked"):
        return f"(waiting for a turn{after})"
    if row.get("state") == "prefill" and total:
        return f"(reading the prompt: {min(done / total, 1):.0%} of {total} tokens{after})"
    return ""


def _draw(text: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
