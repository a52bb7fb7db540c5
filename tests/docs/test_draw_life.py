"""The drawing of a request's states in docs/SYSTEM_DESIGN.md is that of the table of steps."""

from __future__ import annotations

from tools import draw_life
from umaserve.server.requests.life import NEXT, Answer, Stage


def test_the_page_has_the_drawing_of_the_table() -> None:
    assert draw_life.draw() in draw_life.PAGE.read_text("utf-8"), "python -m tools.draw_life"


def test_every_state_and_step_is_drawn() -> None:
    drawn = draw_life.draw()
    for state, others in NEXT.items():
        for to in others - {state}:
            assert f" {state.name} --> {to.name}\n" in drawn
    assert drawn.count("-->") == 2 + sum(len(others - {state}) for state, others in NEXT.items())
    assert set(NEXT) == {*Stage, *Answer}
