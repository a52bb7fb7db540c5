"""The life of a request as a drawing: the states of docs/SYSTEM_DESIGN.md.

    python -m tools.draw_life

It is made from the table of steps in `umaserve.server.requests.life`, as text that GitHub draws
(Mermaid).  tests/docs/test_draw_life.py compares the page with it.
"""

from __future__ import annotations

import re
from pathlib import Path

from umaserve.server.requests.life import NEXT, Answer, Stage

PAGE = Path(__file__).resolve().parent.parent / "docs" / "SYSTEM_DESIGN.md"
BLOCK = re.compile(r"```mermaid\n.*?```\n", re.DOTALL)


def draw() -> str:
    """Return the block of the page."""
    lines = ["```mermaid", "stateDiagram-v2", "    direction LR"]
    for kind in (Stage, Answer):
        lines.append(f"    state {kind.__name__} {{")
        lines.append(f"        [*] --> {next(iter(kind)).name}")
        for state in kind:
            steps = [to for to in kind if to in NEXT[state] and to is not state]
            lines += [f"        {state.name} --> {to.name}" for to in steps]
        lines.append("    }")
    return "\n".join([*lines, "```", ""])


def page() -> str:
    """Return the page with the block of today."""
    return BLOCK.sub(lambda _: draw(), PAGE.read_text("utf-8"), count=1)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
