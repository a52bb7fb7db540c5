"""The drawing of a request's way: the committed file, its steps, and that it can be read."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from tools import draw_request as d

PAGE = d.OUT.parent / "SYSTEM_DESIGN.md"
TITLE, SMALL = 8.6, 7.1  # pixels a character, in a wide font


def test_the_committed_file_is_what_the_script_writes() -> None:
    assert d.OUT.read_text("utf-8") == d.draw(), "python -m tools.draw_request"


def test_it_is_xml_with_a_title() -> None:
    root = ET.fromstring(d.draw())
    assert root.get("viewBox") == f"0 0 {d.WIDTH} {d.HEIGHT}"
    assert root.findtext("{http://www.w3.org/2000/svg}title")


def test_the_steps_are_those_of_the_page() -> None:
    on_page = re.findall(r"^(\d)\. \*\*(\w+)\.\*\*", PAGE.read_text("utf-8"), re.M)
    assert [f"{number} {name}" for number, name in on_page] == [box.title for box in d.STEPS]
    assert len(d.STEPS) == 8


def test_words_stay_in_their_boxes_and_boxes_in_the_drawing() -> None:
    for box in (*d.PROCESSES, d.SHARED, *d.STEPS, d.BESIDE):
        assert box.x + box.width <= d.WIDTH and box.y + box.height <= d.HEIGHT
        assert 24 + d.LINE * len(box.lines) < box.height, box
        assert 12 + TITLE * len(box.title) < box.width, box.title
        for words in box.lines:
            assert 12 + SMALL * len(words) < box.width, words
    for arrow in d.ARROWS:
        assert arrow.at[0] + SMALL * len(arrow.label) < d.WIDTH, arrow
        assert all(0 < x < d.WIDTH and 0 < y < d.HEIGHT for x, y in arrow.points)


@pytest.mark.parametrize("colors", [d.LIGHT, d.DARK], ids=["light", "dark"])
def test_words_stand_out(colors: dict[str, str]) -> None:
    """At least 4.5 to 1, which the web's accessibility guidelines (WCAG 2) ask of text."""
    for ground in ("page", "process", "step", "shared"):
        for words in ("text", "small"):
            assert contrast(colors[words], colors[ground]) >= 4.5, (words, ground)
        assert contrast(colors["way"], colors[ground]) >= 3.0, ground


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
