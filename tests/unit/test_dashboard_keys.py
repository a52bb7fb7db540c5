"""What keys do to the dashboard."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.support.dashboard_screens import app, ended, overview, rows, session, view
from tests.support.fixtures.untimed import untimed
from umaserve.dashboard import Screen, Terminal, View
from umaserve.dashboard.canvas.terminal import decode
from umaserve.dashboard.help import KEY_HELP, WORD_HELP
from umaserve.dashboard.view import (
    CANCEL,
    DEMOTE,
    FIND,
    LOAD,
    MESSAGE_UPDATES,
    PROMOTE,
    QUIT,
    Command,
)


def test_what_a_terminal_sends():
    assert decode(b"jk\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[1~\x1bOF") == [
        "j", "k", "up", "down", "pageup", "pagedown", "home", "end",
    ]  # fmt: skip
    assert decode(b"\x1b") == ["escape"] and decode(b"\x0c ?") == ["redraw", " ", "?"]
    assert decode("\x1b[1;5C\x1b[200~é\x00q".encode()) == ["q"]
    assert decode(b"\r\n\x7f\x08/") == ["enter", "enter", "backspace", "backspace", "/"]


@untimed
@given(st.binary(max_size=40))
def test_any_bytes_are_keys_or_nothing(data):
    assert all(isinstance(key, str) and key for key in decode(data))


def test_promote_and_demote_the_selected_one():
    a_view = view(session(7), session(8, lane="background"))
    assert a_view.press("p") is None and "select a request first" in a_view.message
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


def after(a_view: View, *sessions: dict, recent: list[dict]) -> View:
    a_view.update(overview(*sessions) | {"recent": recent})
    return a_view


def test_a_request_that_ends_stays_selected_and_no_key_hits_its_neighbour():
    a_view = view(session(7), session(8), session(9))
    a_view.press("j")
    a_view.press("j")
    a_view.press("c")
    after(a_view, session(7), session(9), recent=[ended(8)])
    assert a_view.selected == 8 and "has ended" in a_view.message
    (line,) = (line for line in rows(a_view) if line.startswith("▸"))
    assert re.match(r"▸ r8 +shell +background +done ", line), "its id is remembered"
    for key in ("c", "c", "d", "p"):
        assert a_view.press(key) is None and "r8 has ended" in a_view.message
    a_view.press("k")
    assert a_view.selected == 9


def test_a_request_that_is_listed_no_more_is_not_replaced():
    a_view = view(session(7), session(8), session(9))
    a_view.press("j")
    a_view.press("j")
    after(a_view, session(7), session(9), recent=[])
    assert a_view.selected is None and "not listed" in a_view.message
    assert a_view.press("c") is None and a_view.press("d") is None
    a_view.press("j")
    assert a_view.selected == 9


def ids(a_view: View) -> list[str]:
    return [str(row["id"]) for row in a_view.rows]


def test_the_last_ten_requests_stay_whatever_runs():
    recent = [ended(n) for n in range(30, 40)]
    a_view = after(view(), session(41), session(42), recent=recent)
    assert ids(a_view) == ["r41", "r42", *(f"#{n}" for n in range(39, 31, -1))]
    after(a_view, recent=[*recent[2:], ended(41), ended(42, reason="cancel")])
    assert ids(a_view)[:3] == ["r42", "r41", "#39"] and len(a_view.rows) == 10
    seen = rows(a_view)
    assert any(re.match(r"  r42 .* cancelled ", line) for line in seen)
    assert not any("more" in line for line in seen), "all ten are on a small screen"
    crowd = after(a_view, *(session(n) for n in range(50, 62)), recent=recent)
    assert ids(crowd) == [f"r{n}" for n in range(50, 62)]


def test_a_request_that_is_told_as_ended_and_running_is_listed_once():
    assert ids(after(view(), session(41, state="ending"), recent=[ended(41)])) == ["r41"]


def test_enter_shows_the_details_of_a_request():
    a_view = after(view(), session(1, lane_reason="a short prompt"), recent=[ended(7)])
    a_view.press("enter")
    assert not a_view.details and "select a request first" in a_view.message
    a_view.press("j")
    a_view.press("enter")
    seen = "\n".join(rows(a_view))
    for words in ("r1 (Enter or Esc closes it)", "interactive: a short prompt", " 9 tokens ",
                  "1 token, 50.5 a second", "after 55.0 ms", "within 14.2 ms", "c1"):  # fmt: skip
        assert words in seen, words
    assert "tok/s" not in seen, "in the place of the list"
    a_view.press("j")
    seen = "\n".join(rows(a_view))
    for words in ("#7 (Enter", "done, ended 12 s ago", "400 tokens, 300 of them known",
                  "61 tokens, 50.0 a second", "100.0 ms, 0.50 of them before"):  # fmt: skip
        assert words in seen, words
    a_view.press("escape")
    assert "tok/s" in "\n".join(rows(a_view)) and a_view.selected == 7
    a_view.press("enter")
    a_view.press("enter")
    assert not a_view.details


def test_a_filter_lists_what_contains_its_letters():
    a_view = after(view(), session(1), session(2, app="shell"), recent=[ended(7)])
    for key in "/SHel":
        assert a_view.press(key) is None
    assert a_view.filter == "SHel" and ids(a_view) == ["r2", "#7"]
    seen = rows(a_view)
    assert seen[-1].startswith(" /SHel█") and any("requests with “SHel”: 2" in s for s in seen)
    for key in ("q", "backspace", "backspace", "enter"):
        assert a_view.press(key) is None, "letters are no commands meanwhile"
    assert a_view.filter == "SHe" and not a_view.typing
    a_view.press("j")
    assert a_view.selected == 2
    a_view.press("escape")
    assert a_view.filter == "" and len(a_view.rows) == 3
    for key in "/zz":
        a_view.press(key)
    assert any("no request matches the filter" in line for line in rows(a_view))
    a_view.press("escape")
    assert len(a_view.rows) == 3


def test_a_filter_leaves_no_selection_out_of_sight():
    a_view = view(session(1), session(2, app="shell"))
    a_view.press("j")
    for key in "/shell":
        a_view.press(key)
    assert a_view.selected is None
    a_view.press("enter")
    assert a_view.press("c") is None


def test_s_sorts_by_one_column_after_another():
    a_view = after(
        view(),
        session(1, app="b", tokens=5, prompt_tokens=30, p95_ms=None, ttft_ms=2.0),
        session(2, app="c", tokens=9, prompt_tokens=20, p95_ms=8.0, ttft_ms=None),
        session(3, app="a", tokens=7, prompt_tokens=10, p95_ms=9.0, ttft_ms=3.0),
        recent=[],
    )
    orders = {
        "by app": [3, 1, 2], "by tokens": [2, 3, 1], "by prompt": [1, 2, 3],
        "by slowest": [3, 2, 1], "by latest first token": [3, 1, 2],
    }  # fmt: skip
    a_view.press("j")
    for words, order in orders.items():
        a_view.press("s")
        assert ids(a_view) == [f"r{n}" for n in order], words
        assert a_view.selected == 1 and a_view.index == order.index(1)
        chosen, a_view.selected = a_view.selected, None
        assert any(f" · {words} · " in line for line in rows(a_view))
        a_view.selected = chosen
    a_view.press("s")
    assert ids(a_view) == ["r1", "r2", "r3"]


def test_l_loads_a_model_of_this_machine():
    a_view = view(session(1))
    assert a_view.press("l") == Command(FIND)
    a_view.choose_model([("hf:a/b:Q4_K_M", "/m/b.gguf"), ("ollama:c", "/m/c.gguf")])
    seen = rows(a_view)
    assert any(line.startswith("─ load which model?") for line in seen)
    assert any(re.match(r"▸ hf:a/b:Q4_K_M +/m/b.gguf", line) for line in seen)
    assert a_view.press("j") is None
    assert any(line.startswith("▸ ollama:c") for line in rows(a_view))
    assert a_view.press("enter") == Command(LOAD, name="/m/c.gguf") and a_view.models is None
    a_view.choose_model([("x", "/x")])
    assert a_view.press("escape") is None and a_view.models is None
    a_view.choose_model([])
    assert a_view.models is None and "umaserve pull" in a_view.message


def test_l_lists_the_daemon_s_own_models_first_where_it_has_several():
    a_view = view(session(1))
    a_view.overview |= {"models": [{"id": "chat", "state": "serving"}]}
    a_view.choose_model([("x", "/x")])
    assert a_view.models == [("x", "/x")]
    a_view.overview["models"] += [{"id": "coder", "state": "asleep"}]
    a_view.choose_model([("x", "/x")])
    assert any(re.match(r"▸ chat, serving +chat", line) for line in rows(a_view))
    a_view.press("j")
    assert a_view.press("enter") == Command(LOAD, name="coder")


def test_m_changes_the_view_and_back():
    a_view = view(session(1))
    before = rows(a_view)
    a_view.press("m")
    assert any("ΣBMT" in line for line in rows(a_view)) and not any("ΣBMT" in s for s in before)
    a_view.press("m")
    assert rows(a_view) == before


@untimed
@given(
    st.lists(st.sampled_from([*"jkGgpdcxslm/?h qae", "up", "down", "pageup", "pagedown", "enter",
                              "escape", "backspace", "redraw"]), max_size=30),
    st.integers(20, 130), st.integers(3, 45),
)  # fmt: skip
def test_any_keys_leave_a_screen(keys, width, height):
    a_view = after(view(), session(1), session(2), recent=[ended(7)])
    for n, key in enumerate(keys):
        command = a_view.press(key)
        if command == Command(FIND):
            a_view.choose_model([("x", "/x")])
        if n == 9:
            after(a_view, session(2), recent=[ended(7), ended(1)])
    rows(a_view, width, height)


def test_pause_keeps_the_screen_still():
    a_view = view(session(1))
    a_view.press(" ")
    a_view.update(overview(session(1), session(2)))
    assert len(a_view.rows) == 1 and " PAUSED " in rows(a_view)[0]
    a_view.press(" ")
    assert len(a_view.rows) == 2 and " PAUSED " not in rows(a_view)[0]


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
    CPU GB KV MB OVER RSS a apps asks back background baseline batch between busy cache cached
    cells cost dec decode efficiency errors evicted far for guard holding idle in interactive k
    lane last libllama log longest memory minute ms nobody none now of over overhead parked
    place pre preempted prefill prefills prompts queued requests s sampling share so tick ticks
    time token tokens why with work worst µs
"""


def words_of_the_panels() -> set[str]:
    """At sizes that cut nothing off, without what a daemon or a client says itself."""
    asks = app(lane_reason=None)
    quiet = view(errors_total=0, apps={str(n): asks for n in range(9)})
    quiet.update({**quiet.overview, "errors": [], "log": []})
    late = view(errors_total=0, p95_over_baseline=1.45)
    late.update({**late.overview, "errors": [], "log": []})
    found = set()
    for width in (80, 100, 120, 150, 200) * 2:
        for height in (24, 32, 50):
            for a_view in (quiet, late):
                a_view.operator = not a_view.operator
                shown = " ".join(rows(a_view, width, height)[2:-1])
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


@pytest.mark.parametrize("size", [(80, 24), (80, 18), (100, 30), (150, 40), (200, 50)])
def test_the_whole_help_fits(size):
    a_view = view(*(session(n) for n in range(30)))
    a_view.press("?")
    seen = rows(a_view, *size)
    for what, meaning in (*KEY_HELP, *WORD_HELP):
        assert any(re.fullmatch(rf"  {re.escape(what)} +{re.escape(meaning)} *", line)
                   for line in seen), (what, seen)  # fmt: skip


@pytest.mark.parametrize("size", [(60, 28), (44, 34), (40, 40), (20, 80)])
def test_a_narrow_screen_has_the_help_in_more_lines(size):
    a_view = view(session(1))
    a_view.press("?")
    whole = re.sub(r"\s+", " ", " ".join(rows(a_view, *size)))
    for what, meaning in (*KEY_HELP, *WORD_HELP):
        assert f"{what}: {meaning}" in whole


@pytest.mark.parametrize("size", [(60, 18), (40, 24), (30, 18)])
def test_a_small_screen_has_the_beginning_of_each_line_of_the_help(size):
    a_view = view(session(1))
    a_view.press("?")
    seen = rows(a_view, *size)
    for what, meaning in (*KEY_HELP, *WORD_HELP):
        (line,) = (line for line in seen if line.startswith(f"  {what}: "))
        kept = line[2:].rstrip()
        assert kept == f"{what}: {meaning}" or kept.endswith("…")


def test_what_the_help_leaves_no_room_for_comes_back():
    a_view = view(session(1), apps={"editor": app()})
    before = rows(a_view, 80, 24)
    a_view.press("?")
    seen = rows(a_view, 80, 24)
    assert not any(line.startswith("─ apps") for line in seen)
    assert any(line.startswith("─ time between tokens") for line in seen)
    assert not any("time between" in line for line in rows(a_view, 80, 18))
    a_view.press("?")
    assert rows(a_view, 80, 24) == before


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
