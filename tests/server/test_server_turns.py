"""Fair turns: whoever asks for much waits behind whoever asks for little."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from umaserve.server.requests.turns import Line, Turns

PROGRAMS = st.sampled_from("abc")


def test_a_flood_goes_behind_who_comes_later() -> None:
    turns = Turns()
    flood = [turns.take("greedy") for _ in range(400)]
    for turn in flood[:8]:
        turns.begin(turn)
    late = turns.take("late")
    assert flood[7] < late <= flood[8]


def test_what_never_began_does_not_count() -> None:
    turns = Turns()
    first = turns.take("editor")
    for _ in range(30):
        turns.take("editor")
        turns.leave("editor", begun=False)
    assert turns.take("editor") == first + 1


def test_a_program_that_holds_nothing_begins_anew() -> None:
    turns = Turns()
    for _ in range(50):
        turns.take("greedy")
    for _ in range(50):
        turns.leave("greedy", begun=False)
    assert turns.take("greedy") == turns.take("other")


@given(st.lists(PROGRAMS, min_size=1, max_size=60))
def test_programs_that_always_have_work_get_equal_shares(arrivals: list[str]) -> None:
    """At any moment no program is more than one item ahead of another that waits."""
    turns, line = Turns(), Line[str]()
    for key, program in enumerate(arrivals):
        line.add(key, turns.take(program), program)
    waiting, served = Counter(arrivals), Counter[str]()
    keys = {program: [k for k, p in enumerate(arrivals) if p == program] for program in "abc"}
    while (program := line.first()) is not None:
        line.remove(keys[program].pop(0))
        waiting[program] -= 1
        served[program] += 1
        for other in "abc":
            if waiting[other]:
                assert served[program] <= served[other] + 1
    assert served == Counter(arrivals) and not line


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 5)), max_size=300))
def test_a_line_is_in_order_whatever_leaves_it(steps: list[tuple[bool, int, int]]) -> None:
    line, known = Line[int](), dict[int, int]()
    for comes, key, turn in steps:
        if comes:
            line.add(key, turn, key)
            known[key] = turn
        else:
            line.remove(key)
            known.pop(key, None)
        best = min(((turn, key) for key, turn in known.items()), default=(0, None))
        assert line.first() == best[1]
        assert len(line) == len(known) and set(line) == set(known)
        assert len(line._order) <= 64 + 2 * len(known) + 1
