"""The help that `?` shows, and the line of keys."""

from __future__ import annotations

from textwrap import wrap

from umaserve.dashboard.canvas.line import Line, column, rule

# the longest that there is room for
KEYS = (
    " ↑↓ select  Enter details  / filter  s sort  l load  m figures  ? help  q quit",
    " ↑↓  Enter  / filter  s sort  l load  m  ? help  q quit",
    " ↑↓  Enter  /  s  l  m  ? help  q quit",
    " ? help  q quit",
)
# keys, then words of the screen that need one
KEY_HELP = (
    ("↑ ↓ or k j", "select a request; also page up and down, home, end"),
    ("Enter", "its details; Enter or Esc closes them"),
    ("p, d", "promote it to the interactive lane, demote it to background"),
    ("c or x, twice", 'cancel it; its client gets reason "cancel"'),
    ("/, s", "list requests that contain some letters; sort them"),
    ("l", "load another model of this machine"),
    ("m", "the operator's figures and back"),
    ("space, Ctrl-L", "hold the screen still or go on; draw everything anew"),
    ("q", "leave; where the daemon draws this itself, twice: stop it"),
)
WORD_HELP = (
    ("first, p95", "time to the first token: median, 95th percentile, ms"),
    ("held", "p95 / cap: the cap is kept; guard: ticks that left prompts out"),
    ("at cap", "tokens a second, counting only seconds that kept the cap"),
    ("late", "ticks that took longer than the tick budget"),
    ("ΣBMT", "estimated GB that ticks move a second, of what they may move"),
    ("churn", "memory fetched from disk for each token; 0 is best"),
)
HELP_LABEL = 13  # cells of what is explained


def help_lines(width: int, room: int) -> list[Line]:
    """A line each; on a narrow screen several, or one that is cut off where that is low too."""
    entries = (*KEY_HELP, *WORD_HELP)
    rows = [f"{column(what, HELP_LABEL, left=True)}  {text}" for what, text in entries]
    if max(map(len, rows)) + 2 > width:
        rows = [f"{what}: {text}" for what, text in entries]
        cells = max(width - 2, 4)
        parts = [part for row in rows for part in wrap(row, cells, subsequent_indent="   ")]
        rows = parts if len(parts) < room else rows
    title = rule("help (? or Esc closes it)", width)
    return [title, *(Line(f"  {row}").fit(width) for row in rows)]


def key_line(width: int) -> Line:
    """The keys that there is room for."""
    return Line(next((keys for keys in KEYS if len(keys) <= width), KEYS[-1]), "dim")
