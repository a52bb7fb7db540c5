"""The figures of the benchmarks of a desk: gaps that a reader feels, waits that were cut short."""

from __future__ import annotations

import math

import pytest

from benchmarks.price_parts import answered_rate, over_alone
from benchmarks.programs import AGENTS, CHAT, EDITOR, by_program, largest_mean_of_ten, waits_ms
from benchmarks.timeline import Phase, Session
from benchmarks.web import Caller, Server


def session(name: str, sent: float, times: list[float], end: float | None = None) -> Session:
    return Session(name, True, sent, times, end, prompt_tokens=100)


def test_the_largest_mean_of_ten_is_of_gaps_that_follow_one_another() -> None:
    assert largest_mean_of_ten([5.0] * 10) == 5.0
    assert largest_mean_of_ten([1.0] * 8 + [50.0] * 2 + [1.0] * 8) == pytest.approx(10.8)
    assert largest_mean_of_ten([50.0, *[1.0] * 20, 50.0]) == pytest.approx(5.9)
    assert math.isnan(largest_mean_of_ten([5.0] * 9))


def test_a_wait_that_the_end_cut_short_counts_only_where_it_is_long() -> None:
    done = session(CHAT, 0.0, [0.1], 0.2)
    assert waits_ms(Phase("", 0, 2, [done, session(CHAT, 1.95, [])])) == [pytest.approx(100)]
    assert waits_ms(Phase("", 0, 2, [done, session(CHAT, 1.0, [])])) == [
        pytest.approx(100),
        pytest.approx(1000),
    ]
    assert waits_ms(Phase("", 0, 2, [session(CHAT, 0.5, [])])) == [pytest.approx(1500)]


def test_the_agents_have_their_figures_together_and_the_editor_its_completions() -> None:
    found = by_program(
        Phase("", 0.0, 2.0, [
            *(session(name, 0.0, [0.2, 0.3], 0.4) for name in AGENTS),
            session(EDITOR, 0.0, [0.05], 0.1),
            session(EDITOR, 0.4, [0.5]),
            session(EDITOR, 0.8, [0.9], 0.95),
            session(EDITOR, 1.8, []),  # the end came sooner than the next key
        ])
    )  # fmt: skip
    assert found["agents"]["finished"] == 2
    assert found["agents"]["first_p50_ms"] == pytest.approx(200)
    assert found["agents"]["tokens"] == 4
    assert found[EDITOR] == {
        "finished": 2, "asked": 4, "answer_p50_ms": pytest.approx(125),
        "waited_p50_ms": pytest.approx(150),
    }  # fmt: skip


def test_a_prompt_counts_for_the_part_of_its_time_that_was_watched() -> None:
    answered = [session("a", 0.0, [2.0], 2.0), session("a", 2.0, [4.0], 4.0)]
    assert answered_rate(answered, 1.0, 3.0) == pytest.approx(50)
    assert answered_rate([session("a", 1.0, [])], 0.0, 4.0) == 0


def test_both_servers_are_asked_the_same() -> None:
    ours, theirs = (Caller(Server(name, 0, None), 7) for name in ("a", "b"))
    text = ours.documents("chat").words(20)
    assert text == theirs.documents("chat").words(20)
    assert text != ours.documents("agent1").words(20)
    assert text != Caller(ours.server, 8).documents("chat").words(20)


@pytest.mark.parametrize(("beside", "alone"), [(20.0, 0.0), (20.0, math.nan), (math.nan, 10.0)])
def test_a_stream_without_gaps_has_no_ratio_and_says_so(
    beside: float, alone: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """All tokens came at once, or it ended with its first."""
    assert over_alone(beside, alone, "umaserve") == {}
    assert "umaserve: the stream had no time between its tokens" in capsys.readouterr().err
    assert over_alone(20.0, 10.0, "umaserve") == {"p95_over_alone": 2.0}
