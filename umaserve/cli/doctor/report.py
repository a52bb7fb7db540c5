"""Lines of ``umaserve doctor``: a level, a name, a text and a hint."""

from __future__ import annotations

import os
import sys

from umaserve.cli.parts.common import show

COLOURS = {"ok": 32, "warn": 33, "missing": 31}  # of terminals


class Report:
    """Prints a line as soon as it is known; remembers whether anything needed is missing."""

    def __init__(self) -> None:
        self.missing = 0
        self._colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def line(self, level: str, name: str, text: str, hint: str = "") -> None:
        """Print a line; ``level``: a key of `COLOURS`."""
        self.missing += level == "missing"
        mark = f"{level:<7}"
        print(f"\x1b[{COLOURS[level]}m{mark}\x1b[0m" if self._colour else mark, end=" ")
        show(f"{name:<10} {text}")
        if hint:
            show(f"{'':7} {'':10} -> {hint}")

    def ok(self, name: str, text: str) -> None:
        self.line("ok", name, text)

    def warn(self, name: str, text: str, hint: str = "") -> None:
        self.line("warn", name, text, hint)

    def miss(self, name: str, text: str, hint: str = "") -> None:
        self.line("missing", name, text, hint)
