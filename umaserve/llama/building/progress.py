"""What a person sees while a long step runs: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, TextIO

_PLAIN_EVERY_S = 5.0


class Reporter:
    """Writes lines to `stream` (standard output by default) unless `quiet`."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self.stream = stream if stream is not None else sys.stdout
        self.quiet = quiet

    @property
    def is_terminal(self) -> bool:
        return not self.quiet and self.stream.isatty()

    def say(self, text: str) -> None:
        """Writes one line."""
        if not self.quiet:
            print(text, file=self.stream, flush=True)

    def step(self, title: str) -> Step:
        """A step with a beginning, a fraction done and an end; use it in a ``with``."""
        return Step(self, title)


class Step:
    """One long step. `update` may be called as often as one likes."""

    def __init__(self, reporter: Reporter, title: str) -> None:
        self.reporter = reporter
        self.title = title
        self._bar: tuple[Any, Any] | None = None
        self._started = 0.0
        self._said_at = 0.0
        self._said_percent = -10

    def __enter__(self) -> Step:
        self._started = self._said_at = time.monotonic()
        if self.reporter.is_terminal:
            self._open_bar()
        if self._bar is None:
            self.reporter.say(f"{self.title} ...")
        return self

    def _open_bar(self) -> None:
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
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=32),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
        )
        bar = Progress(*columns, console=Console(file=self.reporter.stream), transient=True)
        bar.start()
        self._bar = (bar, bar.add_task(self.title, total=None, note=""))

    def update(self, done: float | None, total: float | None, note: str = "") -> None:
        """Reports `done` of `total` (None where unknown); `note` says what is being worked on."""
        if self._bar is not None:
            bar, task = self._bar
            bar.update(task, completed=done or 0, total=total, note=note[:48])
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
            self._bar[0].stop()
        if kind is None:
            self.reporter.say(f"{self.title}: done in {seconds:.1f} s")
