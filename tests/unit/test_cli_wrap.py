"""Answers on a terminal: lines that end between words, whatever the pieces."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth

from umaserve.cli.chat.wrap import Wrapper


def screen(written: str) -> str:
    """What a terminal shows of what is written: letters, new lines, and words that are erased."""
    lines = [""]
    for part in re.findall(r"\x1b\[\d+D\x1b\[K|\n|[^\x1b\n]", written):
        if part == "\n":
            lines.append("")
        elif part[0] == "\x1b":
            count = int(part[2 : part.index("D")])
            while count > 0:
                count -= get_cwidth(lines[-1][-1])
                lines[-1] = lines[-1][:-1]
            assert count == 0
        else:
            lines[-1] += part
    return "\n".join(lines)


def wrapped(text: str, width: int, pieces: list[str] | None = None) -> str:
    wrapper = Wrapper(width)
    return screen("".join(wrapper.feed(piece) for piece in pieces or [text]))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one two three", "one two \nthree"),
        ("one two t", "one two t"),
        ("a\nbb cc dd ee", "a\nbb cc dd \nee"),
        ("a longerthanall b", "a \nlongerthanall b"),
        ("語語 語語語", "語語 \n語語語"),
        ("```\nint main() { return 0; }\n```\none two three", None),
    ],
)
def test_lines_end_between_words(text: str, shown: str | None) -> None:
    if shown is None:
        code, _, rest = text.rpartition("\n")
        shown = f"{code}\n{wrapped(rest, 11)}"
    assert wrapped(text, 11) == shown


words = st.lists(st.text("ab語", min_size=1, max_size=8), min_size=1, max_size=12).map(" ".join)


@given(words, st.integers(18, 40), st.integers(1, 5))
def test_no_line_is_too_long_and_nothing_is_lost(text: str, width: int, size: int) -> None:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    shown = wrapped(text, width, pieces)
    assert shown == wrapped(text, width)
    assert shown.replace("\n", "").split() == text.split() or shown.split() == text.split()
    assert all(get_cwidth(line.rstrip()) < width for line in shown.split("\n"))
