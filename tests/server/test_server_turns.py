"""Fair turns: whoever asks for much waits behind whoever asks for little."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from umaserve.server.requests.queue.turns import Line, Turn, Turns

PROGRAMS = st.sampled_from("abc")


def test_a_flood_goes_behind_who_comes_later() -> None:
    turns = Turns()
    flood = [turns.take("greedy") for _ in range(400)]
    for turn in flood[:8]:
        turns.begin(turn)
    late = turns.take("late")
    assert flood[7].at < late.at <= flood[8].at


def test_apps_of_a_program_share_its_turns() -> None:
    turns = Turns()
    flood = [turns.take("key", 16, f"app {n % 3}") for n in range(9)]
    for turn in flood[:3]:
        turns.begin(turn)
    other = turns.take("other", 16)
    late = turns.take("key", 16, "editor")
    assert flood[2].at < late.at < flood[3].at  # behind what has begun
    # a fourth app gives the program no more: its other apps go back by what it takes
    assert [late.at, *(turn.at for turn in flood[3:])] == [49 + 16 * n for n in range(7)]
    assert other.at == 34
    turns.leave(late)
    assert [turn.at for turn in flood[3:]] == [49 + 16 * n for n in range(6)]


def test_an_app_that_costs_more_goes_less_often() -> None:
    turns = Turns()
    long = [turns.take("key", 64, "reader") for _ in range(2)]
    short = [turns.take("key", 16, "editor") for _ in range(5)]
    ordered = sorted([*long, *short], key=lambda turn: turn.at)
    assert ordered == [long[0], *short[:4], long[1], short[4]]
    assert [turn.at for turn in ordered] == [1, 65, 81, 97, 113, 129, 193]


def test_what_never_began_does_not_count() -> None:
    turns = Turns()
    first, waits = turns.take("editor"), turns.take("editor")
    for _ in range(30):
        turns.leave(turns.take("editor"))
    assert turns.take("editor").at == first.at + 2
    turns.leave(first)  # before others that wait
    assert waits.at == first.at


def test_a_program_that_holds_nothing_begins_anew() -> None:
    turns = Turns()
    for turn in [turns.take("greedy") for _ in range(50)]:
        turns.leave(turn)
    assert turns.take("greedy").at == turns.take("other").at


@given(st.lists(PROGRAMS, min_size=1, max_size=60))
def test_programs_that_always_have_work_get_equal_shares(arrivals: list[str]) -> None:
    """At any moment no program is more than one item ahead of another that waits."""
    turns, line = Turns(), Line[str]()
    for program in arrivals:
        line.add(turns.take(program), program)
    waiting, served = Counter(arrivals), Counter[str]()
    while (program := line.pop_first()) is not None:
        waiting[program] -= 1
        served[program] += 1
        for other in "abc":
            if waiting[other]:
                assert served[program] <= served[other] + 1
    assert served == Counter(arrivals) and not line


@given(st.lists(st.tuples(PROGRAMS, st.sampled_from("xyz")), min_size=1, max_size=60))
def test_apps_that_always_have_work_get_equal_parts(arrivals: list[tuple[str, str]]) -> None:
    """Of their program, whose share depends on nothing but the number of programs."""
    turns, line = Turns(), Line[tuple[str, str]]()
    held = [turns.take(program, app=app) for program, app in arrivals]
    for turn, who in zip(held, arrivals, strict=True):
        line.add(turn, who)
    left, apps, programs = Counter(arrivals), Counter[tuple[str, str]](), Counter[str]()
    while (who := line.first()) is not None:
        of_app = (held[i] for i, each in enumerate(arrivals) if each == who)
        turn = next(turn for turn in of_app if turn in line)
        line.remove(turn)
        turns.begin(turn)
        left[who] -= 1
        apps[who] += 1
        programs[who[0]] += 1
        for (program, app), waiting in left.items():
            if waiting and program == who[0]:
                assert apps[who] <= apps[program, app] + 1
            if waiting:
                assert programs[who[0]] <= programs[program] + 1
    assert apps == Counter(arrivals) and not line


def numbered(at: int) -> Turn:
    turn = Turn("", 1)
    turn.at = at
    return turn


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 5)), max_size=300))
def test_a_line_is_in_order_whatever_leaves_it(steps: list[tuple[bool, int, int]]) -> None:
    line, known = Line[int](), dict[int, Turn]()
    for comes, key, at in steps:
        if key in known:
            line.remove(known.pop(key))
        if comes:
            known[key] = numbered(at)
            line.add(known[key], key)
        best = min(known, key=lambda key: known[key].at, default=None)
        assert line.first() == best
        assert len(line) == len(known) and set(line) == set(known)
