"""The screen as text without a terminal, and as an SVG picture."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from rich.console import Console

from umaserve.dashboard.canvas.line import Line, joined


def text(lines: Sequence[Line]) -> str:
    return "\n".join(line.plain.rstrip() for line in lines)


def svg(lines: Sequence[Line], title: str) -> str:
    """By rich; without the web fonts that its template names, so that it fetches nothing."""
    width = max((line.cells for line in lines), default=1)
    console = Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(joined(lines), soft_wrap=True)
    picture = console.export_svg(title=title, unique_id="umaserve")
    return re.sub(r"@font-face\s*\{[^}]*\}\s*", "", picture)
