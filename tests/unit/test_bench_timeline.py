"""What the benchmark's client makes of arrival times, against independent reckonings."""

from __future__ import annotations

import csv
import io
import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fixtures.untimed import untimed
from umaserve.bench.prompts import Prompts
from umaserve.bench.timeline import (
    CSV_COLUMNS,
    Answer,
    Phase,
    by_stream,
    first_tokens_ms,
    gaps,
    lane,
    quantile_curve,
    to_csv,
    token_rates,
    tokens_in,
)

quick = settings(untimed, max_examples=40)
MS = st.integers(0, 3000)


@st.composite
def answers(draw: st.DrawFn) -> list[Answer]:
    """Of some streams, one after the other within each, in whole milliseconds from 0 on."""
    out = []
    for stream in range(draw(st.integers(1, 3))):
        now = 0
        for number in range(1, draw(st.integers(1, 3)) + 1):
            now += draw(MS)
            times = []
            sent = now
            for _ in range(draw(st.integers(0, 6))):
                now += draw(MS)
                times.append(now / 1e3)
            over = draw(st.booleans())
            answer = Answer(f"s{stream}", f"s{stream}.{number}", stream != 1, sent / 1e3, times)
            if over and times:
                answer.end_s = times[-1]
            out.append(answer)
    return out


def whole(found: list[Answer]) -> Phase:
    last = max((t for a in found for t in a.times_s), default=0.0)
    return Phase("all", -1.0, last + 1.0)


@quick
@given(answers())
def test_the_times_of_an_answer_add_up_to_its_length(found: list[Answer]) -> None:
    for answer in found:
        own = gaps([answer], whole(found), unfinished=False)
        assert len(own) == max(0, len(answer.times_s) - 1)
        span = answer.times_s[-1] - answer.times_s[0] if answer.times_s else 0.0
        assert math.isclose(sum(gap.ms for gap in own), 1e3 * span, abs_tol=1e-6)


@quick
@given(answers(), st.integers(0, 20_000))
def test_two_phases_that_meet_share_out_everything(found: list[Answer], at: int) -> None:
    every = whole(found)
    cut = min(max(at / 1e3, every.begin_s), every.end_s)
    halves = [Phase("a", every.begin_s, cut), Phase("b", cut, every.end_s)]
    both = [gap for half in halves for gap in gaps(found, half, unfinished=False)]
    assert sorted(both) == sorted(gaps(found, every, unfinished=False))
    assert sum(tokens_in(found, half) for half in halves) == tokens_in(found, every)
    first = [ms for half in halves for ms in first_tokens_ms(found, half)]
    assert sorted(first) == sorted(first_tokens_ms(found, every))


@quick
@given(answers(), st.integers(0, 20_000))
def test_silence_at_the_end_counts_once_and_only_as_the_longest(
    found: list[Answer], at: int
) -> None:
    phase = Phase("p", -1.0, at / 1e3)
    for answer in found:
        closed = gaps([answer], phase, unfinished=False)
        extra = gaps([answer], phase)[len(closed) :]
        came = [t for t in answer.times_s if t <= phase.end_s]
        silent_ms = 1e3 * (phase.end_s - came[-1]) if came else 0.0
        over = answer.end_s is not None and answer.end_s <= phase.end_s
        longest = max((gap.ms for gap in closed), default=0.0)
        if came and not over and silent_ms > longest:
            assert [(gap.end_s, gap.ms) for gap in extra] == [(phase.end_s, silent_ms)]
        else:
            assert extra == []


def test_a_stall_over_the_end_of_a_phase_is_seen_in_it() -> None:
    answer = Answer("s", "s.1", True, 0.0, [0.1, 0.2, 0.3, 5.0])
    phase = Phase("p", 0.0, 2.0)
    assert [round(gap.ms) for gap in gaps([answer], phase)] == [100, 100, 1700]
    assert [round(gap.ms) for gap in gaps([answer], Phase("q", 2.0, 6.0))] == [4700]


@quick
@given(answers(), st.sampled_from([0.25, 0.5, 1.0]))
def test_rates_count_every_token_of_the_whole_stretches(found: list[Answer], width: float) -> None:
    every = whole(found)
    edges, rates = token_rates(found, every.begin_s, every.end_s, width)
    assert len(edges) == len(rates) + 1
    assert np.allclose(np.diff(edges), width) and edges[0] == every.begin_s
    assert edges[-1] <= every.end_s + 1e-6
    inside = sum(edges[0] <= t <= edges[-1] for a in found for t in a.times_s)
    assert round(float(rates.sum() * width)) == inside


@quick
@given(answers(), st.sampled_from([0.5, 0.95, 1.0]))
def test_a_curve_is_the_nearest_rank_of_each_stretch(found: list[Answer], q: float) -> None:
    every = whole(found)
    seen = gaps(found, every, unfinished=False)
    middles, values = quantile_curve(seen, every.begin_s, every.end_s, 0.5, q)
    for i, value in enumerate(values):
        own = sorted(g.ms for g in seen if int((g.end_s - every.begin_s) / 0.5) == i)
        if not own:
            assert math.isnan(value)
        else:
            assert value == own[math.ceil(q * len(own)) - 1]
            assert abs(middles[i] - every.begin_s - 0.5 * i - 0.25) < 1e-9


@quick
@given(answers())
def test_the_csv_has_every_token_once(found: list[Answer]) -> None:
    rows = list(csv.reader(io.StringIO(to_csv(found, 0.0))))
    assert tuple(rows[0]) == CSV_COLUMNS
    seen: dict[str, list[float]] = {}
    for session_id, index, at, interactive in rows[1:]:
        times = seen.setdefault(session_id, [])
        assert int(index) == len(times)
        times.append(float(at))
        assert interactive == str(int(not session_id.startswith("s1")))
    for answer in found:
        expected = [round(1e3 * t, 3) for t in answer.times_s]
        assert seen.pop(answer.session_id, []) == expected
    assert not seen


@quick
@given(answers())
def test_lanes_and_streams_are_a_partition(found: list[Answer]) -> None:
    assert sorted(map(id, lane(found, True) + lane(found, False))) == sorted(map(id, found))
    streams = by_stream(found)
    assert [a for own in streams.values() for a in own] == found
    assert all(a.stream == name for name, own in streams.items() for a in own)


@quick
@given(st.integers(0, 1000), st.lists(st.integers(1, 40), min_size=2, max_size=30))
def test_prompts_repeat_with_the_seed_and_never_begin_alike(seed: int, sizes: list[int]) -> None:
    prompts, again = Prompts(seed), Prompts(seed)
    made = [prompts.words(n) for n in sizes]
    assert made == [again.words(n) for n in sizes]
    assert [len(text.split()) for text in made] == sizes
    assert len({text.split()[0] for text in made}) == len(made)
