"""What keys do to the dashboard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dashboard_screens import overview, rows, session, view
from tests.fixtures.untimed import untimed
from umaserve.dashboard import View
from umaserve.dashboard.keys import decode
from umaserve.dashboard.view import CANCEL, DEMOTE, MESSAGE_UPDATES, PROMOTE, QUIT, Command


def test_what_a_terminal_sends():
    assert decode(b"jk\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[1~\x1bOF") == [
        "j", "k", "up", "down", "pageup", "pagedown", "home", "end",
    ]  # fmt: skip
    assert decode(b"\x1b") == ["escape"] and decode(b"\x0c ?") == ["redraw", " ", "?"]
    assert decode("\x1b[1;5C\x1b[200~é\x00q".encode()) == ["q"]


@untimed
@given(st.binary(max_size=40))
def test_any_bytes_are_keys_or_nothing(data):
    assert all(isinstance(key, str) and key for key in decode(data))


def test_promote_and_demote_the_selected_one():
    a_view = view(session(7), session(8, lane="background"))
    assert a_view.press("p") is None and "select a session first" in a_view.message
    a_view.press("down")
    assert a_view.selected == 7
    assert a_view.press("p") is None and "interactive already" in a_view.message
    assert a_view.press("d") == Command(DEMOTE, 7, "r7")
    a_view.press("j")
    assert a_view.press("p") == Command(PROMOTE, 8, "r8")
    a_view.press("j")
    assert a_view.selected == 8, "there is none below"


def test_cancel_takes_two_presses():
    a_view = view(session(7), session(8))
    a_view.press("j")
    assert a_view.press("c") is None and "c again cancels r7 of editor" in a_view.message
    a_view.press("j")  # another key: no
    assert a_view.press("x") is None
    assert a_view.press("c") == Command(CANCEL, 8, "r8")
    a_view.press("k")
    a_view.press("c")
    for _ in range(MESSAGE_UPDATES + 1):
        a_view.update(overview(session(7), session(8)))
    assert not a_view.message
    assert a_view.press("c") is None, "the question was too long ago"


def test_a_session_that_ends_is_not_replaced_by_its_neighbour():
    a_view = view(session(7), session(8), session(9))
    a_view.press("j")
    a_view.press("j")
    a_view.press("c")
    a_view.update(overview(session(7), session(9)))
    assert a_view.selected is None and "has ended" in a_view.message
    assert a_view.press("c") is None and a_view.press("d") is None
    a_view.press("j")
    assert a_view.selected == 9


def test_pause_keeps_the_screen_still():
    a_view = view(session(1))
    a_view.press(" ")
    a_view.update(overview(session(1), session(2)))
    assert len(a_view.sessions) == 1 and " PAUSED " in rows(a_view)[0]
    a_view.press(" ")
    assert len(a_view.sessions) == 2 and " PAUSED " not in rows(a_view)[0]


def test_quit():
    assert View().press("q") == Command(QUIT)
    local = View(local=True)
    assert local.press("q") is None and "stops the daemon" in local.message
    assert local.press("j") is None
    assert local.press("q") is None
    assert local.press("q") == Command(QUIT)


def test_help_is_shown_and_closed():
    a_view = view(session(1))
    a_view.press("?")
    assert any("promote it to the interactive lane" in line for line in rows(a_view))
    a_view.press("escape")
    assert not any("promote it to" in line for line in rows(a_view))


def test_tokens_per_second_now():
    a_view = view()
    assert a_view.tokens_now is None
    for step in range(1, 20):
        a_view.update(
            overview(uptime_s=3725.2 + step / 4, tokens_generated_total=12345 + 100 * step)
        )
    assert a_view.tokens_now == pytest.approx(400)
    a_view.update(overview(uptime_s=1.0, tokens_generated_total=5))
    assert a_view.tokens_now is None, "another daemon"
