"""The screen as text, and what is written to the terminal."""

from __future__ import annotations

import html
import io
import re
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from tests.support.dashboard_screens import (
    APPS,
    METRICS,
    app,
    ended,
    figures,
    overview,
    rows,
    session,
    view,
)
from tests.support.fixtures.untimed import untimed
from umaserve.dashboard import Screen, Terminal, View
from umaserve.dashboard.canvas.line import (
    SPARKS,
    Line,
    bar,
    chart,
    clean,
    column,
    ms,
    svg,
    text,
)
from umaserve.dashboard.panels import news as news_panel
from umaserve.dashboard.panels.apps import APP_FIGURES, apps
from umaserve.dashboard.panels.latency import latency
from umaserve.dashboard.panels.operator import ticks
from umaserve.dashboard.panels.sentence import summary
from umaserve.dashboard.table import COLUMNS, requests, widths

# --- the screen ----------------------------------------------------------------------------------


CURVES = (
    r"─ time between tokens, ms ─+ +p50 +p95 +p99 +worst +first +p95",
    r" interactive +[▁-█ ]{25} +11\.0 +11\.5 +20\.0 +33\.0 +40\.0 +90\.0",
    r" background +█{25} +21\.0 +24\.5 +30\.0 +1,043 +140\.0 +190\.0",
)
HEAD = (
    r" Fast: 321 tokens/s, 1 app, nobody waits *",
    r" uma-demo · cpu · up 1:02:05 · /tmp/uma\.sock *",
    r" CPU █+░+ 42% +memory █+░+ 12\.3 of 16\.0 GB *",
)
FOOT = (
    r" 12:00:02 warn: the engine died of SIGKILL *",
    r" ↑↓ select  Enter details  / filter  s sort  l load  m figures  \? help  q quit *",
)
TITLES = r"  id +app +lane +state +tokens +tok/s +p95 +age"


def compare(seen: list[str], expected: list[str]) -> None:
    assert len(seen) == len(expected)
    for line, pattern in zip(seen, expected, strict=True):
        assert re.fullmatch(pattern, line), (line, pattern)


def test_a_screen_at_80_by_24():
    """Every line in its place; numbers are those of the metrics and of the requests."""
    recent = [ended(n, app="shell", age_s=60.0 - n) for n in range(20, 32)]
    seen = rows(view(*(session(n) for n in range(1, 4)), recent=recent))
    expected = [
        *HEAD,
        *CURVES,
        r"─ requests: 3 now · 3 queued · 41 so far ─+",
        TITLES,
        *(rf"  r{n} +editor +interactive decode +{n} +50\.5 +14\.2 +0:00:02" for n in range(1, 4)),
        *(rf"  #{n} +shell +background +done +61 +50\.0 +22\.5 +{60 - n} s ago"
          for n in range(31, 24, -1)),
        *[r" +"] * 4,
        *FOOT,
    ]  # fmt: skip
    compare(seen, expected)


def test_the_operator_s_view_at_80_by_24():
    seen = rows(figures(*(session(n) for n in range(1, 4))))
    expected = [
        *HEAD,
        *CURVES,
        r" p95 / cap   █{15}░│░{7}  1\.15 of 1\.20 held × baseline, now 10\.0 ms *",
        r"─ ticks ─+ ─ memory ─+",
        r" tokens/s +- now · 300\.5 at cap +KV cells +█+░+ 1,024 of 4,096 *",
        r" tick +█+░+ 6\.00 of 12\.0 ms +cache +█+░+ 50% of prompts *",
        r" batch +█+▒+ 3\.0 dec \+ 9\.0 pre +parked +1 · evicted 9 · preempted 7 *",
        r" ΣBMT +█+░+ 5\.0 of 20\.0 GB/s +RSS +1\.23 GB · churn 0\.25 MB/token *",
        r" guard +holding · held 17 · 5 late +errors +3 · E_LIMIT_001 2 *",
        r"─ requests: 3 now · 3 queued · 41 so far ─+",
        TITLES,
        *(rf"  r{n} +editor +interactive decode +{n} +50\.5 +14\.2 +0:00:02" for n in range(1, 4)),
        *[r" +"] * 4,
        *FOOT,
    ]
    compare(seen, expected)


def test_words_of_the_operator_are_in_the_second_view_alone():
    seen = "\n".join(rows(view(session(1), apps=APPS), 200, 50))
    for word in ("ΣBMT", "churn", "guard", "p95 / cap", "KV cells", "preempted", "efficiency"):
        assert word not in seen
        assert word in "\n".join(rows(figures(session(1)), 200, 50))


WAITING = {"state": "queued", "app": "batch"}


@pytest.mark.parametrize(
    ("sessions", "changes", "said", "style"),
    [
        ([session(1), session(2, app="page")], {}, "Fast: 321 tokens/s, 2 apps, nobody waits",
         "head-good"),
        ([session(1), session(2, **WAITING, age_s=3.0)], {},
         "Fast: 321 tokens/s, 2 apps, 1 waits, for up to 3 s", "head-good"),
        ([session(1), session(2, **WAITING, age_s=0.9)], {},
         "Fast: 321 tokens/s, 2 apps, nobody waits", "head-good"),
        ([session(1, lane="background")], {}, "Busy: 321 tokens/s, 1 app, nobody waits",
         "head-good"),
        ([session(1, state="prefill"), session(2, state="prefill")], {},
         "Reading: 2 prompts, 1 app, nobody waits", "head-good"),
        ([session(1)], {"interactive.p95_ms": 151.0}, "Slow: 321 tokens/s, 1 app, nobody waits",
         "head-warn"),
        ([session(1)], {"interactive.ttft_ms_p50": 2001.0}, "Slow: 321 tokens/s, 1 app, nobody",
         "head-warn"),
        ([session(1, lane="background")], {"interactive.p95_ms": 151.0}, "Busy: ", "head-good"),
        ([session(1), session(2, **WAITING, age_s=1.0), session(3, **WAITING, age_s=10.0)], {},
         "Overloaded: 321 tokens/s, 2 apps, 2 wait, for up to 10 s", "head-bad"),
        ([], {}, "Idle: nobody asks", "head"),
    ],
)  # fmt: skip
def test_the_first_line_is_a_sentence(sessions, changes, said, style):
    (first, *_) = Screen(80, 24).lines(view(*sessions, **changes))
    assert first.plain.strip().startswith(said) and first.parts[0][1] == style


def test_the_sentence_of_other_states():
    a_view = view()
    a_view.update(overview() | {"recent": [ended(7, age_s=90.0)]})
    assert rows(a_view)[0].strip() == "Idle: nobody asks, the last answer ended 1 min ago"
    a_view.update(overview(session(1)) | {"state": "stopping"})
    assert rows(a_view)[0].strip() == "Stopping: 1 request may finish"
    a_view.update(overview() | {"state": "asleep", "metrics": {}})
    assert rows(a_view)[0].strip() == "Asleep: the next request loads the model"
    a_view.update(overview() | {"state": "unloaded", "next_try": {"in_s": 12.0}})
    assert rows(a_view)[0].strip() == "No model: tried again in 0:00:12"
    refused = mishap("E_LIMIT_002", age_s=4.0)
    a_view.update(overview(session(1)) | {"errors": [refused]})
    assert rows(a_view)[0].strip().startswith("Overloaded: ")
    a_view.update(overview(session(1)) | {"errors": [refused | {"age_s": 60.0}]})
    assert rows(a_view)[0].strip().startswith("Fast: ")


def test_models_beside_the_default_one_are_told_with_their_states():
    a_view = view()
    models = [
        {"id": "m", "default": True, "state": "serving"},
        {"id": "coder", "default": False, "state": "loading", "progress": 0.43},
        {"id": "search", "default": False, "state": "asleep"},
    ]
    a_view.update(overview() | {"models": models})
    assert "· coder (loading 43%) · search (asleep) ·" in rows(a_view)[1]


@pytest.mark.parametrize(("cpu", "gpu", "bars"), [(0.1, 0.97, 3), (None, None, 1), (0.5, None, 2)])
def test_the_machine_has_a_bar_for_what_is_told(cpu, gpu, bars):
    a_view = view()
    memory = {"memory_used_bytes": 8e9, "memory_total_bytes": 16e9}
    a_view.update(overview() | {"machine": {"cpu": cpu, "gpu": gpu, **memory}})
    line = rows(a_view)[2]
    assert len(re.findall(r"█+░*", line)) == bars
    assert ("CPU" in line, "GPU" in line) == (cpu is not None, gpu is not None)
    assert "8.0 of 16.0 GB" in line


def test_who_has_which_share():
    """The largest first; who asked for nothing in the last minute is left out."""
    seen = rows(view(session(1), apps=APPS))
    expected = [
        r"─ apps: 2 of 4 ─+ +share +now +p95 +cached +lane +",
        r" page +█{20}░{9} +70% +1 +1,204 +0% +interactive",
        r" editor +█{7}░{22} +25% +1 +14\.2 +93% +interactive",
        r"─ requests: .*",
    ]
    (at,) = (i for i, line in enumerate(seen) if line.startswith("─ apps"))
    assert at == 6, "under the curves"
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
        return next(row for row in rows(figures(**metrics), width, 30) if row.startswith(" batch"))

    some = {"tokens_per_tick": 1.854, "draft_tokens_total": 50, "draft_accepted_ratio": 0.62}
    assert " 3.0 dec ×1.9 + 9.0 pre " in batch(80, **some)
    assert " 3.0 decode ×1.85 (62% right) + 9.0 prefill " in batch(120, **some)
    assert " 3.0 decode + 9.0 prefill " in batch(120, **{**some, "draft_accepted_ratio": None})
    assert " 3.0 decode + 9.0 prefill " in batch(120, **{**some, "tokens_per_tick": None})


def test_the_prefix_cache_says_how_large_it_is():
    seen = rows(figures(session(1), cache_ram_bytes=35_200_000), 100)
    assert any(re.search(r"cache +█+░+ 50% of prompts · 35 MB *$", line) for line in seen)


def test_a_larger_screen_shows_more():
    seen = rows(figures(*(session(n) for n in range(1, 31))), 200, 50)
    whole = "\n".join(seen)
    assert len(seen) == 50
    assert "─ efficiency ─" in whole and "97.3% in libllama" in whole and "─ log ─" in whole
    assert "321.2 over a minute" in whole and "450.2 MB a token" in whole
    curve = [line for line in seen[4:10] if set(line[13:133]) & set(SPARKS)]
    assert len(curve) == 6, "three lines high, two lanes"
    assert any(line.startswith("─ last errors ─") and "─ log ─" in line for line in seen)
    head = next(line for line in seen if "tok/s" in line and "prompt" in line)
    assert all(word in head for word in ("prompt", "first", "age", "conn", "cells"))
    assert sum("editor" in line for line in seen) == 23 and "and 7 more" in whole
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
    styles = [news_panel.mishap(mishap(code)).parts[1] for code in ("E_PROTO_001", "E_RUNTIME_001")]
    assert styles == [("E_PROTO_001", "warn"), ("E_RUNTIME_001", "bad")]
    old = {"errors": [mishap("error", age_s=61)]}
    assert news_panel.newest(old, 80).parts[1] == ("error", "dim")


def test_engines_that_were_replaced_are_counted():
    assert any(" errors    3 · 1 restart " in row for row in rows(figures(engine_restarts_total=1)))
    assert any(" 3 · 2 restarts " in row for row in rows(figures(engine_restarts_total=2)))


def test_a_cap_that_is_missed_faster_than_people_read_breaks_no_promise():
    def row(p95_ms: float) -> str:
        values = {"p95_over_baseline": 1.45, "p95_ms": p95_ms, "reading_ms": 25.0}
        return next(row for row in rows(figures(**values)) if " 1.45 of 1.20 " in row)

    assert " 1.45 of 1.20 faster than read" in row(24.0)
    assert " 1.45 of 1.20 OVER" in row(26.0)


def test_the_cap_is_seen_without_colour():
    assert any(" 1.45 of 1.20 OVER × base" in row for row in rows(figures(p95_over_baseline=1.45)))


def test_red_is_what_people_feel_and_in_the_operator_s_view_what_misses_the_cap():
    def styles(a_view: View) -> set[str]:
        (line,) = (
            line for line in Screen(80, 24).lines(a_view) if line.plain.startswith(" interactive ")
        )
        return {style for text, style in line.parts if text.strip()}

    late = {"p95_over_baseline": 1.45}
    assert "bad" not in styles(view(session(1), **late))
    assert "bad" in styles(figures(session(1), **late))
    assert "bad" in styles(view(session(1), **{"interactive.p95_ms": 151.0}))


def test_nothing_is_red_that_reads_as_within_its_limit():
    assert any(" 1.20 of 1.20 held" in row for row in rows(figures(p95_over_baseline=1.204)))
    assert any(" 1.21 of 1.20 OVER" in row for row in rows(figures(p95_over_baseline=1.206)))
    for mean_ms, style in ((12.04, "bar"), (12.06, "bad")):
        tick = ticks({"ticks": {"mean_ms": mean_ms, "allowed_ms": 12.0}}, None, 80)[2]
        assert style in {part[1] for part in tick.parts}


def test_the_cap_is_judged_by_each_time_over_the_baseline_of_its_moment():
    """The baseline may be another one by now, as when a crowd has left, or after `unload`."""
    for baseline_ms in (2.0, None):
        seen = rows(figures(baseline_ms=baseline_ms))
        assert any(" 1.15 of 1.20 held" in row for row in seen), baseline_ms
    nothing = rows(figures(p95_over_baseline=None, p95_ms=None))
    assert any(re.search(r" p95 / cap +░+ +- of 1\.20 *$", row) for row in nothing)


def test_what_is_not_measured_is_a_dash():
    empty = View(operator=True)
    empty.update({"metrics": dict.fromkeys(METRICS), "sessions": []})
    whole = "\n".join(rows(empty))
    assert "No model loaded" in whole and "nobody asks" in whole
    assert re.search(r"interactive( +-){6}", whole) and re.search(r"KV cells +░+ - of -", whole)
    assert re.search(r"guard +- ·", whole) and "RSS       - ·" in whole
    nothing = View(operator=True)
    nothing.update({})
    assert "\n".join(rows(nothing)).replace("0:", "") == whole.replace("0:", "")


def test_loading_stopping_and_no_daemon():
    loading = View()
    loading.update({"state": "loading", "progress": 0.4})
    assert " Loading 40% " in rows(loading)[0]
    loading.update({"state": "loading", "progress": 0.4, "stage": "weights"})
    assert " Loading weights 40% " in rows(loading)[0]
    loading.update({"state": "loading", "progress": 1.0, "stage": "warmup"})
    assert " Loading: warmup " in rows(loading)[0]
    stopping = View()
    stopping.update({"state": "stopping"})
    assert rows(stopping)[0].startswith(" Stopping: nothing runs ")
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
    seen = rows(figures(session(1), engine_restarts_total=1), width)
    ends = {"ticks": "evicted 9", "keys": "q quit"}
    if width < 60:
        del ends["ticks"]  # no room for panels beside each other
    for word in ends.values():
        assert any(word in line for line in seen)
    for part in re.findall(r" · ([^·│]*?)(?: {2,}|$|(?= ·))", "\n".join(seen[2:-2]), re.M):
        assert re.fullmatch(
            r"[\d.,-]+ (at cap|over a minute|late|restarts?)( ─*)?|held \d+|"
            r"evicted \d+|preempted \d+|churn [\d.-]+ MB/token|E_\w+ \d+|"
            r"\d+ (queued|so far)( ─*)?", part.strip(),
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


numbers = st.one_of(st.none(), st.floats(0, 1e12), st.integers(0, 10**12))
names = st.text(min_size=1, max_size=30)


@untimed
@given(names, names, st.lists(numbers, min_size=6, max_size=6), st.integers(60, 220))
def test_columns_never_touch(name, other, values, width):
    """Whatever stands in them: a blank is before each column that others precede."""
    figures_of = ("p50_ms", "p95_ms", "p99_ms", "worst_pause_ms", "ttft_ms_p50", "ttft_ms_p95")
    each = dict(zip(figures_of, values, strict=True))
    shown_of = ("tokens", "tok_s", "p95_ms", "kv_cells", "prompt_tokens", "ttft_ms")
    fields = dict(zip(shown_of, values, strict=True)) | {"lane": other, "conn": name}
    one_app = app(share=0.5, active=values[0], p95_ms=values[1], lane=other, lane_reason=name)
    shown = view(
        session(1, id=name, app=other, **fields), apps={name: one_app, "b": app()},
        **{f"interactive.{key}": value for key, value in each.items()},
    )  # fmt: skip
    latency_lines = latency(shown.overview, width)
    app_lines = apps(shown.overview, width, 2)
    table_lines = requests(shown, width, 6)
    columns = [c for c in COLUMNS if width >= c.least]
    starts = [2 + sum(widths(columns, width)[:n]) + n for n in range(1, len(columns))]
    checked = [(line, [start - 1 for start in starts]) for line in table_lines[1:]]
    count = min(6, (width - 21) // 7)
    first = 13 + min(width - 13 - 7 * count, 120)
    checked += [(line, [first + 7 * n for n in range(count)]) for line in latency_lines[1:]]
    shown_figures = [f.width for f in APP_FIGURES if width >= f.least]
    ends = [width - sum(shown_figures[n:]) for n in range(len(shown_figures))]
    checked += [(line, ends) for line in app_lines]
    for line, places in checked:
        cells = "".join(c * cell_len(c) for c in line.plain)
        for place in places:
            assert cells[place] == " ", (line.plain, place)


@pytest.mark.parametrize("width", [60, 80, 150, 200])
def test_panels_beside_each_other_never_touch(width):
    huge = dict.fromkeys((k for k, v in METRICS.items() if isinstance(v, (int, float))), 10**13)
    seen = rows(figures(session(1), **huge), width, 24)
    count = 3 if width >= 150 else 2
    (at,) = (n for n, line in enumerate(seen) if line.startswith("─ ticks"))
    for line in seen[at : at + 6]:
        for n in range(1, count):
            assert line[n * (width // count) - 1] == " ", line


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
    for words in ("interactive", "Fast: 321 tokens/s", "editor", "umaserve top"):
        assert words in shown
    assert "http" not in re.sub(r'xmlns="[^"]*"', "", picture).replace("https://www.textualize", "")
    assert text(lines).count("\n") == 23


def test_the_picture_of_the_docs_shows_a_good_day_of_this_screen():
    picture = (Path(__file__).parents[2] / "docs/dashboard.svg").read_text("utf-8")
    shown = html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", "\n", picture, flags=re.S))
    text = shown.replace("\xa0", " ")
    assert re.search(r" Fast: \d+ tokens/s, [23] apps, nobody waits", text)
    for title in (c.title for c in COLUMNS if c.least <= 110):
        assert re.search(rf"\b{re.escape(title)}\b", text), title
    for name in ("chat-", "editor-", "indexer-"):
        assert name in text
    assert "memory" in text and "ΣBMT" not in text and "none so far" in text


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
    assert re.findall(r"\x1b\[(\d+);1H", changed) == ["9"] and "77" in changed
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
    Terminal(the_console).paint(Screen(80, 24).lines(figures(session(1, app="日本"))))
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
