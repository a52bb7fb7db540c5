"""The pure parts of the scheduler's benchmarks: what a cap leaves free, gaps, CSV, prompts."""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import must_hold, paste, tick_costs, timeline, two_apps
from benchmarks.free_rate import (
    LONGEST,
    SLOW_SHARE,
    Aside,
    Costs,
    Tick,
    best_mix,
    free_prompt_rate,
    ways,
)
from benchmarks.load import Crowd, window_of_ticks
from benchmarks.setting import Series
from benchmarks.sides import Ours, Side
from benchmarks.timeline import Phase, Row, Session, tokens_in
from umaserve.bench.prompts import Prompts

_MS = st.floats(0.1, 300, allow_nan=False)
_CAP = st.floats(1.0, 2.0)


@st.composite
def costs(draw: st.DrawFn) -> Costs:
    """Any table, not even monotone: real ones are not."""

    def tick() -> Tick:
        mean = draw(_MS)
        return Tick(mean, mean * draw(st.floats(1.0, 1.5)))

    sizes = draw(st.lists(st.integers(1, 512), unique=True, max_size=8))
    table = {(1, 0): tick()}
    for size in sizes:
        for rows in (0, 1):
            if draw(st.booleans()):
                table[rows, size] = tick()
    asides = [Aside(tick(), draw(st.floats(0, 1e4))) for _ in range(draw(st.integers(0, 2)))]
    return Costs(table, tuple(asides))


@given(costs(), _CAP, _CAP)
def test_a_higher_cap_never_leaves_less_free(table: Costs, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert free_prompt_rate(table, low) <= free_prompt_rate(table, high) * (1 + 1e-9)


@given(costs(), _CAP, st.integers(0, 1000))
def test_the_best_mix_keeps_both_constraints_when_it_is_played(
    table: Costs, cap: float, seed: int
) -> None:
    mix = best_mix(table, cap)
    rng = random.Random(seed)
    base = table.baseline.p95_ms
    n = 400
    slow = [False] * n
    for i in rng.sample(range(n), int(mix.slow_share * n)):
        slow[i] = True
    chosen = [mix.slow if s else mix.usual for s in slow]
    gaps = [way.p95_ms for way in chosen if way is not None]
    assert len(gaps) == n
    assert max(gaps) <= max(LONGEST * base, base) + 1e-9
    assert sum(gap > cap * base + 1e-9 for gap in gaps) <= SLOW_SHARE * n
    rate = 1e3 * sum(w.prompt_tokens for w in chosen if w) / sum(w.mean_ms for w in chosen if w)
    assert rate == pytest.approx(mix.prompt_tokens_per_s, rel=1e-6, abs=1e-9)


@given(costs(), _CAP, st.data())
def test_no_other_mix_of_the_ways_is_better(table: Costs, cap: float, data: st.DataObject) -> None:
    base = table.baseline.p95_ms
    allowed = [w for w in ways(table) if w.p95_ms <= LONGEST * base]
    usual = [w for w in allowed if w.p95_ms <= cap * base]
    slow = [w for w in allowed if w.p95_ms > cap * base]
    weights = [data.draw(st.integers(0, 100)) for _ in usual]
    if not usual or not sum(weights):
        return
    share = data.draw(st.floats(0, SLOW_SHARE)) if slow else 0.0
    pick = data.draw(st.sampled_from(slow)) if slow else None
    tokens = sum(w * u.prompt_tokens for w, u in zip(weights, usual, strict=True)) / sum(weights)
    time_ms = sum(w * u.mean_ms for w, u in zip(weights, usual, strict=True)) / sum(weights)
    if pick is not None:
        tokens = (1 - share) * tokens + share * pick.prompt_tokens
        time_ms = (1 - share) * time_ms + share * pick.mean_ms
    assert 1e3 * tokens / time_ms <= free_prompt_rate(table, cap) * (1 + 1e-6) + 1e-6


def test_free_rate_of_a_table_worked_out_by_hand() -> None:
    table = Costs({(1, 0): Tick(10, 10), (1, 4): Tick(12, 12), (1, 32): Tick(20, 20)})
    assert free_prompt_rate(table, 1.1) == pytest.approx(1e3 * 0.05 * 32 / (0.95 * 10 + 0.05 * 20))
    both = 1e3 * (0.95 * 4 + 0.05 * 32) / (0.95 * 12 + 0.05 * 20)
    assert free_prompt_rate(table, 1.2) == pytest.approx(both)
    assert free_prompt_rate(table, 2.0) == pytest.approx(1600)
    beside = Costs(table.ticks, (Aside(Tick(11, 12), 500.0),))
    assert best_mix(beside, 1.2).usual.prompt_tokens == pytest.approx(5.5)


@given(costs())
def test_costs_survive_json(table: Costs) -> None:
    assert tick_costs.from_json(tick_costs.to_json(table)) == table


@given(st.integers(), st.integers(1, 60))
def test_prompts_are_unique_from_their_first_word_and_repeatable(seed: int, n: int) -> None:
    source = Prompts(seed)
    texts = [source.words(30) for _ in range(n)]
    assert len({text.split()[0] for text in texts}) == n
    assert all(len(text.split()) == 30 for text in texts)
    again = Prompts(seed)
    assert [again.words(30) for _ in range(n)] == texts


def test_random_prompts_share_no_long_beginning() -> None:
    source = Prompts(1)
    texts = sorted(source.words(40) for _ in range(500))
    shared = [len(os.path.commonprefix([a, b])) for a, b in zip(texts, texts[1:], strict=False)]
    assert max(shared) <= 8


_ROW = st.builds(
    Row,
    st.sampled_from(["umaserve", "llama-server"]),
    st.integers(0, 5),
    st.sampled_from(["alone", "storm2"]),
    st.text("abc.0123", min_size=1, max_size=8),
    st.integers(0, 9999),
    st.integers(0, 10**8).map(lambda us: us / 1e3),
    st.booleans(),
)


@given(st.lists(_ROW, max_size=40))
def test_csv_round_trip(rows: list[Row]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv.gz"
        assert timeline.write_csv(path, rows) == len(rows)
        assert timeline.read_csv(path) == rows


def test_csv_keeps_under_its_limit_by_cutting_every_phase(tmp_path: Path) -> None:
    rng = random.Random(1)
    rows = [Row("umaserve", 0, "p", "s", i, 10 * i + rng.random(), True) for i in range(20000)]
    path = tmp_path / "rows.csv.gz"
    kept = timeline.write_csv(path, rows, limit=20_000)
    assert 0 < kept < len(rows)
    assert path.stat().st_size <= 20_000
    assert [r.token_idx for r in timeline.read_csv(path)] == list(range(kept))


def _session(times: list[float], end: float | None = None, interactive: bool = True) -> Session:
    return Session("s.0", interactive, 0.0, times, end)


def test_gaps_end_within_the_phase_and_an_open_silence_counts() -> None:
    phase = Phase("p", 1.0, 5.0, [_session([0.5, 1.5, 1.6, 1.7])])
    assert timeline.gaps_ms(phase) == pytest.approx([1000, 100, 100, 3300])
    ended = Phase("p", 1.0, 5.0, [_session([0.5, 1.5, 1.6], end=1.6)])
    assert timeline.gaps_ms(ended) == pytest.approx([1000, 100])
    assert timeline.gaps_ms(ended, interactive=False) == []
    later = Phase("p", 1.0, 5.0, [_session([1.0, 2.0, 3.0, 4.9, 6.0])])
    assert timeline.gaps_ms(later) == pytest.approx([1000, 1000, 1900])
    assert timeline.tokens_in(later) == 3
    assert timeline.token_rate(later) == pytest.approx(0.75)


def test_a_window_of_ticks_has_whole_ticks() -> None:
    """However it lies: four tokens for each tick that began in it, none of a part of one."""
    ticks: list[float] = []
    crowd = Crowd(cast(Side, None), cast(Prompts, None))
    sessions = [crowd.new(f"s{i}", False) for i in range(4)]

    async def server() -> None:
        while True:
            await trio.sleep(0.02)
            ticks.append(time.perf_counter())
            for session in sessions:
                session.sent_s = session.sent_s or ticks[0] - 0.01
                session.times_s.append(ticks[-1])

    async def client() -> Phase:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server)
            phase = await window_of_ticks(crowd, "w", 0.11)
            nursery.cancel_scope.cancel()
        return phase

    phase = trio.run(client)
    seen = [t for t in ticks if phase.begin_s < t <= phase.end_s]
    assert seen and tokens_in(phase) == 4 * len(seen)
    assert ticks[-1] > phase.end_s


def test_a_window_ends_where_nothing_arrives() -> None:
    crowd = Crowd(cast(Side, None), cast(Prompts, None))
    crowd.new("s", False).times_s = [0.0]
    phase = trio.run(functools.partial(window_of_ticks, crowd, "w", 0.01, most=0.02))
    assert tokens_in(phase) == 0 and phase.end_s > phase.begin_s


def test_prompts_answered_together_count_once_they_were_computed() -> None:
    def done(at: float, tokens: int) -> Session:
        session = Session("x", False, 0.0, [at], at)
        session.prompt_tokens = tokens
        return session

    sessions = [done(1.0, 400), done(1.01, 400), done(3.0, 500), done(5.0, 300), done(9.0, 900)]
    groups = timeline.completion_groups(sessions, 0.5, 6.0, 0.05)
    assert groups == [(1.01, 800), (3.0, 500), (5.0, 300)]
    assert timeline.completion_rate(groups) == pytest.approx(800 / 3.99)
    assert timeline.completion_rate(groups[:1]) is None


def test_the_wait_for_the_first_token_is_a_pause() -> None:
    assert paste.longest_pause_ms(10.0, [12.0, 12.5, 14.0], 13.0) == pytest.approx(2000)
    assert paste.longest_pause_ms(10.0, [], 13.0) == pytest.approx(3000)


def test_series_leaves_out_what_was_not_measured() -> None:
    series = Series.empty()
    for ours, theirs in ((2.0, 1.0), (6.0, 2.0)):
        series.add("umaserve", rate=ours, nothing=None, none=float("nan"))
        series.add("llama-server", rate=theirs)
    assert set(series.spreads()) == {"rate"}
    found = series.ours_over_theirs("rate")
    assert found is not None and found["median"] == 2.5
    assert series.ours_over_theirs("nothing") is None


def test_the_table_of_what_must_hold() -> None:
    one = {"median": 1.22}
    result = {
        "accelerator": False,
        "figures": {"p95_ratio@2": {"umaserve": one}},
        "after_ours_over_theirs": {"2": {"median": 0.5}},
    }
    table = {line[0]: line[1:] for line in must_hold.lines({"storm": result})}
    assert table["storm, 2 clients: interactive p95 / alone"] == ["at most 1.25", "1.22", "yes"]
    after = table["storm, 2 clients: prompt tokens/s after the stream / llama-server's"]
    assert after == ["at least 0.95", "0.5", "**no**"]
    assert table["mixed: RSS / that of four apps"] == ["at most 0.35", "-", "not measured"]
    one["median"] = 1.2504
    table = {line[0]: line[1:] for line in must_hold.lines({"storm": result})}
    held = table["storm, 2 clients: interactive p95 / alone"]
    assert held == ["at most 1.25", "1.25", "yes"], "compared as it is shown"
    result["accelerator"] = True
    table = {line[0]: line[1:] for line in must_hold.lines({"storm": result})}
    assert table["storm, 2 clients: interactive p95 / alone"][2] == "**no**"


@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_benchmark_that_is_terminated_stops_its_servers(before):
    """Behind a shell that is no terminal's, too, where Ctrl-C is ignored."""
    code = """
import time
from benchmarks.sides import quiet_death
quiet_death()
try:
    print("runs", flush=True)
    time.sleep(60)
finally:
    print("stops its servers", flush=True)
"""
    was = signal.signal(signal.SIGINT, before)
    try:
        bench = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGINT, was)
    assert bench.stdout is not None
    assert bench.stdout.readline() == "runs\n"
    bench.terminate()
    assert bench.communicate(timeout=30)[0] == "stops its servers\n"
    assert bench.returncode != 0


def test_streams_of_a_program_are_told_from_its_prompts_and_from_others() -> None:
    names = {"own-0.0": True, "other-0.1": True, "other-1.2": True, "other-prompts0.3": False}
    phase = Phase("all", 0.0, 1.0, [Session(name, reads) for name, reads in names.items()])
    own, other = (two_apps.of_program(phase, name) for name in (two_apps.OWN, two_apps.OTHER))
    assert [s.session_id for s in own.sessions] == ["own-0.0"]
    assert [s.session_id for s in other.sessions] == ["other-0.1", "other-1.2"]


def test_a_request_names_its_program_or_its_lane() -> None:
    class Asks(Ours):
        def __init__(self) -> None:
            """No daemon is needed to write a request."""

    side = Asks()
    asked = side.request("other-prompts0.3", "hi", 1, False)
    assert b'"priority": "background"' in asked and b'"app"' not in asked
    side.named = True
    asked = side.request("other-prompts0.3", "hi", 1, False)
    assert b'"app": "other"' in asked and b"priority" not in asked
