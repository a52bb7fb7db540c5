"""What is held for a next turn, whose it is, how long; and where states are saved on the way."""

from __future__ import annotations

import numpy as np
import pytest

from umaserve.cache import next_turn as n
from umaserve.cache.whole import APART, GENERATION, LEAST_NEW, NEAR, checkpoints

TEXT = np.arange(500, dtype=np.int32)
END = 9999
ENDS = np.array([END], np.int32)


def held(**of_text) -> n.NextTurns:
    """Texts by name: sequences 1, 2, … hold them."""
    turns = n.NextTurns()
    for seq, (domain, tokens) in enumerate(of_text.values(), start=1):
        turns.hold(seq, n.Ended(domain, 0, tokens, 300, float(seq)))
    return turns


def test_a_turn_is_found_by_the_whole_of_its_last_prompt():
    turns = held(one=("a", TEXT[:400]))
    assert turns.find("a", TEXT) == (1, 400)
    other = TEXT.copy()
    other[350] = 1  # the answer is written otherwise, the prompt is the same
    assert turns.find("a", other) == (1, 350)
    other[300 - n.REWRITTEN] = 1
    assert turns.find("a", other) == (1, 300 - n.REWRITTEN)
    other[300 - n.REWRITTEN - 1] = 1  # somebody else's, with the same system prompt
    assert turns.find("a", other) == (-1, 0)
    assert turns.find("a", TEXT[:200]) == (-1, 0)


def test_nobody_finds_what_is_of_another_domain():
    turns = held(one=("a", TEXT[:400]), two=("a\0session", TEXT))
    assert turns.find("b", TEXT) == (-1, 0)
    assert turns.find("", TEXT) == (-1, 0)
    assert turns.find("a\0session", TEXT) == (2, 500)
    assert turns.find("a", TEXT) == (1, 400)


def test_the_longest_is_found_and_what_is_gone_is_not():
    turns = held(one=("a", TEXT[:350]), two=("a", TEXT[:450]), three=("a", TEXT[:400]))
    assert turns.find("a", TEXT) == (2, 450)
    turns.came(2)
    assert turns.find("a", TEXT) == (3, 400)
    turns.drop(3)
    assert (len(turns), turns.cells, turns.size(1), turns.size(2)) == (1, 350, 350, 0)
    assert turns.clear() == [1] and not turns and turns.cells == 0


def test_a_prompt_that_ended_before_it_was_computed_counts_as_far_as_it_came():
    turns = n.NextTurns()
    turns.hold(1, n.Ended("a", 0, TEXT[:100], 300, 0.0))
    assert turns.find("a", TEXT) == (1, 100)
    turns.hold(2, n.Ended("a", 0, TEXT[: n.FEWEST - 1], 300, 0.0))
    turns.drop(1)
    assert turns.find("a", TEXT) == (-1, 0)


@pytest.mark.parametrize(
    ("running", "room", "late_s", "overdue"),
    [
        (0, 10**6, 0.0, -1),
        (0, 10**6, n.HOLD_S + 0.1, 1),  # nobody came
        (0, 799, 0.0, 1),  # rows need the cells
        (0, 800, 0.0, -1),
        (0, -5, 0.0, 1),
    ],
)
def test_what_is_in_the_way_or_old_goes(running, room, late_s, overdue):
    turns = held(one=("a", TEXT[:400]), two=("a", TEXT[:400]))
    assert turns.overdue(running, room, 1.0 + late_s) == overdue


def test_no_more_is_held_than_half_of_what_runs_but_always_a_little():
    turns = n.NextTurns()
    many = np.zeros(n.FEW_CELLS, np.int32)
    turns.hold(1, n.Ended("a", 0, many, 1, 0.0))
    assert turns.overdue(0, 10**6, 0.0) == -1
    turns.hold(2, n.Ended("a", 0, many, 1, 0.0))
    assert turns.overdue(3 * n.FEW_CELLS, 10**6, 0.0) == 1
    assert turns.overdue(4 * n.FEW_CELLS, 10**6, 0.0) == -1


def test_a_program_without_next_turns_is_hardly_ever_held_until_it_has_some():
    turns = n.NextTurns()
    seen = [turns.is_worth(7) for _ in range(100)]
    assert all(seen[:8]) and sum(seen[20:]) == 80 // n.TRY_EACH
    assert turns.is_worth(8)  # another program
    for seq in range(8):
        turns.hold(seq, n.Ended("a", 7, TEXT, 300, 0.0))
        turns.came(seq)
    assert turns.is_worth(7)
    for program in range(1000):
        turns.is_worth(program)
    assert len(turns._shares) <= n.PROGRAMS + 1


def asked(turns: n.NextTurns, program: int) -> bool:
    """A request ends, and where it is held its next turn comes; whether it was held."""
    if not turns.is_worth(program):
        return False
    turns.hold(1, n.Ended("a", program, TEXT, 300, 0.0))
    turns.came(1)
    return True


def test_a_program_that_has_next_turns_again_is_held_again():
    turns = n.NextTurns()
    for _ in range(50):
        turns.is_worth(7)
    held = [asked(turns, 7) for _ in range(200)]
    assert not all(held[:8]) and all(held[100:])


def test_each_program_is_tried_whoever_else_asks():
    turns = n.NextTurns()
    for _ in range(50):
        turns.is_worth(7), turns.is_worth(8)
    held = [(turns.is_worth(7), turns.is_worth(8)) for _ in range(80)]
    assert [sum(each) for each in zip(*held, strict=True)] == [80 // n.TRY_EACH] * 2


def prompt(size: int, *behind: int) -> np.ndarray:
    """A prompt with messages that end so."""
    tokens = np.arange(size, dtype=np.int32)
    tokens[[at - 1 for at in behind]] = END
    return tokens


def seen(size: int, start: int, end: int) -> np.ndarray:
    """A prompt with a message that ends at 100, and a picture at tokens [start, end)."""
    tokens = prompt(size, 100)
    tokens[start:end] = -9
    return tokens


@pytest.mark.parametrize(
    ("tokens", "known", "expected"),
    [
        (prompt(500), 0, [500 - NEAR]),
        (prompt(500, 100, 300, 495), 0, [100, 495]),
        (prompt(500, 100, 300, 500 - GENERATION), 0, [100, 500 - GENERATION]),
        (prompt(500, 100, 435), 0, [100, 435, 500 - NEAR]),  # behind it a long message
        (prompt(500, 495), 0, [495]),
        (prompt(500, 500), 0, []),  # nothing is left to compute behind it
        (prompt(500, 100, 495), 100, [495]),  # known already
        (prompt(500, 100, 495), 101 - APART, [495]),
        (prompt(500, 100, 495), 100 - APART, [100, 495]),
        (prompt(500, 100, 495), 501 - LEAST_NEW, []),
        (seen(500, 300, 500 - NEAR - 1), 0, [100, 500 - NEAR]),
        (seen(500, 300, 500 - NEAR), 0, [100]),  # a state right behind a picture
        (seen(500, 300, 500 - NEAR + 1), 0, [100]),
        (prompt(LEAST_NEW - 1), 0, []),
        (prompt(0), 0, []),
    ],
)
def test_states_are_saved_behind_messages_and_near_the_end(tokens, known, expected):
    assert checkpoints(tokens, ENDS, known) == expected
