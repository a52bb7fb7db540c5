"""What keys do to the dashboard."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.support.dashboard_screens import app, overview, rows, session, view
from tests.support.fixtures.untimed import untimed
from umaserve.dashboard import Screen, Terminal, View
from umaserve.dashboard.keys import decode
from umaserve.dashboard.screen import KEY_HELP, WORD_HELP
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


# words of the panels that the help leaves to docs/DASHBOARD.md, or that say all there is to say
NOT_IN_THE_HELP = """
    CPU GB KV MB OVER RSS a active apps back background baseline batch between busy cache cached
    cells cost dec decode efficiency errors evicted far for guard holding idle in interactive is
    k lane last libllama log longest memory minute ms no none now of over overhead p parked
    place pre preempted prefill prefills prompts queued request requests running s sampling
    sessions share so tick ticks time token tokens why with work worst µs
"""


def words_of_the_panels() -> set[str]:
    """At sizes that cut nothing off, without what a daemon or a client says itself."""
    asks = app(lane_reason=None)
    quiet = view(errors_total=0, apps={str(n): asks for n in range(9)})
    quiet.update({**quiet.overview, "errors": [], "log": []})
    late = view(errors_total=0, p95_over_baseline=1.45)
    late.update({**late.overview, "errors": [], "log": []})
    found = set()
    for width in (80, 100, 120, 150, 200):
        for height in (24, 32, 50):
            for a_view in (quiet, late):
                shown = " ".join(rows(a_view, width, height)[1:-1])
                found |= set(re.findall(r"[^\W\d_]+", shown.replace("at cap", "at_cap")))
    return found


def test_every_word_that_needs_it_has_a_line_in_the_help():
    """A new word on the screen has to be explained, or listed above."""
    explained = set()
    for what, meaning in WORD_HELP:
        explained |= set(re.findall(r"[^\W\d_]+", what))
        assert len(meaning.split()) > 3, what
    assert explained >= {"ΣBMT", "churn", "at", "cap", "held", "late"}
    listed, shown = set(NOT_IN_THE_HELP.split()), words_of_the_panels()
    assert shown - listed - explained == set(), "on the screen and not explained"
    assert (listed | explained) - shown == set(), "nowhere on the screen"


@pytest.mark.parametrize("size", [(80, 24), (80, 18), (80, 14), (100, 30), (150, 40), (200, 50)])
def test_the_whole_help_fits(size):
    a_view = view(*(session(n) for n in range(30)))
    a_view.press("?")
    seen = rows(a_view, *size)
    for what, meaning in (*KEY_HELP, *WORD_HELP):
        assert any(re.fullmatch(rf"  {re.escape(what)} +{re.escape(meaning)} *", line)
                   for line in seen), (what, seen)  # fmt: skip


@pytest.mark.parametrize("size", [(60, 24), (44, 26), (40, 40), (20, 60)])
def test_a_narrow_screen_has_the_help_in_more_lines(size):
    a_view = view(session(1))
    a_view.press("?")
    whole = re.sub(r"\s+", " ", " ".join(rows(a_view, *size)))
    for what, meaning in (*KEY_HELP, *WORD_HELP):
        assert f"{what}: {meaning}" in whole


@pytest.mark.parametrize("size", [(60, 18), (40, 24), (30, 14)])
def test_a_small_screen_has_the_beginning_of_each_line_of_the_help(size):
    a_view = view(session(1))
    a_view.press("?")
    seen = rows(a_view, *size)
    for what, meaning in (*KEY_HELP, *WORD_HELP):
        (line,) = (line for line in seen if line.startswith(f"  {what}: "))
        kept = line[2:].rstrip()
        assert kept == f"{what}: {meaning}" or kept.endswith("…")


def test_what_the_help_leaves_no_room_for_comes_back():
    a_view = view(session(1))
    before = rows(a_view, 80, 18)
    a_view.press("?")
    assert not any(" ticks " in line for line in rows(a_view, 80, 18)[:6])
    assert any("1.15 of 1.20 held" in line for line in rows(a_view, 80, 18))
    assert not any("1.15 of 1.20 held" in line for line in rows(a_view, 80, 14))
    a_view.press("?")
    assert rows(a_view, 80, 18) == before


def test_the_help_of_a_terminal_without_utf_8():
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    a_view = view(session(1))
    a_view.press("?")
    environment = {"TERM": "xterm"}
    console = Console(file=out, force_terminal=True, _environ=environment, width=80, height=24)
    Terminal(console).paint(Screen(80, 24).lines(a_view))
    out.flush()
    written = out.buffer.getvalue().decode("ascii")
    for what, meaning in (*KEY_HELP, *WORD_HELP):
        label = what.replace("Σ", "S").replace("↑", "^").replace("↓", "v")
        assert re.search(rf"  {re.escape(label)} +{re.escape(meaning)}", written), (what, written)


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
