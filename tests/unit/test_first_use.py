"""Every size of tick once before it is needed, in steps that somebody may end at any time."""

from __future__ import annotations

from umaserve.engine.start.measures import PROMPTS, ROWS, TIMES, meet_shapes
from umaserve.engine.start.probe import LONGEST_MS


class Ticks:
    """A device on which each token of a prompt takes ``token_ms``."""

    def __init__(self, token_ms: float) -> None:
        self.token_ms = token_ms
        self.measured: list[tuple[int, int]] = []

    def measure(self, rows: int, prompt: int) -> float:
        self.measured.append((rows, prompt))
        return rows + prompt * self.token_ms


def test_each_size_that_is_possible_is_met_as_often_as_a_graph_takes_to_be_kept() -> None:
    ticks, met = Ticks(0.01), set[tuple[int, int]]()
    for _ in meet_shapes(ticks, 8, 1024, met):
        pass
    assert met == {(n, 0) for n in ROWS if n <= 8} | {(0, n) for n in PROMPTS if n <= 1024}
    assert sorted(ticks.measured) == sorted(list(met) * TIMES)


def test_no_prompt_is_met_that_whoever_comes_would_wait_long_for() -> None:
    ticks, met = Ticks(LONGEST_MS / 100), set[tuple[int, int]]()
    for _ in meet_shapes(ticks, 1, 2048, met):
        pass
    assert max(prompt for _, prompt in met) == max(n for n in PROMPTS if n <= 100)


def test_what_was_begun_goes_on_where_it_was_left() -> None:
    ticks, met = Ticks(0.01), set[tuple[int, int]]()
    while len(met) < len(ROWS) + len(PROMPTS):
        before, steps = len(met), meet_shapes(ticks, 64, 2048, met)
        for _ in range(TIMES + 1):
            next(steps, None)
        steps.close()
        assert len(met) > before
    assert len(ticks.measured) <= (TIMES + 1) * len(met)
