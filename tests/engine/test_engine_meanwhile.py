"""What Python does while a decode is under way: answers and rows are the same as ever.

The processor's backend finishes a decode before it returns, so a test says that it does not.
"""

from __future__ import annotations

import json
import random
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.oracle import Oracle
from tests.support.patches.engine_spies import spied_meanwhile
from umaserve.engine.loop.engine import Engine
from umaserve.engine.loop.inbox import Inbox
from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.header import Header

GREEDY = m.Sampling(temperature=0.0, ignore_eos=True)
STREAM, STREAM_TOKENS = "def fibonacci(n):", 300
TEXT = "def step(value):\n    if value > 1:\n        return value * 2\n"


def went_on(seen_file) -> int:
    """How many times the ticks went on after what was done."""
    lines = seen_file.read_text().splitlines(keepends=True) if seen_file.exists() else []
    return sum(json.loads(line)[1] for line in lines if line.endswith("\n"))


def is_done(engine: DrivenEngine, serial: int) -> bool:
    slot = engine.slots[serial]
    return engine.table.serial[slot] == serial and engine.table.state[slot] == t.DONE


@pytest.mark.slow
def test_background_requests_come_and_go_under_the_decodes_of_a_stream(tmp_path):
    seen_file = tmp_path / "seen"
    chance = random.Random(7)
    oracle = Oracle(n_ctx=2048)
    running: dict[int, tuple[str, int]] = {}
    finished = cancelled = streams = n = 0
    spied = partial(spied_meanwhile, path=str(seen_file))
    with DrivenEngine(patch=spied, n_seq=3, n_ctx=2048) as engine:
        header, stream = engine.table.header, 0
        end = time.monotonic() + 100
        # a busy machine does more for each decode: until it has been seen often enough
        while (
            finished < 12 or not cancelled or streams < 2 or went_on(seen_file) <= 20
        ) and time.monotonic() < end:
            if stream and is_done(engine, stream):
                streams += 1
                assert len(engine.generated(stream)) == STREAM_TOKENS
                oracle.assert_followed(STREAM, engine.generated(stream))
                engine.release(stream)
                stream = 0
            if not stream:
                engine.table.abort.urgent += 1  # as the front does for whoever is interactive
                stream = engine.submit(STREAM, max_tokens=STREAM_TOKENS, sampling=GREEDY)
            while len(running) < 3:  # one more than there are sequences
                n += 1
                prompt, tokens = f"# {n}\n" + TEXT * (1 + n % 4), 1 + 5 * (n % 3 == 0)
                serial = engine.submit(
                    prompt, max_tokens=tokens, sampling=GREEDY, lane=m.LANE_BACKGROUND
                )
                running[serial] = prompt, tokens
            if chance.random() < 0.02:
                engine.send(m.Cancel(chance.choice(list(running))))
            if chance.random() < 0.02:
                lane = chance.randrange(2)
                engine.table.abort.urgent += lane == m.LANE_INTERACTIVE
                engine.send(m.SetLane(chance.choice(list(running)), lane))
            for serial in [s for s in running if is_done(engine, s)]:
                prompt, tokens = running.pop(serial)
                made = engine.generated(serial)
                if engine.table.reason[engine.slots[serial]] == t.REASON_CANCEL:
                    cancelled += 1
                else:
                    finished += 1
                    assert len(made) == tokens
                if made:
                    oracle.assert_followed(prompt, made)
                engine.release(serial)
            time.sleep(0.002)
        for serial in [stream, *running]:
            if serial:
                engine.send(m.Cancel(serial))
                engine.wait(serial)
        assert finished >= 12 and cancelled and streams >= 2
        assert header.cells_used == 0
        assert engine.close() == 0
    seen = [json.loads(line) for line in seen_file.read_text().splitlines()]
    assert sum(done for _, done, *_ in seen) > 20  # the ticks went on
    assert any(later for _, _, later, _ in seen)  # a cancel waited for the end of one
    assert all(entries >= 1 for (entries, _), *_ in seen)
    oracle.close()


def test_nothing_that_is_interactive_waits_for_a_decode(tmp_path):
    seen_file = tmp_path / "seen"
    spied = partial(spied_meanwhile, path=str(seen_file))
    with DrivenEngine(patch=spied, n_seq=3, n_ctx=2048) as engine:
        engine.table.abort.urgent += 1
        stream = engine.submit(STREAM, max_tokens=STREAM_TOKENS, sampling=GREEDY)
        others = 0
        while not is_done(engine, stream) and others < 12:
            engine.table.abort.urgent += 1
            engine.wait(engine.submit(f"# {others}\n" + TEXT, max_tokens=2, sampling=GREEDY))
            others += 1
        assert others >= 6
        engine.wait(stream)
        assert engine.close() == 0
    lines = seen_file.read_text().splitlines() if seen_file.exists() else []
    # the ticks stop at once for each; some may come while a decode is under way for something else
    assert sum(json.loads(line)[3] for line in lines) <= others // 2


class Loop:
    """The parts of a loop that `Engine._meanwhile` uses; ``seen``: what it did."""

    def __init__(self, messages=(), later=(), closed=False, **changes):
        seen = self.seen = []
        setup = SimpleNamespace(
            control=SimpleNamespace(receive=lambda _: list(messages), closed=closed),
            table=SimpleNamespace(state=np.zeros(4, np.int32), header=Header.fresh()),
        )
        self.inbox = Inbox(setup, None, None, None, None, None)
        self.inbox.handle, self.inbox.later = seen.append, list(later)
        self.parts = {
            "admission": SimpleNamespace(take_tokenised=lambda: seen.append("tokenised")),
            "aside": SimpleNamespace(has_jobs=False),
            "trials": SimpleNamespace(wanted=False),
            "seating": SimpleNamespace(
                admit=lambda under_way: seen.append(("admit", under_way)) or True
            ),
            "turns": SimpleNamespace(is_on=False),
        } | changes

    def goes_on(self):
        return Engine._meanwhile(SimpleNamespace(inbox=self.inbox, **self.parts))


def test_what_touches_a_running_row_waits_and_so_does_all_after_it():
    release, cancel, submit = m.Release(3, 1), m.Cancel(4), m.Submit(5, 2, prompt="x")
    one = Loop([release, cancel, submit])
    assert not one.goes_on()
    assert one.seen == [release, "tokenised", ("admit", True)]
    assert one.inbox.later == [cancel, submit]
    two = Loop([release, submit])
    assert two.goes_on() and two.inbox.later == []
    assert two.seen == [release, submit, "tokenised", ("admit", True)]


def test_nothing_goes_before_what_waits_already():
    """A row is released before it is given away again."""
    release, submit = m.Release(3, 1), m.Submit(5, 1, prompt="x")
    one = Loop([submit], later=[release])
    assert not one.goes_on()
    assert one.inbox.later == [release, submit] and submit not in one.seen


def test_the_ticks_stop_for_what_is_left():
    assert Loop().goes_on()
    assert not Loop(seating=SimpleNamespace(admit=lambda under_way: False)).goes_on()
    assert not Loop(closed=True).goes_on()
    assert not Loop(aside=SimpleNamespace(has_jobs=True)).goes_on()
    assert not Loop(turns=SimpleNamespace(is_on=True)).goes_on()
    one = Loop(trials=SimpleNamespace(wanted=True))
    assert not one.goes_on() and ("admit", True) not in one.seen
