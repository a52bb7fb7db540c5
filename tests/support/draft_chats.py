"""Random token texts, asked of an engine that drafts, and chats of them."""

from __future__ import annotations

import random

import numpy as np

from tests.support.engine_driver import DrivenEngine
from tests.support.oracle import Oracle
from umaserve.wire import messages as m
from umaserve.wire import table as t

GREEDY = m.Sampling(temperature=0.0, ignore_eos=True)
LONG = 90  # tokens of an answer
NEAR = 0.5  # logits; a token that is taken out or put in shows as a gap of more than 2
WRONG = 13  # one draft in so many is wrong


def words(seed: int, n: int) -> list[int]:
    return np.random.default_rng(seed).integers(300, 900, n).tolist()


def ask(engine: DrivenEngine, tokens: list[int], **fields) -> int:
    fields = {"max_tokens": LONG, "sampling": GREEDY, "domain": "a"} | fields
    return engine.submit(tokens=tokens, n_prompt=len(tokens), **fields)


def answer(engine: DrivenEngine, tokens: list[int], **fields) -> list[int]:
    serial = ask(engine, tokens, **fields)
    engine.wait(serial)
    said = engine.generated(serial)
    engine.release(serial)
    return said


def said_otherwise(tokens: list[int]) -> list[int]:
    """A text in which a token now and then is another."""
    return [token + (i % WRONG == WRONG - 1) for i, token in enumerate(tokens)]


def drafts(engine: DrivenEngine) -> np.ndarray:
    header = engine.table.header
    return np.array([header.draft_tokens, header.draft_accepted])


class Chats:
    """Chats of random turns, some of them cancelled; every answer is looked at."""

    def __init__(self, engine: DrivenEngine, judge: Oracle, seed: int) -> None:
        self.engine, self.judge, self.choose = engine, judge, random.Random(seed)
        self.texts = [words(seed + n, 40) for n in range(4)]
        self.alive: dict[int, list[int]] = {}  # prompts by serial
        self.steps = 0

    def run(self, steps: int) -> None:
        """Take so many steps, and wait for all answers."""
        while self.steps < steps:
            self.step()
        for serial in self.alive:
            self.engine.wait(serial)
        self.look()

    def step(self) -> None:
        choose, engine = self.choose, self.engine
        self.steps += 1
        if len(self.alive) < 3 and choose.random() < 0.5:
            self._come()
        elif self.alive:
            serial = choose.choice(list(self.alive))
            engine.wait(serial, n_tokens=choose.randint(1, 60))
            if choose.random() < 0.2:
                engine.send(m.Cancel(serial))
        self.look()

    def _come(self) -> None:
        choose = self.choose
        prompt = choose.choice(self.texts)
        if choose.random() < 0.3:  # an edit of its history
            prompt = prompt[: choose.randint(1, len(prompt))] + words(self.steps, 9)
        elif choose.random() < 0.3:
            prompt = prompt + words(self.steps, 9)
        serial = ask(
            self.engine, prompt, max_tokens=choose.randint(1, 60), lane=choose.randint(0, 1),
            domain=choose.choice(["a", "a", "b", None]),
        )  # fmt: skip
        self.alive[serial] = prompt

    def look(self) -> None:
        """Judge the answers that have ended."""
        engine, table = self.engine, self.engine.table
        for serial, prompt in list(self.alive.items()):
            slot = engine.slots[serial]
            if table.serial[slot] != serial or table.state[slot] != t.DONE:
                continue
            said = engine.generated(serial)
            gaps = self.judge.greedy_gaps(prompt, said) if said else np.zeros(1)
            assert gaps.max() < NEAR, (len(prompt), gaps)
            # others may say it otherwise, and begin anew once it is long
            text = prompt + self.choose.choice([said, said_otherwise(said)])
            text = text if len(text) < 180 else text[-30:]
            self.texts[self.choose.randrange(len(self.texts))] = text
            del self.alive[serial]
            engine.release(serial)
