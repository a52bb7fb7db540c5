"""Requests whose prompts are computed beside the ticks."""

from __future__ import annotations

from tests.support.engine_driver import DrivenEngine
from tests.support.oracle import Oracle
from umaserve.wire import messages as m
from umaserve.wire import table as t

BACK, FRONT = m.LANE_BACKGROUND, m.LANE_INTERACTIVE


GREEDY = m.Sampling(temperature=0.0, ignore_eos=True)


SHORT = "def fibonacci(n):"


_STEP = "def step_{0}(value):\n    if value > {0}:\n        return value * {0}\n"


STREAM_TOKENS = 400  # long enough that a prompt is computed beside it


def text(steps: int, first: int = 1) -> str:
    """About 24 tokens for each step; another ``first`` makes another text."""
    return "".join(_STEP.format(i) for i in range(first, first + steps))


LONG = text(60)


class Asked:
    """Requests to one engine, and what each was."""

    def __init__(self, engine: DrivenEngine, oracle: Oracle) -> None:
        self.engine, self.oracle = engine, oracle
        self.prompts: dict[int, str] = {}

    def put(self, prompt: str, lane: int, max_tokens: int) -> int:
        if lane == FRONT:  # as the front does, which says first that somebody is coming
            self.engine.table.abort.urgent += 1
        serial = self.engine.submit(prompt, lane=lane, max_tokens=max_tokens, sampling=GREEDY)
        self.prompts[serial] = prompt
        return serial

    def stream(self) -> int:
        """Somebody interactive, who decodes by now, and began long before those to come."""
        serial = self.put(SHORT, FRONT, STREAM_TOKENS)
        self.engine.wait(serial, n_tokens=3)
        self.engine.table.t_first_ns[self.engine.slots[serial]] -= 2 * 10**9
        return serial

    def all_right(self, *cancelled: int) -> None:
        """Wait for all; each got every token that it asked for, and the right ones."""
        for serial, prompt in self.prompts.items():
            self.engine.wait(serial)
            cancels = serial in cancelled and self.engine.reason(serial) == t.REASON_CANCEL
            tokens = self.engine.generated(serial)
            if not cancels:
                assert self.engine.reason(serial) == t.REASON_LENGTH
            if tokens:
                self.oracle.assert_followed(prompt, tokens)
            else:
                assert cancels
            self.engine.release(serial)
        self.prompts.clear()
        table = self.engine.table
        assert not table.in_tick.any()
        assert not (table.state == t.RUNNING).any()

    def aside(self) -> int:
        return self.engine.table.header.aside_tokens

    def n_past(self, serial: int) -> int:
        return int(self.engine.table.n_past[self.engine.slots[serial]])

    def n_prompt(self, serial: int) -> int:
        return len(self.engine.prompt_tokens(serial))
