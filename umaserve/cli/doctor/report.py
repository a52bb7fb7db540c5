"""Lines of ``umaserve doctor``: a level, a name, a text and a hint."""

from __future__ import annotations

import os
import sys

from umaserve.cli.parts.common import show


class Report:
    """Prints a line as soon as it is known; remembers whether anything needed is missing."""

    def __init__(self) -> None:
        self.missing = 0
        self._colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def _line(self, level: str, colour: int, name: str, text: str, hint: str) -> None:
        mark = f"\x1b[{colour}m{level:<7}\x1b[0m" if self._colour else f"{level:<7}"
        print(mark, end=" ")
        show(f"{name:<10} {text}")
        if hint:
            show(f"{'':7} {'':10} -> {hint}")

    def ok(self, name: str, text: str) -> None:
        self._line("ok", 32, name, text, "")

    def warn(self, name: str, text: str, hint: str = "") -> None:
        self._line("warn", 33, name, text, hint)

    def miss(self, name: str, text: str, hint: str = "") -> None:
        self.missing += 1
        self._line("missing", 31, name, text, hint)
