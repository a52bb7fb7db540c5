"""Chats of random turns on one engine after the other, which share a folder of kept texts.

Turns go on, edit their histories, share what others begin with, have drafts or none, and are
cancelled.  Engines are killed or closed at any time, and what runs then goes on in the next one.
`disturbed_and_checked` counts the cells before and after each run of ticks, and takes rows' cells
away or forgets all texts now and then.  Every answer is compared with that of a fresh context.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.engine_driver import DrivenEngine
from tests.support.oracle import Oracle
from tests.support.patches.engine_faults import disturbed_and_checked
from tests.support.waiting import until
from umaserve.wire import messages as m
from umaserve.wire import table as t

GREEDY = m.Sampling(temperature=0.0, ignore_eos=True)
UNBOUND = ("latency-guard", "sweet-spot")  # so that rows have drafts beside each other
DOMAINS = ["a", "a", "b", None]
NEAR = 0.15  # logits; 0.01 are seen, and 0.23 where a token of a prompt is of another text
POSITIONS = 256  # of a session
LONGEST = 180  # tokens of a prompt
ROWS = 3
ROOM = (1 << 17, 1 << 19, 1 << 22)  # bytes for texts in memory, of an engine
EACH = 40  # steps of an engine
WRONG = 13  # one token in so many is another where a text is said otherwise


@dataclass(frozen=True, slots=True)
class Turn:
    """A request that runs: its prompt, and with what else it was sent."""

    prompt: list[int]
    fields: dict[str, Any]


class RandomChats:
    """``folder`` keeps the texts, and ``judge`` has the same model."""

    def __init__(self, model: str, folder: Path, judge: Oracle, seed: int) -> None:
        self._model, self._folder, self._judge = model, folder, judge
        self._choose, self._seed, self._made = random.Random(seed), seed, 0
        self._texts = [self._words(40) for _ in range(4)]
        self._last: list[int] = []  # a text that the next engine may know
        self._asked_first = 0
        self._alive: dict[int, Turn] = {}
        self.seen: Counter[str] = Counter()  # what has happened, by name
        self.engine = self._started()

    def run(self, steps: int) -> None:
        """Take so many random steps, wait for what runs then, and close the last engine."""
        for step in range(steps):
            self._step()
            self._look()
            if step % EACH == EACH - 1:
                self._begin_anew(kills=self._made % 2 == 0)
        while self._alive:
            self.engine.wait(next(iter(self._alive)))
            self._look()
        until(lambda: self.engine.table.header.cells_used == 0)
        self._close()

    def end(self) -> None:
        """End the engine that a failed run has left."""
        self.engine.close()

    def _started(self) -> DrivenEngine:
        self._made += 1
        patch = functools.partial(disturbed_and_checked, seed=self._seed + self._made)
        return DrivenEngine(
            model=self._model, patch=patch, n_ctx=512, n_positions=POSITIONS, n_seq=4,
            cache_bytes=self._choose.choice(ROOM), cache_dir=str(self._folder), cache_disk=1 << 30,
            speculate="ngram", probe=False, without=UNBOUND,
        )  # fmt: skip

    def _step(self) -> None:
        kind = self._choose.random()
        self.seen["steps"] += 1
        if len(self._alive) < ROWS and kind < 0.5:
            self._come()
        elif self._alive:
            serial = self._choose.choice(list(self._alive))
            self.engine.wait(serial, n_tokens=self._choose.randint(1, 40))
            if kind > 0.9:
                self.seen["cancelled"] += 1
                self.engine.send(m.Cancel(serial))

    def _words(self, n: int) -> list[int]:
        return [self._choose.randrange(300, 900) for _ in range(n)]

    def _come(self) -> None:
        """A turn that goes on, an edit of a history, the same again, or another chat."""
        choose, prompt = self._choose, self._choose.choice(self._texts)
        kind = choose.random()
        if kind < 0.3:
            prompt = prompt[: choose.randint(1, len(prompt))] + self._words(9)
        elif kind < 0.6:
            prompt = prompt + self._words(9)
        elif kind < 0.65:
            prompt = self._words(choose.randint(1, LONGEST))
        self._ask(Turn(prompt, {
            "max_tokens": choose.randint(1, 50), "lane": choose.randint(0, 1),
            "domain": choose.choice(DOMAINS), "speculate": choose.random() < 0.6,
            "session": choose.random() < 0.3, "program": choose.randint(0, 2),
        }))  # fmt: skip

    def _ask(self, turn: Turn, said: Sequence[int] = ()) -> int:
        serial = self.engine.submit(
            tokens=[*turn.prompt, *said], n_prompt=len(turn.prompt), sampling=GREEDY, **turn.fields
        )
        self._alive[serial] = turn
        return serial

    def _look(self) -> None:
        """Judge the answers that have ended."""
        table = self.engine.table
        for serial in list(self._alive):
            slot = self.engine.slots[serial]
            if table.serial[slot] == serial and table.state[slot] == t.DONE:
                self._judge_answer(self._alive.pop(serial), self.engine.generated(serial))
                known = int(table.cached[slot])
                self.seen["known tokens"] += known
                self.seen["known from disk"] += known * (serial == self._asked_first)
                self.engine.release(serial)

    def _judge_answer(self, turn: Turn, said: list[int]) -> None:
        self.seen["answers"] += 1
        gaps = self._judge.greedy_gaps(turn.prompt, said) if said else np.zeros(1)
        assert gaps.max() < NEAR, (len(turn.prompt), turn.fields, gaps)
        if turn.fields["domain"] == DOMAINS[0]:
            self._last = (turn.prompt + said)[:LONGEST]
        text = turn.prompt + self._choose.choice([said, _said_otherwise(said)])
        text = text if len(text) < LONGEST else text[-30:]
        self._texts[self._choose.randrange(len(self._texts))] = text

    def _begin_anew(self, kills: bool) -> None:
        """The engine ends at once or in peace; all that runs goes on in the next one."""
        table = self.engine.table
        if kills:
            self.seen["kills"] += 1
            self.engine.process.kill()
            self.engine.process.wait()
        else:
            self.seen["restarts"] += 1
        self._close()
        left = {}
        for serial in self._alive:
            slot = self.engine.slots[serial]
            # a row that is being filled is FREE still
            is_there = table.state[slot] != t.FREE and table.serial[slot] == serial
            left[serial] = self.engine.generated(serial) if is_there else []
        turns, self._alive = self._alive, {}
        self.engine = self._started()
        if self._last:
            fields = {"max_tokens": 1, "domain": DOMAINS[0], "speculate": False}
            self._asked_first = self._ask(Turn([*self._last, *self._words(9)], fields))
        for serial, said in left.items():
            if len(said) < turns[serial].fields["max_tokens"]:
                self._ask(turns[serial], said)
            else:
                self._judge_answer(turns[serial], said)

    def _close(self) -> None:
        header = self.engine.table.header
        for name in ("preemptions", "cache_hits", "draft_tokens", "draft_accepted"):
            self.seen[name] += int(getattr(header, name))
        self.engine.close()


def _said_otherwise(tokens: list[int]) -> list[int]:
    """A text in which a token now and then is another."""
    return [token + (i % WRONG == WRONG - 1) for i, token in enumerate(tokens)]
