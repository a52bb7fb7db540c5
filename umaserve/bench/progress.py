"""How far it is: a bar for each stage on a terminal, a line for each elsewhere (on stderr)."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from umaserve.visible import for_reader, visible

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from umaserve.bench.load import Load

RECENT_S = 2.0  # of which a running phase's figures are told


class Stages:
    """``stage(name)`` begins the next one and ends the one before; ``update`` moves it.

    Nothing is drawn but in these calls, so that drawing falls where it disturbs nobody.
    """

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._began_s, self._seconds = 0.0, 1.0

    def __enter__(self) -> Stages:
        if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (
                TextColumn("{task.description:<20}"),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[note]}", markup=False),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), auto_refresh=False)
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            if kind is None:
                self._end()
            self._bar.stop()
            self._bar = None

    def stage(self, name: str, note: str = "") -> None:
        """Begin a stage."""
        if self._bar is None:
            _line(f"bench: {name}" + (f" ({note})" if note else ""))
            return
        self._end()
        self._task = self._bar.add_task(name, total=1.0, note=visible(note))
        self._bar.refresh()

    def update(self, fraction: float, note: str) -> None:
        """The stage is so far (0..1)."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=min(fraction, 0.999), note=note)
            self._bar.refresh()

    def begin(self, seconds: float) -> None:
        """A phase of the stage begins, which takes so long."""
        self._began_s, self._seconds = time.monotonic(), seconds

    def report(self, load: Load) -> None:
        """Say how far the phase is."""
        gone_s = time.monotonic() - self._began_s
        p95 = load.p95_since_ms(time.monotonic() - RECENT_S)
        left = f"{max(0.0, self._seconds - gone_s):3.0f} s left"
        now = "" if p95 is None else f", p95 {p95:.1f} ms"
        self.update(gone_s / self._seconds, left + now)

    def ended(self, note: str) -> None:
        """The stage is over, with this result."""
        if self._bar is None:
            _line(f"bench:   {note}")
        elif self._task is not None:
            self._bar.update(self._task, completed=1.0, note=visible(note))
            self._bar.refresh()

    def _end(self) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=1.0)


def _line(text: str) -> None:
    print(for_reader(text, sys.stderr), file=sys.stderr, flush=True)
