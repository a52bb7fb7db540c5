"""What is known of the cells is what libllama has, whatever comes."""

from __future__ import annotations

import contextlib
import functools
import random
import time

import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.patches.engine_faults import disturbed_and_checked, lost_cells
from tests.support.waiting import until
from umaserve.assets import demo_model_path
from umaserve.wire import messages as m
from umaserve.wire import table as t

DOMAINS = ["a", "b", f"a{m.PRIVATE}own", None]
LONGEST = 110  # tokens of a prompt
POSITIONS = 128  # of a context, which long answers fill
UNBOUND = ("latency-guard", "sweet-spot")  # so that rows have drafts beside each other
ENDLESS = m.Sampling(temperature=0.0, ignore_eos=True)


class Sessions:
    """Random sessions on an engine: they come, fork, change lanes, are cancelled, and end."""

    def __init__(self, engine: DrivenEngine, seed: int) -> None:
        self.engine, self.choose = engine, random.Random(seed)
        self.texts = [[self.choose.randrange(300, 900) for _ in range(80)] for _ in range(3)]
        self.alive: list[int] = []
        self.shifts: dict[int, int] = {}  # that were asked for, by serial
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
        if choose.random() < 0.3:  # tokens are drafted for it
            prompt += prompt[-10:]
        shifts = choose.random() < 0.3
        if shifts:  # it is soon full
            prompt += [choose.randrange(300, 900) for _ in range(LONGEST)]
        prompt = prompt[:LONGEST]
        self.alive.append(
            self.engine.submit(
                tokens=prompt, n_prompt=len(prompt), domain=choose.choice(DOMAINS),
                lane=choose.randint(0, 1), sampling=ENDLESS,
                max_tokens=choose.randint(1, 60) + (60 if shifts else 0),
                program=choose.randint(0, 2), session=choose.random() < 0.5,
                shifts=shifts,
            )
        )  # fmt: skip

    def _release(self) -> None:
        """Rows that have ended are free; their texts go on in others."""
        engine, table = self.engine, self.engine.table
        for serial in list(self.alive):
            slot = engine.slots[serial]
            shifts = int(table.shifts[slot])  # before the state, which the engine writes first
            if table.serial[slot] != serial or shifts < self.shifts.get(serial, -1):
                continue  # it is about to be shifted, and goes on then even if it is DONE now
            if table.state[slot] == t.FULL:
                self._answer_full(serial)
            elif table.state[slot] == t.DONE:
                text = table.tokens[slot, : table.n_tokens[slot]].tolist()
                self.texts[self.choose.randrange(len(self.texts))] = text[:LONGEST]
                self.alive.remove(serial)
                engine.release(serial)

    def _answer_full(self, serial: int) -> None:
        """As the front: most full rows go on without half of what they hold."""
        if self.choose.random() < 0.2:
            self.alive.remove(serial)
            self.engine.release(serial)
        else:
            self.shifts[serial] = self.shifts.get(serial, 0) + 1
            self.engine.send(m.Shift(serial, 4, POSITIONS // 2, 120))

    def keep_pace(self, header: t.Header) -> None:
        """Rows get as many ticks as there are steps, or most would be cancelled unborn."""
        while self.alive and header.ticks < self.steps:
            self._release()
            time.sleep(0)

    def finish(self) -> None:
        while self.alive:
            for serial in self.alive:
                self.engine.send(m.Cancel(serial))
            self._release()


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(600, marks=pytest.mark.timeout(180)),
        pytest.param(34_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
@pytest.mark.parametrize(
    ("keeps", "speculate"), [(False, "ngram"), (True, "draft"), (True, "off")]
)
def test_cells_are_what_libllama_counts_after_random_steps(
    steps: int, keeps: bool, speculate: str
) -> None:
    """Few cells and little room for texts: rows are parked, evicted, forked and forgotten.

    The three ways together have 100,000 steps.
    """
    patch = functools.partial(disturbed_and_checked, seed=steps, keeps=keeps)
    with DrivenEngine(
        patch=patch, n_ctx=512, n_positions=POSITIONS, n_seq=6, cache_bytes=1 << 20,
        speculate=speculate, without=UNBOUND if speculate != "off" else (),
        draft_model=str(demo_model_path()) if speculate == "draft" else "",
    ) as engine:
        sessions, header = Sessions(engine, steps), engine.table.header
        while sessions.steps < steps:
            sessions.step()
            sessions.keep_pace(header)
        sessions.finish()
        until(lambda: header.cells_used == 0)
        assert header.preemptions > header.ticks // 100 and header.cache_hits > 0
        assert (header.draft_tokens > 0) == (speculate != "off")
        assert header.cache_evicted_room > 0 and sum(sessions.shifts.values()) > steps // 1000
        assert engine.close() == 0


def test_an_idle_engine_finds_cells_that_nobody_has(capfd: pytest.CaptureFixture[str]) -> None:
    with DrivenEngine(patch=lost_cells, fresh=True) as engine:
        with contextlib.suppress(OSError):  # it may have found some of its own start
            engine.submit("import os\n", max_tokens=2)
        assert engine.process.wait(60) != 0
    assert "cells of sequences that nobody has" in capfd.readouterr().err
