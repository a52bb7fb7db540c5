"""The screen as text, and what is written to the terminal."""

from __future__ import annotations

import io
import re
import sys
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from tests.support.dashboard_screens import APPS, METRICS, app, overview, rows, session, view
from tests.support.fixtures.untimed import untimed
from umaserve.dashboard import Screen, Terminal, View, panels, summary
from umaserve.dashboard.line import SPARKS, Line, bar, chart, clean, column, ms
from umaserve.dashboard.picture import svg, text

# --- the screen ----------------------------------------------------------------------------------


def test_a_screen_at_80_by_24():
    """Every line in its place; numbers are those of the metrics and of the sessions."""
    seen = rows(view(*(session(n) for n in range(1, 6))))
    expected = [
        r" UMA Serve · uma-demo · cpu · up 1:02:05 · /tmp/uma.sock *",
        r"─ time between tokens, ms ─+ +p50 +p95 +p99 +worst +first +p95",
        r" interactive +[▁-█ ]{25} +11\.0 +11\.5 +20\.0 +33\.0 +40\.0 +90\.0",
        r" background +█{25} +21\.0 +24\.5 +30\.0 +1,043 +140\.0 +190\.0",
        r" p95 / cap   █{15}░│░{7}  1\.15 of 1\.20 held × baseline, now 10\.0 ms *",
        r"─ ticks ─+ memory ─+",
        r" tokens/s +- now · 300\.5 at cap +KV cells +█+░+ 1,024 of 4,096 *",
        r" tick +█+░+ 6\.00 of 12\.0 ms +cache +█+░+ 50% of prompts *",
        r" batch +█+▒+ 3\.0 dec \+ 9\.0 pre +parked +1 · evicted 9 · preempted 7 *",
        r" ΣBMT +█+░+ 5\.0 of 20\.0 GB/s +RSS +1\.23 GB · churn 0\.25 MB/token *",
        r" guard +holding · held 17 · 5 late +errors +3 · E_LIMIT_001 2 *",
        r"─ sessions: 3 active · queued 1 interactive, 2 background · 41 requests so far ─+",
        r"  id +app +lane +state +tokens +tok/s +p95 +cells",
        *(rf"  r{n} +editor +interactive decode +{n} +50\.5 +14\.2 +120" for n in range(1, 6)),
        *[r" +"] * 4,
        r" 12:00:02 warn: the engine died of SIGKILL *",
        r" ↑↓ select  p promote  d demote  c cancel  space pause  \? help  q quit *",
    ]
    assert len(seen) == len(expected) == 24
    for line, pattern in zip(seen, expected, strict=True):
        assert re.fullmatch(pattern, line), (line, pattern)


def test_who_has_which_share():
    """The largest first; who asked for nothing in the last minute is left out."""
    seen = rows(view(session(1), apps=APPS))
    expected = [
        r"─ apps: 3 of 4 ─+ +share +now +p95 +cached +lane +",
        r" page +█{20}░{9} +70% +1 +1,204 +0% +interactive",
        r" editor +█{7}░{22} +25% +1 +14\.2 +93% +interactive",
        r" batch +█░{28} +5% +12 +14\.2 +- +background +",
        r"─ sessions: .*",
    ]
    (at,) = (i for i, line in enumerate(seen) if line.startswith("─ apps"))
    assert at == 11, "under the panels"
    for line, pattern in zip(seen[at:], expected, strict=False):
        assert re.fullmatch(pattern, line), (line, pattern)
    large = rows(view(session(1), apps=APPS), 130, 40)
    (head,) = (line for line in large if line.startswith("─ apps ─"))
    assert "why" in head
    assert any(re.match(r" editor .* interactive +a short prompt", line) for line in large)
    assert any(re.match(r" waits +░+ +- +1 +- +93% +- +$", line) for line in large)
    assert not any(line.startswith(" gone") for line in large)
    narrow = rows(view(session(1), apps=APPS), 34)
    assert any(re.fullmatch(r" editor +█+░+ +25% +14\.2", line) for line in narrow)
    nobody = rows(view(session(1), apps={"gone": APPS["gone"]}))
    assert not any("apps" in line for line in nobody)
    assert not any("apps" in line for line in rows(view(apps=APPS), 80, 17)), "no room"


def test_names_of_apps_are_made_safe():
    seen = rows(view(apps={"\x1b[2J" + "long " * 20: app(), "日本" * 30: app()}))
    assert not any("\x1b" in line for line in seen)


def test_why_a_session_has_its_lane():
    a_view = view(session(1, lane="background", lane_reason="a long prompt beside others"))
    assert not any("a long prompt" in line for line in rows(a_view, 139))
    assert any("a long prompt beside others" in line for line in rows(a_view, 140))
    a_view.press("j")
    title = "─ r1 of editor · background: a long prompt beside others ─"
    assert any(line.startswith(title) for line in rows(a_view))


def test_drafts_are_shown_where_there_are_some():
    def batch(width, **metrics):
        return next(row for row in rows(view(**metrics), width, 30) if row.startswith(" batch"))

    some = {"tokens_per_tick": 1.854, "draft_tokens_total": 50, "draft_accepted_ratio": 0.62}
    assert " 3.0 dec ×1.9 + 9.0 pre " in batch(80, **some)
    assert " 3.0 decode ×1.85 (62% right) + 9.0 prefill " in batch(120, **some)
    assert " 3.0 decode + 9.0 prefill " in batch(120, **{**some, "draft_accepted_ratio": None})
    assert " 3.0 decode + 9.0 prefill " in batch(120, **{**some, "tokens_per_tick": None})


def test_the_prefix_cache_says_how_large_it_is():
    seen = rows(view(session(1), cache_ram_bytes=35_200_000), 100)
    assert any(re.search(r"cache +█+░+ 50% of prompts · 35 MB *$", line) for line in seen)


def test_a_larger_screen_shows_more():
    seen = rows(view(*(session(n) for n in range(1, 31))), 200, 50)
    whole = "\n".join(seen)
    assert len(seen) == 50
    assert "─ efficiency ─" in whole and "97.3% in libllama" in whole and "─ log ─" in whole
    assert "321.2 over a minute" in whole and "450.2 MB a token" in whole
    curve = [line for line in seen[2:8] if set(line[13:133]) & set(SPARKS)]
    assert len(curve) == 6, "three lines high, two lanes"
    assert any(line.startswith("─ last errors ─") and "─ log ─" in line for line in seen)
    head = next(line for line in seen if "tok/s" in line and "prompt" in line)
    assert all(word in head for word in ("prompt", "first", "age", "conn", "cells"))
    assert sum("editor" in line for line in seen) == 25 and "and 5 more" in whole
    assert [line for line in seen if "serving again" in line]


def mishap(code: str, **fields) -> dict:
    return {"time": "12:00:02", "age_s": 3.0, "code": code, "text": "why", "request": "", "app": "",
            "count": 1, **fields}  # fmt: skip


def news(errors: list[dict], width: int, height: int) -> list[str]:
    """The lines above the keys."""
    a_view = view()
    a_view.update(overview() | {"errors": errors})
    return [line.rstrip() for line in rows(a_view, width, height)[:-1]]


def test_the_last_error_has_a_line_on_a_small_screen():
    one = mishap("E_LIMIT_001", request="r7", app="editor", text="too long", count=3)
    assert news([mishap("warn"), one], 80, 24)[-1] == (
        " 12:00:02 E_LIMIT_001 ×3 r7 of editor: too long"
    )
    assert news([mishap("error")], 80, 24)[-1] == " 12:00:02 error: why"
    assert news([mishap("E_IO_001", app="ls", age_s=2e5)], 80, 24)[-1] == (
        " 2 d ago  E_IO_001 ls: why"
    )
    assert news([], 80, 24)[-1] == " 12:00:03 serving again", "no error: the log"
    assert "\x1b" not in news([mishap("\x1b[2J", text="\x07", app="\x9b")], 80, 24)[-1]


@pytest.mark.parametrize(
    ("width", "height", "shown"),
    [(80, 30, 2), (80, 40, 4), (149, 60, 4), (150, 30, 2), (200, 50, 5)],
)
def test_the_last_errors_have_a_panel_on_a_large_screen(width, height, shown):
    """Above the log or, on a wide screen, beside it."""
    seen = news([mishap(f"E_LIMIT_00{n}") for n in range(9)], width, height)
    assert [n for n in range(9) if any(f"E_LIMIT_00{n}: why" in line for line in seen)] == [
        *range(9 - shown, 9)
    ]
    (head,) = (line for line in seen if line.startswith("─ last errors ─"))
    assert ("─ log ─" in head) == (width >= 150)
    assert sum("serving again" in line for line in seen) == 1
    assert any(line.startswith(" none so far") for line in news([], width, height))


@pytest.mark.parametrize("width", [20, 80, 150, 151])
@pytest.mark.parametrize("height", [24, 30, 50])
def test_what_does_not_fit_says_so(width, height):
    seen = news([mishap("error", text="long " * 70 + "and wide 日本" * 30)], width, height)
    (line,) = (line for line in seen if "long long" in line or line.startswith(" 12:00:02 error"))
    half = width // 2 - 1 if width >= 150 and height >= 30 else width
    assert line[:half].rstrip().endswith("…")
    if half != width:
        assert not line[half].strip(), "a blank before the log"


def test_colours_of_errors():
    """A client's mistake is yellow, ours is red, and what is a minute old is dim on one line."""
    styles = [panels.mishap(mishap(code)).parts[1] for code in ("E_PROTO_001", "E_RUNTIME_001")]
    assert styles == [("E_PROTO_001", "warn"), ("E_RUNTIME_001", "bad")]
    old = {"errors": [mishap("error", age_s=61)]}
    assert panels.newest(old, 80).parts[1] == ("error", "dim")


def test_engines_that_were_replaced_are_counted():
    assert any(" errors    3 · 1 restart " in row for row in rows(view(engine_restarts_total=1)))
    assert any(" 3 · 2 restarts " in row for row in rows(view(engine_restarts_total=2)))


def test_the_cap_is_seen_without_colour():
    assert any(" 1.45 of 1.20 OVER × base" in row for row in rows(view(p95_over_baseline=1.45)))


def test_nothing_is_red_that_reads_as_within_its_limit():
    assert any(" 1.20 of 1.20 held" in row for row in rows(view(p95_over_baseline=1.204)))
    assert any(" 1.21 of 1.20 OVER" in row for row in rows(view(p95_over_baseline=1.206)))
    for mean_ms, style in ((12.04, "bar"), (12.06, "bad")):
        tick = panels.ticks({"ticks": {"mean_ms": mean_ms, "allowed_ms": 12.0}}, None, 80)[2]
        assert style in {part[1] for part in tick.parts}


def test_the_cap_is_judged_by_each_time_over_the_baseline_of_its_moment():
    """The baseline may be another one by now, as when a crowd has left, or after `unload`."""
    for baseline_ms in (2.0, None):
        seen = rows(view(baseline_ms=baseline_ms))
        assert any(" 1.15 of 1.20 held" in row for row in seen), baseline_ms
    nothing = rows(view(p95_over_baseline=None, p95_ms=None))
    assert any(re.search(r" p95 / cap +░+ +- of 1\.20 *$", row) for row in nothing)


def test_what_is_not_measured_is_a_dash():
    empty = View()
    empty.update({"metrics": dict.fromkeys(METRICS), "sessions": []})
    whole = "\n".join(rows(empty))
    assert "no model loaded" in whole and "no request is running" in whole
    assert re.search(r"interactive( +-){6}", whole) and re.search(r"KV cells +░+ - of -", whole)
    assert re.search(r"guard +- ·", whole) and "RSS       - ·" in whole
    nothing = View()
    nothing.update({})
    assert "\n".join(rows(nothing)).replace("0:", "") == whole.replace("0:", "")


def test_loading_stopping_and_no_daemon():
    loading = View()
    loading.update({"state": "loading", "progress": 0.4})
    assert " loading 40% " in rows(loading)[0]
    loading.update({"state": "loading", "progress": 0.4, "stage": "weights"})
    assert " loading weights 40% " in rows(loading)[0]
    loading.update({"state": "loading", "progress": 1.0, "stage": "warmup"})
    assert " loading: warmup " in rows(loading)[0]
    stopping = View()
    stopping.update({"state": "stopping"})
    assert rows(stopping)[0].endswith(" stopping ")
    stopping.update(overview() | {"state": "stopping"})
    assert rows(stopping)[-2].startswith(" 12:00:03 serving again"), "the log, not an error"
    loading.lost("no daemon at x\nwaiting")
    assert [line.strip() for line in rows(loading)[2:]] == ["no daemon at x", "waiting"]


def test_prefill_says_how_far():
    seen = rows(view(session(1, state="prefill", prompt_tokens=400, kv_cells=100)))
    assert any("prefill 25%" in line for line in seen)


def test_more_sessions_than_lines_and_the_selected_one_in_sight():
    a_view = view(*(session(n) for n in range(1, 101)))
    seen = rows(a_view)
    shown = sum("editor" in line for line in seen)
    assert any(f"and {100 - shown} more" in line for line in seen)
    for _ in range(50):
        a_view.press("j")
    assert any(line.startswith("▸ r50 ") for line in rows(a_view))
    a_view.press("end")
    seen = rows(a_view)
    assert any(line.startswith("▸ r100 ") for line in seen)
    assert not any("more" in line for line in seen)


@pytest.mark.parametrize("width", [30, 44, 60, 70, 79, 80, 100])
def test_what_there_is_no_room_for_is_left_out_whole(width):
    """Rather than cut in the middle of a number or a word."""
    seen = rows(view(session(1), engine_restarts_total=1), width)
    ends = {"ticks": "evicted 9", "keys": "q quit"}
    if width < 60:
        del ends["ticks"]  # no room for panels beside each other
    for word in ends.values():
        assert any(word in line for line in seen)
    for part in re.findall(r" · ([^·│]*?)(?: {2,}|$|(?= ·))", "\n".join(seen[1:-2]), re.M):
        assert re.fullmatch(
            r"[\d.,-]+ (at cap|over a minute|late|restarts?|requests so far)( ─*)?|held \d+|"
            r"evicted \d+|preempted \d+|churn [\d.-]+ MB/token|E_\w+ \d+|"
            r"queued \d+ interactive, \d+ background( ─*)?", part.strip(),
        ), part  # fmt: skip


@pytest.mark.parametrize("width", [1, 2, 10, 20, 44, 60, 79, 101, 133, 151, 200, 400])
@pytest.mark.parametrize("height", [1, 2, 5, 9, 12, 16, 18, 23, 30, 40, 60])
def test_every_size_is_kept(width, height):
    a_view = view(*(session(n) for n in range(30)), apps=APPS)
    rows(a_view, width, height)  # checks the size of what it returns
    a_view.press("?")
    rows(a_view, width, height)
    a_view.press("j")
    a_view.press("c")
    rows(a_view, width, height)


@pytest.mark.parametrize("name", ["日本語エディタ", "🦙🦙🦙🦙🦙🦙🦙", "é́́diteur", "한국어"])
@pytest.mark.parametrize("width", [44, 60, 80, 200])
def test_wide_characters_keep_the_columns(name, width):
    seen = rows(view(session(1, app=name, id=name * 3), session(2)), width)
    (wide,) = (line for line in seen if name[0] in line)
    (plain,) = (line for line in seen if "r2" in line)
    assert cell_len(wide[: wide.index("decode")]) == cell_len(plain[: plain.index("decode")])


@untimed
@given(st.text(max_size=60), st.text(max_size=60), st.integers(1, 220), st.integers(1, 60))
def test_whatever_a_client_calls_itself(app, id, width, height):
    seen = rows(view(session(1, app=app, id=id)), width, height)
    assert all(c.isprintable() for line in seen for c in line)


def test_a_client_cannot_write_to_the_terminal():
    nasty = session(1) | {"id": "\x1b[2Jx\n[red]", "app": "\x07\x9b"}
    whole = "\n".join(rows(view(nasty), 120))
    assert "\x1b" not in whole and "\x07" not in whole and "\x9b" not in whole
    assert "[2Jx" in whole and "[red]" in whole


@untimed
@given(st.text(), st.integers(2, 50))
def test_cleaned_text_is_printable_and_bounded(value, limit):
    out = clean(value, limit)
    assert len(out) <= limit
    assert all(c.isprintable() for c in out)


def test_summary():
    assert summary(overview()) == (
        "uma-demo: 321.2 tok/s, 3 active, 3 queued, p95 11.5 ms (1.15 × baseline), RSS 1.23 GB, "
        "last error 12:00:02 warn"
    )
    assert "error" not in summary(overview() | {"errors": [mishap("warn", age_s=61)]})
    assert summary({}) == "no model: - tok/s, - active, 0 queued, p95 - ms, RSS - GB"
    assert summary({"state": "loading", "progress": 0.25}) == "loading 25%"


def test_the_picture_is_the_screen():
    lines = Screen(80, 24).lines(view(session(1)))
    picture = svg(lines, "umaserve top")
    shown = re.sub(r"<[^>]+>", "", picture).replace("&#160;", " ")
    for words in ("interactive", "1.15 of 1.20", "editor", "umaserve top"):
        assert words in shown
    assert "http" not in re.sub(r'xmlns="[^"]*"', "", picture).replace("https://www.textualize", "")
    assert text(lines).count("\n") == 23


# --- its shapes ----------------------------------------------------------------------------------


def test_a_gauge():
    assert bar(0.5, 10).plain == "█████░░░░░"
    assert bar(None, 4).plain == "░░░░" and bar(7.0, 4).plain == "████"
    assert bar(0.25, 8, mark=0.75).plain == "██░░░░│░"
    assert bar(1.0, 8, mark=0.25).plain == "██│█████"
    assert bar(0.5, 0).plain == ""


def test_a_chart():
    (line,) = chart([1, 2, None, 4, 8], 6)
    assert line.plain == " ▁▂ ▄█"
    (line,) = chart([4.0, 8.0, 12.0], 3, top=16.0, limit=10.0)
    assert line.parts == [("▂▄", "good"), ("▆", "bad")]
    upper, lower = chart([4.0, 8.0, 16.0], 3, rows=2, top=16.0)
    assert (upper.plain, lower.plain) == ("  █", "▄██")
    assert chart([], 4)[0].plain == "    " and chart([1.0], 0)[0].plain == ""
    assert chart([0.0], 1)[0].plain == "▁"


@untimed
@given(st.text(), st.integers(0, 30), st.booleans())
def test_a_column_has_its_width(value, width, left):
    value = clean(value)
    assert cell_len(column(value, width, left)) == width


def test_numbers():
    assert [ms(v) for v in (None, 0.123, 9.994, 9.996, 99.96, 999.94, 1234.5)] == [
        "-", "0.12", "9.99", "10.0", "100.0", "999.9", "1,234",
    ]  # fmt: skip


@untimed
@given(st.lists(st.tuples(st.text(max_size=8), st.sampled_from(["", "dim"])), max_size=6))
def test_a_line_is_cut_or_filled(parts):
    for width in (0, 1, 7, 30):
        line = Line()
        for words, style in parts:
            line.add(clean(words), style)
        before, whole = line.plain, line.cells <= width
        fitted = Line().extend(line).fit(width)
        line.pad(width)
        assert line.cells == cell_len(line.plain) == width
        kept = line.plain.rstrip(" ")
        assert before.startswith(kept) or before.rstrip(" ") == kept
        assert fitted.cells == cell_len(fitted.plain) == width
        assert fitted.plain.endswith("…") == (not whole and width > 1) or before.endswith("…")


# --- the terminal --------------------------------------------------------------------------------


def console(encoding: str = "utf-8", **environment: str) -> tuple[io.TextIOWrapper, Console]:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return out, Console(
        file=out,
        force_terminal=True,
        width=80,
        height=24,
        _environ={"TERM": "xterm-256color", **environment},
    )


def written(out: io.TextIOWrapper) -> str:
    out.flush()
    data = out.buffer.getvalue().decode(out.encoding)  # type: ignore[attr-defined]
    out.buffer.seek(0)
    out.buffer.truncate()
    return data


def test_only_lines_that_changed_are_written():
    out, the_console = console()
    terminal = Terminal(the_console)
    a_view = view(session(1), session(2))
    terminal.paint(Screen(80, 24).lines(a_view))
    assert written(out).count("\x1b[2J") == 2  # once on the way in, once for a new size
    terminal.paint(Screen(80, 24).lines(a_view))
    assert written(out) == ""
    a_view.update(overview(session(1, tokens=77), session(2)))
    terminal.paint(Screen(80, 24).lines(a_view))
    changed = written(out)
    assert re.findall(r"\x1b\[(\d+);1H", changed) == ["14"] and "77" in changed
    terminal.refresh()
    terminal.paint(Screen(80, 24).lines(a_view))
    assert written(out).count(";1H") == 24


def test_fewer_lines_leave_nothing_behind():
    out, the_console = console()
    terminal = Terminal(the_console)
    terminal.paint([Line("one"), Line("two"), Line("three")])
    written(out)
    terminal.paint([Line("one")])
    assert written(out) == "\x1b[2;1H\x1b[J"


def test_the_terminal_is_given_back_on_an_error():
    out, the_console = console()
    terminal = Terminal(the_console)
    with pytest.raises(RuntimeError), closing(terminal):
        assert not terminal.plain
        terminal.paint([Line("x")])
        raise RuntimeError
    data = written(out)
    assert data.count("\x1b[?1049h") == data.count("\x1b[?1049l") == 1
    assert data.rindex("\x1b[?25h") > data.rindex("\x1b[?25l")
    terminal.paint([Line("late")])
    assert written(out) == "", "closed is closed"


def test_no_color():
    with_colour, the_console = console()
    Terminal(the_console).paint(Screen(80, 24).lines(view(session(1))))
    assert re.search(r"\x1b\[[\d;]*3[1-6][;m]", written(with_colour))
    without, the_console = console(NO_COLOR="1")
    Terminal(the_console).paint(Screen(80, 24).lines(view(session(1))))
    data = written(without)
    assert not re.search(r"\x1b\[(?:\d+;)*[349]\d(?:;\d+)*m", data)
    assert "\x1b[7m" in data, "the header is still reversed"


def test_a_terminal_without_utf_8_gets_ascii():
    out, the_console = console("ascii")
    Terminal(the_console).paint(Screen(80, 24).lines(view(session(1, app="日本"))))
    data = written(out)
    assert data.isascii() and " SBMT " in data and re.search(r"- .*time between tokens", data)
    assert re.search(r"r1 +\?\?\?\? +interactive", data)


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": "unknown"}])
def test_a_dumb_terminal_gets_lines(environment):
    out, the_console = console(**environment)
    terminal = Terminal(the_console)
    assert terminal.plain
    terminal.paint([Line("x")])
    for _ in range(10):
        terminal.say(summary(overview()))
    (line,) = written(out).splitlines()
    assert line.endswith(summary(overview())) and "\x1b" not in line


def test_a_pipe_gets_lines(capsys):
    terminal = Terminal(Console(file=sys.stdout))
    assert terminal.plain and terminal.input is None
    terminal.say("words")
    assert capsys.readouterr().out.endswith(" words\n")
