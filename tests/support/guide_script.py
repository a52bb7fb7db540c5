"""docs/GUIDE.md as a script: what its reader types, and what he sees then.

The page says it in comments that its reader does not see.  ``terminal: first`` (or ``second``)
chooses where the rest happens.  A ``sh`` block is typed at the shell's prompt, line by line.  A
block behind ``typed`` is typed into the program that runs, a block behind ``file: NAME`` is saved.
``presses: KEY`` presses a key (tmux's name).  ``sees: PATTERN`` waits for a line of the screen,
``prints`` for the prompt of what runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

GUIDE = Path(__file__).resolve().parents[2] / "docs/GUIDE.md"

Kind = Literal["terminal", "shell", "typed", "file", "presses", "sees", "prints"]
_COMMENT = re.compile(r"<!-- (terminal|file|presses|sees|prints|typed)(?:: (.*))? -->")


@dataclass(frozen=True)
class Step:
    """``text``: what is typed, pressed, saved or seen; ``name``: of a file."""

    kind: Kind
    text: str = ""
    name: str = ""
    heading: str = ""


def steps(page: str) -> list[Step]:
    """The steps of a page, in order.  ``ValueError`` for a comment or block that is none."""
    found: list[Step] = []
    heading, meaning, name = "", "", ""
    lines = iter(page.splitlines())
    for line in lines:
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("```"):
            body = []
            while (line_of_body := next(lines)) != "```":
                body.append(line_of_body)
            kind: Kind = "shell"
            if meaning in ("file", "typed"):
                kind = "file" if meaning == "file" else "typed"
            elif line != "```sh":
                raise ValueError(f"nobody says what a reader does with {line}")
            found.append(Step(kind, "\n".join(body), name, heading))
            meaning = name = ""
        elif line.startswith("<!--"):
            comment = _COMMENT.fullmatch(line)
            if comment is None:
                raise ValueError(f"no step: {line}")
            what, text = comment[1], comment[2] or ""
            if what in ("file", "typed"):
                meaning, name = what, text
            else:
                found.append(Step(what, text, "", heading))  # type: ignore[arg-type]
    return found
