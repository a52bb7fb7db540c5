"""The rules of blame, by simulation: the culprit gets the error, and nobody else does."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.server.engines.blame import ASKED, FAULT, KILLED, Record, judge, kind_of_exit


def test_kinds_of_exit() -> None:
    for number in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
        assert kind_of_exit(-number, asked=False, hung=False) == FAULT
    assert kind_of_exit(1, asked=False, hung=False) == FAULT
    assert kind_of_exit(-signal.SIGKILL, asked=False, hung=False) == KILLED
    assert kind_of_exit(-signal.SIGKILL, asked=True, hung=True) == FAULT
    assert kind_of_exit(0, asked=True, hung=False) == ASKED


def test_two_faults_alone_are_enough() -> None:
    record = Record()
    assert judge(FAULT, [record], []) == []
    assert record.isolate
    assert judge(FAULT, [record], []) == [record]


def test_two_strikes_in_company_are_not_enough() -> None:
    pair = [Record(), Record()]
    assert judge(FAULT, pair, []) == []
    assert judge(FAULT, pair, []) == []
    assert judge(FAULT, pair[:1], pair[1:]) == [pair[0]]


@pytest.mark.parametrize("alone", [True, False])
def test_five_kills_from_outside_error_nobody(alone: bool) -> None:
    records = [Record() for _ in range(1 if alone else 4)]
    for _ in range(5):
        assert judge(KILLED, records, []) == []
    assert not any(r.isolate or r.crashes for r in records)


def test_crashes_without_suspects_end_in_the_end() -> None:
    records = [Record(), Record()]
    for _ in range(5):
        assert judge(FAULT, [], records) == []
    assert judge(FAULT, [], records) == records


def test_being_asked_to_leave_blames_nobody() -> None:
    record = Record(strikes=1)
    assert judge(ASKED, [record], []) == []
    assert record.strikes == 1


@given(st.integers(1, 12), st.integers(0, 11), st.lists(st.booleans(), max_size=8))
def test_only_the_culprit_gets_the_error(n_rows: int, culprit: int, kills: list[bool]) -> None:
    """One row aborts whenever it is decoded; rows in isolation decode alone, in turn."""
    culprit %= n_rows
    rows = {i: Record() for i in range(n_rows)}
    kills = list(kills)
    fatal_ticks = 0
    while culprit in rows and fatal_ticks < 10:
        if kills and kills.pop():
            assert not judge(KILLED, list(rows.values()), [])
        isolated = [i for i in rows if rows[i].isolate]
        batch = [isolated[0]] if isolated else list(rows)
        if culprit in batch:
            fatal_ticks += 1
            others = [rows[i] for i in rows if i not in batch]
            ended = judge(FAULT, [rows[i] for i in batch], others)
            for i in [i for i in rows if rows[i] in ended]:
                assert i == culprit
                del rows[i]
        else:
            rows[batch[0]].absolve()
    assert culprit not in rows
    assert fatal_ticks <= 3
    assert set(rows) == set(range(n_rows)) - {culprit}
