"""The terminal: taken over while the dashboard is open, given back on any exit; and its keys."""

from __future__ import annotations

import os
import re
import sys
import termios
import threading
import time
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style

from umaserve.dashboard.canvas.line import ASCII, STYLES, Line
from umaserve.visible import visible

PLAIN_INTERVAL_S = 5.0

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"  # the alternate screen, no cursor, nothing on it
_LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"
_ERASE_REST = "\x1b[K"

_KEYS = {
    b"\x1b[A": "up", b"\x1bOA": "up",
    b"\x1b[B": "down", b"\x1bOB": "down",
    b"\x1b[5~": "pageup", b"\x1b[6~": "pagedown",
    b"\x1b[H": "home", b"\x1bOH": "home", b"\x1b[1~": "home",
    b"\x1b[F": "end", b"\x1bOF": "end", b"\x1b[4~": "end",
    b"\x08": "backspace", b"\x7f": "backspace", b"\n": "enter", b"\r": "enter", b"\f": "redraw",
    b"\x1b": "escape",
    **{bytes([code]): chr(code) for code in range(0x20, 0x7F)},
}  # fmt: skip
# a control sequence to its end, or a byte
_KEY = re.compile(rb"\x1b[\[O][^@-~]*[@-~]?|.", re.DOTALL)


class Terminal:
    """``paint`` takes it over; ``close``, which has to follow in any case, gives it back.

    ``plain``: there is no terminal, or one that cannot move its cursor; ``say`` is what is left.
    What is painted is compared with what is there, and only the lines that differ are written.  So
    nothing flickers, and little is sent over a slow line.  While another job has the terminal
    (after Ctrl-Z and ``bg``), nothing is written and no setting is touched.  Raises ``OSError``
    when the output is gone.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self.plain = not self._console.is_terminal or self._console.is_dumb_terminal
        self.input = _descriptor(sys.stdin) if not self.plain else None
        self._output = _descriptor(self._console.file)
        self._codes = self._style_codes()
        self._ascii = not self._console.encoding.lower().startswith("utf")
        self._lock = threading.Lock()  # one writes at a time
        self._open = False
        self._given_back = False  # until `continued`, nothing is painted
        self._saved: list[Any] | None = None  # settings of the input
        self._shown: list[list[tuple[str, str]]] = []
        self._size = (0, 0)
        self._said_at = -PLAIN_INTERVAL_S

    def _style_codes(self) -> dict[str, tuple[str, str]]:
        """Return the codes to write before and after a text of each style."""
        system = ColorSystem.STANDARD if self._console.color_system else None
        codes = {}
        for name, words in STYLES.items():
            style = Style.parse(words)
            if self._console.no_color:
                style = style.without_color
            before, _, after = style.render("\0", color_system=system).partition("\0")
            codes[name] = (before, after)
        return codes

    # --- taking and giving back -------------------------------------------------------------------

    @property
    def foreground(self) -> bool:
        """Ours is the job that the terminal listens to."""
        fd = self.input if self.input is not None else self._output
        if fd is None:
            return True
        try:
            return os.tcgetpgrp(fd) == os.getpgrp()
        except OSError:  # not the terminal of this session: job control is no matter
            return True

    def _take(self) -> None:
        if self._open:
            return
        self._open = True
        self._shown = []
        if self.input is not None:
            self._raw(self.input)
        self._write(_ENTER)

    def _raw(self, fd: int) -> None:
        """Keys as they are pressed and not echoed; Ctrl-C and Ctrl-Z go on making signals."""
        settings = termios.tcgetattr(fd)
        if self._saved is None:
            self._saved = [*settings[:6], list(settings[6])]
        settings[0] &= ~termios.IXON  # Ctrl-S would stop our output and with it the screen
        settings[3] &= ~(termios.ICANON | termios.ECHO)
        settings[6][termios.VMIN], settings[6][termios.VTIME] = 1, 0
        termios.tcsetattr(fd, termios.TCSANOW, settings)

    def close(self) -> None:
        """Give the terminal back; nothing happens where it is not ours or is gone.

        May be called while another thread paints, and even if that one is stuck.
        """
        self._given_back = True
        try:
            if self._saved is not None and self.input is not None and self.foreground:
                # before the lock, and at once rather than after output that may be stuck
                termios.tcsetattr(self.input, termios.TCSANOW, self._saved)
            with self._lock:
                if self._open and self.foreground:
                    self._write(_LEAVE)
        except (OSError, termios.error):
            self.plain = True  # there is no terminal any more
        self._open, self._saved = False, None

    def continued(self) -> None:
        """The process was stopped and goes on: the shell had the terminal meanwhile."""
        self._open = self._given_back = False

    # --- showing ----------------------------------------------------------------------------------

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, now."""
        columns, lines = 0, 0
        if self._output is not None:
            columns, lines = os.get_terminal_size(self._output)
        # rich would take COLUMNS from the environment, which does not change with the window
        return (
            (columns, lines) if columns and lines else (self._console.width, self._console.height)
        )

    def refresh(self) -> None:
        """Write everything anew with the next ``paint``."""
        self._shown = []

    def paint(self, lines: Sequence[Line]) -> None:
        """Show these lines, the first at the top."""
        with self._lock:
            if not (self.plain or self._given_back) and self.foreground:
                self._take()
                self._paint(lines)

    def _paint(self, lines: Sequence[Line]) -> None:
        out = []
        if self._size != self.size or not self._shown:
            self._size, self._shown = self.size, []
            out.append("\x1b[0m\x1b[2J")
        shown = self._shown
        for row, line in enumerate(lines):
            if row < len(shown) and shown[row] == line.parts:
                continue
            out.append(f"\x1b[{row + 1};1H")
            cells = line.cells
            for text, style in line.parts:
                before, after = self._codes[style]
                out.append(f"{before}{text}{after}" if before else text)
            if line.parts and not line.parts[-1][1]:
                text = out.pop()
                out.append(text.rstrip(" "))
                cells -= len(text) - len(out[-1])
            if cells < self._size[0]:
                out.append(_ERASE_REST)
        if len(shown) > len(lines):
            out.append(f"\x1b[{len(lines) + 1};1H\x1b[J")
        self._shown = [line.parts for line in lines]
        if out:
            self._write("".join(out))

    def say(self, line: str) -> None:
        """Print a line, at most one every ``PLAIN_INTERVAL_S``; for plain output."""
        at = time.monotonic()
        if at - self._said_at >= PLAIN_INTERVAL_S:
            self._said_at = at
            # not by rich, which ends the process when a pipe has no reader any more
            self._write(f"{time.strftime('%H:%M:%S')} {visible(line)}\n")

    def _write(self, text: str) -> None:
        file = self._console.file
        if self._ascii:
            text = text.translate(ASCII)
            if not text.isascii():
                text = "".join(c if c.isascii() else "?" * cell_len(c) for c in text)
        file.write(text)
        file.flush()


def decode(data: bytes) -> list[str]:
    """``up``, ``down``, ``pageup``, ``pagedown``, ``home``, ``end``, ``enter``, ``backspace``,
    ``escape``, ``redraw``, or the character itself.  Other control sequences and bytes beyond ASCII
    are left out."""
    return [_KEYS[key] for key in _KEY.findall(data) if key in _KEYS]


def _descriptor(stream: Any) -> int | None:
    """Return the descriptor of a stream that is a terminal, else None."""
    try:
        return stream.fileno() if stream is not None and stream.isatty() else None
    except (OSError, ValueError, AttributeError):  # closed, or a stream without one
        return None
