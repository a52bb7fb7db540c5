"""Rows whose contexts are shifted, as the front sees them."""

from __future__ import annotations

from tests.support.engine_driver import DrivenEngine
from tests.support.waiting import until
from umaserve.wire import messages as m
from umaserve.wire import table as t

SIZE = 256  # tokens of one session's context
GREEDY = m.Sampling(temperature=0.0, ignore_eos=True)


class Row:
    """A request whose context may be shifted, as the front sees it: all of its tokens."""

    def __init__(
        self, engine: DrivenEngine, prompt: str, max_tokens: int, kept: int = 0, **fields
    ) -> None:
        self.engine, self.kept, self.max_tokens = engine, kept, max_tokens
        fields.setdefault("sampling", GREEDY)
        self.serial = engine.submit(prompt, max_tokens=max_tokens, shifts=True, **fields)
        self.slot = engine.slots[self.serial]
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.dropped = self.shifts = 0
        self.prompt: list[int] = []

    def has_ended(self) -> bool:
        state, table = int(self.engine.table.state[self.slot]), self.engine.table
        return table.serial[self.slot] == self.serial and state in (t.DONE, t.FULL)

    def until_full(self, timeout: float = 60) -> None:
        until(self.has_ended, timeout)
        self.read()

    def read(self) -> None:
        """Take what is new in the row."""
        table, n = self.engine.table, int(self.engine.table.n_tokens[self.slot])
        if not self.prompt:
            self.prompt = table.tokens[self.slot, : int(table.n_prompt[self.slot])].tolist()
        stored = len(self.prompt) + len(self.tokens) - self.dropped
        self.tokens += table.tokens[self.slot, stored:n].tolist()
        self.logprobs += table.logprob[self.slot, stored:n].tolist()

    def shift(self, wait: bool = True) -> None:
        """Let a full context go on without half of what is behind the kept tokens."""
        stored = len(self.prompt) + len(self.tokens) - self.dropped
        dropped = (stored - self.kept) // 2
        self.dropped, self.shifts = self.dropped + dropped, self.shifts + 1
        self.engine.send(m.Shift(self.serial, self.kept, dropped, self.max_tokens))
        if wait:
            until(lambda: self.engine.table.shifts[self.slot] == self.shifts)

    def finish(self) -> list[int]:
        while True:
            self.until_full()
            if len(self.tokens) >= self.max_tokens:
                return self.tokens
            self.shift()

    def release(self) -> None:
        self.engine.release(self.serial)
