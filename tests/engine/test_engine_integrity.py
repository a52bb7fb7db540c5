"""What is known of the cells is what libllama has, whatever comes."""

from __future__ import annotations

import contextlib
import functools
import random

import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.patches.engine_faults import disturbed_and_checked, lost_cells
from tests.support.waiting import until
from umaserve.wire import messages as m
from umaserve.wire import table as t

DOMAINS = ["a", "b", f"a{m.PRIVATE}own", None]
LONGEST = 150  # tokens of a text
ENDLESS = m.Sampling(temperature=0.0, ignore_eos=True)


class Sessions:
    """Random sessions on an engine: they come, fork, change lanes, are cancelled, and end."""

    def __init__(self, engine: DrivenEngine, seed: int) -> None:
        self.engine, self.choose = engine, random.Random(seed)
        self.texts = [[self.choose.randrange(300, 900) for _ in range(80)] for _ in range(3)]
        self.alive: list[int] = []
        self.steps = 0

    def step(self) -> None:
        """One of what a client can do."""
        kind, engine = self.choose.random(), self.engine
        self.steps += 1
        if len(self.alive) < engine.start.n_slots and kind < 0.6:
            self._come()
        elif self.alive and kind < 0.75:
            engine.send(m.Cancel(self.choose.choice(self.alive)))
        elif self.alive and kind < 0.9:
            engine.send(m.SetLane(self.choose.choice(self.alive), self.choose.randint(0, 1)))
        elif self.alive:
            engine.wait(self.alive[0], n_tokens=self.choose.randint(1, 4))
        self._release()

    def _come(self) -> None:
        choose = self.choose
        base = choose.choice(self.texts)
        prompt = base[: choose.randint(1, len(base))]
        prompt = prompt + [choose.randrange(300, 900) for _ in range(choose.randint(0, 30))]
        prompt = prompt[:LONGEST]
        self.alive.append(
            self.engine.submit(
                tokens=prompt, n_prompt=len(prompt), domain=choose.choice(DOMAINS),
                lane=choose.randint(0, 1), max_tokens=choose.randint(1, 60), sampling=ENDLESS,
                program=choose.randint(0, 2), session=choose.random() < 0.5,
            )
        )  # fmt: skip

    def _release(self) -> None:
        """Rows that have ended are free; their texts go on in others."""
        engine, table = self.engine, self.engine.table
        for serial in list(self.alive):
            slot = engine.slots[serial]
            if table.serial[slot] == serial and table.state[slot] == t.DONE:
                text = engine.prompt_tokens(serial) + engine.generated(serial)
                self.texts[self.choose.randrange(len(self.texts))] = text[:LONGEST]
                self.alive.remove(serial)
                engine.release(serial)

    def finish(self) -> None:
        for serial in self.alive:
            self.engine.wait(serial)
        self._release()


@pytest.mark.parametrize("ticks", [1500, pytest.param(100_000, marks=pytest.mark.slow)])
def test_cells_are_what_libllama_counts_after_random_steps(ticks: int) -> None:
    """Few cells and little room for texts: rows are parked, evicted, forked and forgotten."""
    patch = functools.partial(disturbed_and_checked, seed=ticks)
    with DrivenEngine(patch=patch, n_ctx=512, n_seq=6, cache_bytes=3 << 20) as engine:
        sessions, header = Sessions(engine, ticks), engine.table.header
        while header.ticks < ticks:
            sessions.step()
        sessions.finish()
        until(lambda: header.cells_used == 0)
        assert sessions.steps > ticks // 20
        assert header.preemptions > ticks // 100 and header.cache_hits > 0
        assert header.cache_evicted_room > 0
        assert engine.close() == 0


def test_an_idle_engine_finds_cells_that_nobody_has(capfd: pytest.CaptureFixture[str]) -> None:
    with DrivenEngine(patch=lost_cells) as engine:
        with contextlib.suppress(OSError):  # it may have found some of its own start
            engine.submit("import os\n", max_tokens=2)
        assert engine.process.wait(60) != 0
    assert "cells of sequences that nobody has" in capfd.readouterr().err
