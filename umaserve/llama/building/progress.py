"""Progress of a long step for a person: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, TextIO

_PLAIN_EVERY_S = 5.0


class Reporter:
    """Writes lines to `stream` (standard output by default) unless `quiet`.

    Steps may be open at the same time: on a terminal each has a bar, and lines go above the bars.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self.stream = stream if stream is not None else sys.stdout
        self.quiet = quiet
        self._bars: Any = None  # rich's Progress, while a step is open on a terminal
        self._open = 0  # steps that have a bar

    @property
    def is_terminal(self) -> bool:
        return not self.quiet and self.stream.isatty()

    def say(self, text: str) -> None:
        """Writes one line."""
        if self._bars is not None:
            self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)
        elif not self.quiet:
            print(text, file=self.stream, flush=True)

    def open_bar(self, title: str) -> Any:
        """A bar for one step; None where there is no terminal, or no library that draws bars."""
        if not self.is_terminal:
            return None
        if self._bars is None:
            self._bars = _new_bars(self.stream)
            if self._bars is None:
                return None
            self._bars.start()
        self._open += 1
        return self._bars.add_task(title, total=None, note="")

    def update_bar(self, bar: Any, **fields: Any) -> None:
        """Change a bar that `open_bar` gave; may be called by any thread."""
        self._bars.update(bar, **fields)

    def close_bar(self, bar: Any) -> None:
        """Take a bar away; with the last one the terminal is as it was."""
        self._bars.remove_task(bar)
        self._open -= 1
        if not self._open:
            self._bars.stop()
            self._bars = None

    def step(self, title: str) -> Step:
        """A step with a beginning, a fraction done and an end; use it in a ``with``."""
        return Step(self, title)


def _new_bars(stream: TextIO) -> Any:
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
        )
    except ImportError:
        return None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=32),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", style="dim"),
    )
    return Progress(*columns, console=Console(file=stream), transient=True)


class Step:
    """Long step whose progress is shown. `update` may be called at any rate."""

    def __init__(self, reporter: Reporter, title: str) -> None:
        self.reporter = reporter
        self.title = title
        self._bar: Any = None
        self._started = 0.0
        self._said_at = 0.0
        self._said_percent = -10

    def __enter__(self) -> Step:
        self._started = self._said_at = time.monotonic()
        self._bar = self.reporter.open_bar(self.title)
        if self._bar is None:
            self.reporter.say(f"{self.title} ...")
        return self

    def update(self, done: float | None, total: float | None, note: str = "") -> None:
        """Report `done` of `total` (None where unknown); `note` names the part in progress."""
        if self._bar is not None:
            self.reporter.update_bar(
                self._bar, completed=done or 0, total=total, note=note[:48]
            )
            return
        now = time.monotonic()
        percent = int(100 * done / total) if done is not None and total else None
        due = now - self._said_at >= _PLAIN_EVERY_S
        if percent is not None and percent >= self._said_percent + 10 and now - self._said_at > 1:
            due = True
        if due:
            self._said_at = now
            self._said_percent = percent if percent is not None else -10
            share = f"{percent}%" if percent is not None else note
            self.reporter.say(f"  {self.title}: {share} after {now - self._started:.0f} s")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        seconds = time.monotonic() - self._started
        if self._bar is not None:
            self.reporter.close_bar(self._bar)
        if kind is None:
            self.reporter.say(f"{self.title}: done in {seconds:.1f} s")
