"""The way of a request through the processes, as a drawing: docs/request.svg.

    python -m tools.draw_request

The steps are those of "A request's life" in docs/SYSTEM_DESIGN.md.  The drawing has a background of
its own and follows the reader's light or dark scheme.  Run it again after a change here:
tests/docs/test_draw_request.py compares the file with what this writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

OUT = Path(__file__).resolve().parent.parent / "docs" / "request.svg"
WIDTH, HEIGHT = 1000, 620
LINE = 17  # from one line of text to the next

# of each scheme: page, a process's frame and surface, a step's surface, memory, text, what is small
LIGHT = {
    "page": "#ffffff", "frame": "#8794a5", "process": "#f1f4f8", "step": "#ffffff",
    "shared": "#fff3d6", "text": "#1b2430", "small": "#4a5666", "way": "#1f5fbf",
}  # fmt: skip
DARK = {
    "page": "#0d1117", "frame": "#66748a", "process": "#161c26", "step": "#222b38",
    "shared": "#3a3013", "text": "#e8edf4", "small": "#b3bfce", "way": "#7db4ff",
}  # fmt: skip


class Box(NamedTuple):
    """A rectangle with a title and lines below it.  ``kind`` is a colour of the schemes."""

    kind: str
    x: int
    y: int
    width: int
    height: int
    title: str
    lines: Sequence[str] = ()


PROCESSES = (
    Box("process", 10, 14, 980, 62, "Clients", ("a Unix socket for each",)),
    Box("process", 10, 122, 980, 120, "Front"),
    Box("process", 10, 300, 210, 104, "Conversations"),
    Box("process", 230, 440, 760, 166, "Engine"),
)
SHARED = Box(
    "shared", 470, 316, 435, 66, "Session table (shared memory)",
    ("a row for each request: FREE, WAITING, RUNNING, DONE",),
)  # fmt: skip
STEPS = (
    Box("step", 25, 152, 180, 76, "1 Arrive", ("bytes to a message,", "limits are checked")),
    Box("step", 245, 152, 180, 76, "2 Queue", ("until a row is free,", "in turn")),
    Box("step", 25, 330, 180, 60, "3 Render", ("messages to a prompt",)),
    Box("step", 245, 470, 160, 66, "4 Tokenise", ("text to token ids",)),
    Box("step", 430, 470, 160, 66, "5 Admit", ("sequence and cells",)),
    Box("step", 615, 470, 160, 66, "6 Prefill", ("chunks of the prompt",)),
    Box("step", 800, 470, 175, 66, "7 Decode", ("a token each tick",)),
    Box("step", 800, 152, 175, 76, "8 Deliver", ("token to text,", "text to the client")),
)
BESIDE = Box("step", 615, 562, 160, 34, "beside the ticks")


class Arrow(NamedTuple):
    """A way through points; ``label`` stands at ``at``, to the right of it."""

    points: Sequence[tuple[int, int]]
    label: str = ""
    at: tuple[int, int] = (0, 0)


ARROWS = (
    Arrow(((115, 76), (115, 150)), "request", (123, 104)),
    Arrow(((205, 190), (243, 190))),
    Arrow(((265, 228), (265, 348), (207, 348)), "messages", (194, 282)),
    Arrow(((205, 374), (305, 374), (305, 230)), "prompt", (313, 282)),
    Arrow(((385, 228), (385, 468)), "control socket", (393, 424)),
    Arrow(((405, 503), (428, 503))),
    Arrow(((590, 503), (613, 503))),
    Arrow(((775, 503), (798, 503))),
    Arrow(((510, 470), (510, 384)), "states", (518, 424)),
    Arrow(((850, 470), (850, 384)), "tokens", (858, 424)),
    Arrow(((850, 316), (850, 230)), "read", (858, 286)),
    Arrow(((920, 470), (920, 230)), "wake pipe", (928, 286)),
    Arrow(((888, 152), (888, 78)), "tokens, end", (896, 104)),
    Arrow(((645, 536), (645, 560)), "chunks", (590, 554)),
    Arrow(((745, 562), (745, 538)), "landings", (753, 554)),
    Arrow(((940, 536), (940, 568), (860, 568), (860, 538)), "next tick", (866, 588)),
)


def style() -> str:
    """Colours by class, once for each scheme."""
    rules = []
    for scheme, colors in (("light", LIGHT), ("dark", DARK)):
        fills = "".join(
            f".{kind}{{fill:{colors[kind]}}}"
            for kind in ("page", "process", "step", "shared", "text", "small")
        )
        fills += (
            f".box{{stroke:{colors['frame']}}}"
            f".way{{stroke:{colors['way']};fill:none}}.head{{fill:{colors['way']}}}"
        )
        rules.append(
            fills if scheme == "light" else f"@media (prefers-color-scheme:dark){{{fills}}}"
        )
    return "\n".join(["text{font-family:system-ui,sans-serif;font-size:13px}"
                      ".title{font-weight:600;font-size:14px}", *rules])  # fmt: skip


def text(x: int, y: int, words: str, kinds: str) -> str:
    return f'<text x="{x}" y="{y}" class="{kinds}">{escape(words)}</text>'


def drawn_box(box: Box) -> list[str]:
    lines = [
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6" '
        f'class="box {box.kind}"/>',
        text(box.x + 12, box.y + 22, box.title, "title text"),
    ]
    for number, words in enumerate(box.lines, start=1):
        lines.append(text(box.x + 12, box.y + 24 + LINE * number, words, "small"))
    return lines


def drawn_arrow(arrow: Arrow) -> list[str]:
    way = " ".join(f"{x},{y}" for x, y in arrow.points)
    lines = [f'<polyline points="{way}" class="way" stroke-width="2" marker-end="url(#head)"/>']
    if arrow.label:
        lines.append(text(*arrow.at, arrow.label, "small"))
    return lines


def draw() -> str:
    """The whole file."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-labelledby="what">',
        '<title id="what">A request\'s way in eight steps through clients, front, conversations '
        "and engine</title>",
        f"<style>{style()}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="5" '
        'markerHeight="5" orient="auto"><path d="M0,0 L8,4 L0,8 z" class="head"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" class="page"/>',
    ]
    for box in (*PROCESSES, SHARED, *STEPS, BESIDE):
        lines += drawn_box(box)
    for arrow in ARROWS:
        lines += drawn_arrow(arrow)
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    OUT.write_text(draw(), encoding="utf-8")
