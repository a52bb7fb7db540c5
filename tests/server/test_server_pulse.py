"""What counts as an engine's life: nothing that the front does itself."""

from __future__ import annotations

import pytest

from umaserve.server.engines.pulse import EnginePulse
from umaserve.wire.header import Header

SECOND = 1_000_000_000
HOUR = 3600 * SECOND


@pytest.fixture
def header() -> Header:
    """Of an engine that slept for an hour before the first second of a test."""
    header = Header.fresh()
    header.ticks = 1
    header.heartbeat_ns = 5 * SECOND
    return header


def test_the_oldest_message_counts_and_not_the_newest(header: Header) -> None:
    pulse = EnginePulse(floor_s=10.0)
    hung = []
    for second in range(15):
        now_ns = HOUR + second * SECOND
        pulse.sent(now_ns)
        hung.append(pulse.hangs(header, now_ns, busy=True))
    assert hung == [False] * 11 + [True] * 4


def test_an_engine_that_slept_long_has_its_time_from_the_message_on(header: Header) -> None:
    pulse = EnginePulse(floor_s=10.0)
    assert not pulse.hangs(header, HOUR, busy=False)
    pulse.sent(HOUR)
    assert not pulse.hangs(header, HOUR + 9 * SECOND, busy=True)
    header.handled = 1  # and the first tick is not there yet
    assert not pulse.hangs(header, HOUR + 11 * SECOND, busy=True)
    assert not pulse.hangs(header, HOUR + 20 * SECOND, busy=True)
    assert pulse.hangs(header, HOUR + 22 * SECOND, busy=True)


def test_messages_that_are_handled_late_are_no_hang(header: Header) -> None:
    """Each waits longer than the limit, and one after the other is handled."""
    pulse = EnginePulse(floor_s=10.0)
    for _ in range(5):
        pulse.sent(HOUR)
    for handled in range(1, 6):
        header.handled = handled
        assert not pulse.hangs(header, HOUR + handled * 9 * SECOND, busy=False)
    assert not pulse.hangs(header, 2 * HOUR, busy=False)


@pytest.mark.parametrize("word", ["text_since_ns", "other_text_since_ns"])
def test_an_answer_that_a_thread_owes_counts_beside_ticks_that_go_on(
    header: Header, word: str
) -> None:
    pulse = EnginePulse(floor_s=10.0)
    for second, hangs in ((5, False), (11, True)):
        now_ns = HOUR + second * SECOND
        header.heartbeat_ns = now_ns
        setattr(header, word, HOUR)
        assert pulse.hangs(header, now_ns, busy=True) == hangs
