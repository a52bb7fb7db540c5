"""The benchmark's figures, verdict, remarks and table, from made-up runs."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.bench_results import ORIGIN_S, made, samples
from tests.support.bench_results import answer as answer_of
from tests.support.fixtures.untimed import untimed
from umaserve.bench.desk import Waits, _waits
from umaserve.bench.figures import (
    Others,
    accepted_share,
    compositions,
    figures,
    last_minute,
    others,
    prompt_rate,
)
from umaserve.bench.load import Sample
from umaserve.bench.report.table import COLUMNS, rows, shown, text, unlabelled_text, verdict_text
from umaserve.bench.result import CAP, PACE, Verdict
from umaserve.bench.timeline import Answer, Phase

quick = settings(untimed, max_examples=40)
COUNTERS = (
    "batch_calls_total", "tokens_generated_total", "prompt_tokens_computed_total",
    "aside_prompt_tokens_total", "uptime_s",
)  # fmt: skip


def nearest_rank(values: list[float], q: float) -> float:
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


GAPS = st.lists(st.integers(1, 500), min_size=1, max_size=60)


@quick
@given(GAPS, GAPS, st.floats(1, 3))
def test_the_verdict_is_p95_over_p95_against_the_cap(
    alone: list[int], mixed: list[int], cap: float
) -> None:
    verdict = made(alone, mixed, cap=cap).verdict  # type: ignore[arg-type]
    assert verdict is not None and verdict.limit == cap
    expected = nearest_rank(mixed, 0.95) / nearest_rank(alone, 0.95)  # type: ignore[arg-type]
    assert math.isclose(verdict.value, expected, rel_tol=1e-6)
    assert verdict.held == (round(verdict.value, 2) <= round(cap, 2))


@quick
@given(GAPS, GAPS, st.integers(2, 9))
def test_the_verdict_does_not_know_how_fast_the_machine_is(
    alone: list[int], mixed: list[int], factor: int
) -> None:
    slow = made([factor * ms for ms in alone], [factor * ms for ms in mixed]).verdict
    fast = made(alone, mixed).verdict  # type: ignore[arg-type]
    assert slow is not None and fast is not None
    assert math.isclose(slow.value, fast.value, rel_tol=1e-6)


@quick
@given(GAPS, GAPS, st.integers(0, 3))
def test_background_answers_are_not_part_of_the_verdict(
    alone: list[int], mixed: list[int], jobs: int
) -> None:
    without, beside = made(alone, mixed), made(alone, mixed, background=jobs)  # type: ignore[arg-type]
    assert without.verdict == beside.verdict
    assert without.figures["mixed"].p99_ms == beside.figures["mixed"].p99_ms
    rate = beside.figures["mixed"].background_tokens_per_s
    assert (rate > 0) == (jobs > 0)


@quick
@given(GAPS, st.integers(1, 60), st.randoms(use_true_random=False))
def test_one_slow_token_more_never_helps(gaps: list[int], ms: int, rng: random.Random) -> None:
    worse = [*gaps, max(gaps) + ms]
    rng.shuffle(worse)
    before, after = made([10], gaps).verdict, made([10], worse).verdict  # type: ignore[arg-type]
    assert before is not None and after is not None and after.value >= before.value - 1e-9


def test_at_the_cap_it_is_held_and_above_it_is_not() -> None:
    assert Verdict(CAP, 1.2, 1.2).held and not Verdict(CAP, 1.21, 1.2).held
    held, missed = made([10.0] * 100, [11.0] * 100), made([10.0] * 100, [13.0] * 100)
    assert verdict_text(held).startswith("cap held: ") and "1.10 times" in verdict_text(held)
    assert verdict_text(missed).startswith("CAP MISSED: ") and "1.30 times" in verdict_text(missed)


@quick
@given(st.floats(0.5, 3), st.floats(1, 3))
def test_the_sentence_never_contradicts_its_own_figures(ratio: float, cap: float) -> None:
    result = made([100.0] * 100, [100.0 * ratio] * 100, cap=cap)
    shown_ratio = float(re.findall(r"([\d.]+) times that alone", verdict_text(result))[0])
    assert ("cap held" in verdict_text(result)) == (shown_ratio <= float(f"{cap:.2f}"))


@quick
@given(st.floats(0.5, 3), st.floats(1, 3), st.floats(1, 400))
def test_the_pace_never_contradicts_its_own_figures(
    ratio: float, cap: float, reading_ms: float
) -> None:
    result = made([100.0] * 100, [100.0 * ratio] * 100, cap=cap)
    result.daemon["reading_ms"] = reading_ms
    ten, promised = map(float, re.findall(r"([\d.]+) ms (?:each|are)", unlabelled_text(result)))
    assert ("pace held" in unlabelled_text(result)) == (ten <= promised)
    assert promised == pytest.approx(max(reading_ms, 100 * cap, 200), abs=0.051)


def test_as_much_as_the_cap_to_the_last_digit_shown_is_held() -> None:
    result = made([100.0] * 100, [120.4] * 100)
    assert "cap held: " in verdict_text(result) and "is 1.20 times" in verdict_text(result)
    assert result.to_json()["verdict"]["ratio"] == 1.2
    assert not made([100.0] * 100, [120.6] * 100).verdict.held  # type: ignore[union-attr]


def test_a_cap_missed_beside_others_is_not_judged() -> None:
    missed = made([10.0] * 200, [13.0] * 200, used_by_others=0.4)
    verdict = missed.verdict
    assert verdict is not None and not verdict.held and not verdict.missed
    assert verdict_text(missed).startswith("no verdict, others use these cores: the interactive")
    assert "1.30 times" in verdict_text(missed) and "the cap is 1.20" in verdict_text(missed)
    slow = made([10.0] * 200, [13.0] * 200, unlabelled_ms=[30.0] * 200, used_by_others=0.4)
    assert "no verdict, others use these cores: " in unlabelled_text(slow)
    assert any("Others use these cores: 40 %" in note for note in missed.notes)
    assert missed.to_json()["verdict"]["disturbed"] == "others use these cores"
    held = made([10.0] * 200, [11.0] * 200, used_by_others=0.4)
    assert verdict_text(held).startswith("cap held: ")
    assert any("Others use these cores" in note for note in held.notes)
    quiet = made([10.0] * 200, [13.0] * 200, used_by_others=0.05)
    assert verdict_text(quiet).startswith("CAP MISSED: ") and quiet.notes == []
    company = made([10.0] * 200, [13.0] * 200, found=samples(now=1))
    assert verdict_text(company).startswith("no verdict, others use this daemon: ")


def test_what_nobody_labels_is_judged_by_the_pace_of_a_reader() -> None:
    run = made([10.0] * 99 + [20.0], [11.0] * 100, unlabelled_ms=[14.0] * 99 + [70.0])
    assert run.verdict == Verdict(CAP, pytest.approx(1.1), 1.2)
    assert run.pace == Verdict(PACE, pytest.approx(19.6), 25.0) and run.pace.held
    assert unlabelled_text(run) == (
        "without labels: pace held: beside long prompts ten tokens took at most 19.6 ms each, "
        "25.0 ms are promised; the longest pause was 70.0 ms"
    )
    found = run.figures["unlabelled"]
    assert found.gaps == 100 and found.background_tokens_per_s > 0
    body = run.to_json()
    assert body["pace"] == {"held": True, "ten_ms": 19.6, "promised_ms": 25.0, "disturbed": None}
    assert list(body["phases"]) == ["alone", "mixed", "unlabelled"]
    slow = made([10.0] * 99 + [20.0], [11.0] * 100, unlabelled_ms=[14.0] * 90 + [40.0] * 10)
    assert unlabelled_text(slow).startswith("without labels: PACE MISSED: ")
    nothing = made([10.0] * 9, [11.0] * 9, unlabelled_ms=[])
    assert nothing.pace is None and "no verdict" in unlabelled_text(nothing)


def test_a_phase_without_a_second_token_has_no_verdict() -> None:
    result = made([10.0] * 5, [])
    assert result.verdict is None
    assert "no verdict" in verdict_text(result)
    assert result.to_json()["verdict"] is None
    assert text(result)


@quick
@given(GAPS)
def test_figures_are_counts_over_the_time(gaps: list[int]) -> None:
    run = made(gaps, [5.0], background=2)  # type: ignore[arg-type]
    found = run.figures["alone"]
    assert found.gaps == len(gaps)
    assert math.isclose(found.p50_ms or 0, nearest_rank(gaps, 0.5), rel_tol=1e-6)  # type: ignore[arg-type]
    assert math.isclose(found.p99_ms or 0, nearest_rank(gaps, 0.99), rel_tol=1e-6)  # type: ignore[arg-type]
    assert math.isclose(found.longest_ms or 0, max(gaps), rel_tol=1e-6)
    assert found.first_tokens == 1 and math.isclose(found.first_p50_ms or 0, 50, rel_tol=1e-6)
    assert math.isclose(found.interactive_tokens_per_s * found.seconds, len(gaps) + 1)
    mixed = run.figures["mixed"]
    assert mixed.tokens_per_s == mixed.interactive_tokens_per_s + mixed.background_tokens_per_s


@quick
@given(st.integers(100, 140), st.floats(0, 0.999), st.floats(1, 200))
def test_the_last_minute_is_the_daemons_window(now: int, part: float, uptime: float) -> None:
    times = [float(t) + 0.5 for t in range(20, 141)]
    seen = [Answer("s", "s.1", True, 20.0, [t for t in times if t <= now + part])]
    found = last_minute(seen, now + part, uptime)
    # of a latency: the running second and the 59 before it
    assert found.gaps == sum(int(t) > now - 60 for t in seen[0].times_s[1:])
    span = min(60.0, uptime)
    assert found.seconds == span
    counted = sum(now + part - span < t for t in seen[0].times_s)
    assert math.isclose(found.tokens_per_s * span, counted, rel_tol=1e-9, abs_tol=1e-9)


def test_an_unfinished_answer_is_no_latency_of_the_last_minute() -> None:
    seen = [Answer("s", "s.1", True, 0.0, [100.0, 100.1])]
    assert last_minute(seen, 105.0, 300.0).longest_ms == pytest.approx(100)
    assert figures(seen, Phase("p", 90.0, 105.0)).longest_ms == pytest.approx(4900)


def test_others_are_those_of_the_phase() -> None:
    seen = [
        Sample(float(i), {}, {}, int(i == 4), total)
        for i, total in enumerate([0, 1, 1, 1, 1, 3, 3])
    ]
    assert others(seen, Phase("before", 1.5, 3.5)) == Others(0, 0)
    assert others(seen, Phase("during", 3.5, 4.5)) == Others(1, 0)
    assert others(seen, Phase("after", 4.5, 9.0)) == Others(0, 2)
    assert not others(seen, Phase("never", 20.0, 30.0)).busy


def test_a_baseline_with_company_is_called_what_it_is() -> None:
    quiet = made([10.0] * 200, [11.0] * 200)
    assert quiet.notes == []
    at_once = made([10.0] * 200, [11.0] * 200, found=samples(now=2))
    assert "no clean baseline" in at_once.notes[0] and "up to 2 at once" in at_once.notes[0]
    assert any("mixed phase too" in note for note in at_once.notes)
    came = [s._replace(others_total=int(s.at_s > ORIGIN_S + 1)) for s in samples()]
    passed = made([10.0] * 200, [11.0] * 200, found=came)
    assert "at least 1 came" in passed.notes[0] and len(passed.notes) == 1


def test_few_times_and_two_clocks_that_disagree_are_said() -> None:
    few = made([10.0] * 20, [11.0] * 200)
    assert len(few.notes) == 1 and "only 20" in few.notes[0]
    near = {"p95_ms": 11.25, "p99_ms": 11.0}
    assert made([10.0] * 200, [11.0] * 200, daemon=near).notes == []
    far = made([10.0] * 200, [11.0] * 200, daemon={"p95_ms": 8.0, "p99_ms": 11.0})
    assert len(far.notes) == 1 and "8.00 ms" in far.notes[0] and "11.00 ms" in far.notes[0]


@quick
@given(st.lists(st.tuples(*[st.integers(0, 50)] * 4), min_size=2, max_size=12))
def test_the_composition_of_the_ticks_adds_up(steps: list[tuple[int, int, int, int]]) -> None:
    at = [0, 0, 0, 0]
    seen = []
    for i, (ticks, rows_, prompt, aside) in enumerate(steps):
        at = [at[0] + ticks, at[1] + rows_, at[2] + prompt + aside, at[3] + aside]
        metrics = dict(zip(COUNTERS, [*at, 0.5 * i], strict=True))
        seen.append(Sample(0.5 * i, metrics, {}, 0, 0))
    found = compositions(seen)
    assert len(found) == len(steps) - 1
    for part, (ticks, rows_, prompt, aside) in zip(found, steps[1:], strict=True):
        expected = (rows_, prompt, aside) if ticks else (0, 0, 0)
        real = [round(n * ticks) for n in (part.decode, part.prompt, part.aside)]
        assert real == list(expected)
        assert part.mean_ms is None


def test_prompt_tokens_are_counted_over_the_daemons_own_time() -> None:
    assert prompt_rate(samples(), Phase("p", ORIGIN_S + 1.9, ORIGIN_S + 8.1)) == pytest.approx(24)
    assert prompt_rate(samples(), Phase("p", ORIGIN_S + 1.9, ORIGIN_S + 2.1)) is None


def test_accepted_drafts_are_those_of_the_phase() -> None:
    seen = samples()
    for i, sample in enumerate(seen):
        sample.metrics.update(draft_tokens_total=500 + 8 * i, draft_accepted_total=3 * i)
    phase = Phase("p", ORIGIN_S + 1.9, ORIGIN_S + 8.1)
    assert accepted_share(seen, phase) == pytest.approx(37.5)
    assert accepted_share(samples(), phase) is None  # a daemon that knows nothing of them
    assert accepted_share(seen, Phase("p", ORIGIN_S + 1.9, ORIGIN_S + 2.1)) is None


def test_the_table_fits_eighty_columns_whatever_the_numbers() -> None:
    daemon = {
        "p95_ms": 123456.789, "tokens_per_s": 98765.4, "rss_gb": None, "copy_free_ratio": 1.0,
        "ttft_ms_p50": 0.0123,
    }  # fmt: skip
    result = made([1e5] * 3, [2e5] * 3, daemon=daemon)  # type: ignore[arg-type]
    lines = text(result).splitlines()
    assert max(map(len, lines)) <= 80
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split() == list(COLUMNS)
    found = {row.name: row.cells for row in rows(result)}
    assert found["p95 over its baseline"][1:3] == ("2.00", "-")
    assert found["time between tokens, p95"] == (
        "100,000", "200,000", "200,000", "200,000", "123,457",
    )  # fmt: skip
    assert found["memory (RSS)"] == ("-", "-", "-", "-", "-")
    assert found["first token, p50"][4] == "0.012"


@quick
@given(st.floats(0, 1e6))
def test_shown_numbers_are_near_what_they_stand_for(value: float) -> None:
    back = float(shown(value).replace(",", ""))
    assert abs(back - value) <= max(0.0005, 0.051 * value if value < 0.1 else 0.005 * value + 0.005)


def test_the_json_is_json_and_says_what_the_table_says() -> None:
    result = made([10.0] * 120, [11.0] * 120, background=1)
    body = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert body["verdict"] == {
        "held": True, "ratio": 1.1, "cap": 1.2, "disturbed": None,
    }  # fmt: skip
    assert body["phases"]["mixed"]["p95_ms"] == pytest.approx(11.0)
    assert body["phases"]["alone"]["begin_ms"] == 0
    assert body["streams"] == [
        {"stream": "interactive1", "alone_gaps": 120, "mixed_gaps": 120,
         "alone_p95_ms": pytest.approx(10), "mixed_p95_ms": pytest.approx(11)}
    ]  # fmt: skip
    assert body["phases"]["alone"]["own_first_tokens_ms"] == [pytest.approx(50)]
    assert len(body["ticks"]) == 39 and body["ticks"][3]["decode"] == 3.0
    assert body["command"] == "umaserve bench"


def test_short_requests_after_the_phases_are_no_streams() -> None:
    result = made([10.0] * 5, [11.0] * 5)
    late = Answer("short1", "short1.1", True, result.mixed.end_s + 1, [result.mixed.end_s + 2])
    again = replace(result, answers=[*result.answers, late], notes=[])
    assert [s.stream for s in again.streams] == ["interactive1"]


def test_a_desk_compares_each_program_with_itself_alone() -> None:
    """An answer that was left when its program's time alone ended is not silent at the desk."""
    alone, desk = Phase("desk", ORIGIN_S, ORIGIN_S + 5), Phase("desk", ORIGIN_S + 8, ORIGIN_S + 20)
    answers = []
    for begin_s, times in ((alone.begin_s, 1), (desk.begin_s, 3)):
        answers += [
            answer_of("chat1", [10.0 * times] * 30, begin_s),
            answer_of("editor1", [1.0] * 15, begin_s, first_ms=35.0 * times),
            answer_of("agent1", [2.0] * 20, begin_s, first_ms=100.0 * times),
            answer_of("documents1", [2.0] * 20, begin_s, interactive=False),
        ]
        answers[-3].end_s = answers[-3].times_s[-1]
    phases = dict.fromkeys(("chat", "editor", "agent"), alone)
    quiet, busy = _waits(answers, phases), _waits(answers, dict.fromkeys(phases, desk))
    assert busy["chat's longest gap"] <= 1e3 * desk.seconds
    for found, times in ((quiet, 1), (busy, 3)):
        assert found["chat's gap p50"] == pytest.approx(10.0 * times)
        assert found["editor's completion p50"] == pytest.approx(15.0 + 35.0 * times)
        assert found["agent's first token p50"] == pytest.approx(100.0 * times)
    result = made([10.0] * 3, [10.0] * 3)
    result.desk = {"chat's gap p95": Waits(4.0, 6.0), "agent's first token p50": Waits(None, 2.0)}
    shown_rows = {row.name: row.cells for row in rows(result)}
    assert shown_rows["desk: chat's gap p95"] == ("-", "-", "1.50", "-", "-")
    assert shown_rows["desk: agent's first token p50"] == ("-",) * 5
    assert result.to_json()["desk"]["chat's gap p95"] == {
        "alone_ms": 4.0, "desk_ms": 6.0, "ratio": 1.5,
    }  # fmt: skip
