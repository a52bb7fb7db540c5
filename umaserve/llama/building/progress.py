"""Progress of a long step for a person: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
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

    def say(self, text: str) -> None:
        """Writes one line."""
        if self._bars is not None:
            self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)
        elif not self.quiet:
            print(text, file=self.stream, flush=True)

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """A step with a beginning, a fraction done and an end; use it in a ``with``."""
        began_s = time.monotonic()
        if self.quiet or not self.stream.isatty():
            self.say(f"{title} ...")
            yield Step(self, title)
        else:
            if self._bars is None:
                self._bars = _new_bars(self.stream)
                self._bars.start()
            self._open += 1
            bar = self._bars.add_task(title, total=None, note="")
            try:
                yield Step(self, title, self._bars, bar)
            finally:
                self._bars.remove_task(bar)
                self._open -= 1
                if not self._open:  # the terminal is as it was
                    self._bars.stop()
                    self._bars = None
        self.say(f"{title}: done in {time.monotonic() - began_s:.1f} s")


def _new_bars(stream: TextIO) -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=32),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", style="dim"),
    )
    return Progress(*columns, console=Console(file=stream), transient=True)


class Step:
    """Long step whose progress is shown. `update` may be called at any rate, by any thread."""

    def __init__(self, reporter: Reporter, title: str, bars: Any = None, bar: Any = None) -> None:
        self._reporter, self._title, self._bars, self._bar = reporter, title, bars, bar
        self._began_s = self._said_s = time.monotonic()
        self._said_percent = -10

    def update(self, done: float | None, total: float | None, note: str = "") -> None:
        """Report `done` of `total` (None where unknown); `note` names the part in progress."""
        if self._bars is not None:
            self._bars.update(self._bar, completed=done or 0, total=total, note=note[:48])
            return
        now_s = time.monotonic()
        percent = int(100 * done / total) if done is not None and total else None
        due = now_s - self._said_s >= _PLAIN_EVERY_S
        if percent is not None and percent >= self._said_percent + 10 and now_s - self._said_s > 1:
            due = True
        if due:
            self._said_s = now_s
            self._said_percent = percent if percent is not None else -10
            share = f"{percent}%" if percent is not None else note
            self._reporter.say(f"  {self._title}: {share} after {now_s - self._began_s:.0f} s")
