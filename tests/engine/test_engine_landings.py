"""A whole engine as on an accelerator: prompts land beside streams, and it knows in which cells."""

from __future__ import annotations

import json
import random
import time
from functools import partial

import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.oracle import Oracle
from tests.support.patches.engine_spies import spied_landings
from umaserve.wire import messages as m
from umaserve.wire import table as t

GREEDY = m.Sampling(temperature=0.0, ignore_eos=True)
STREAM, STREAM_TOKENS = "def fibonacci(n):", 120
TEXT = "def step(value):\n    if value > 1:\n        return value * 2\n"
N_CTX = 2048


@pytest.mark.slow
def test_prompts_land_where_it_is_said_while_streams_come_and_end(tmp_path):
    seen_file = tmp_path / "seen"
    chance = random.Random(3)
    oracle = Oracle(n_ctx=N_CTX)
    running: dict[int, tuple[str, int]] = {}
    finished = n = 0

    def submit(prompt, tokens, lane):
        engine.table.abort.urgent += lane == m.LANE_INTERACTIVE  # as the front does
        serial = engine.submit(prompt, max_tokens=tokens, sampling=GREEDY, lane=lane)
        running[serial] = prompt, tokens

    spied = partial(spied_landings, path=str(seen_file))
    with DrivenEngine(patch=spied, n_seq=5, n_ctx=N_CTX, paced=True) as engine:
        table, header = engine.table, engine.table.header
        end_s = time.monotonic() + 100
        while (finished < 24 or header.aside_tokens < 1500) and time.monotonic() < end_s:
            lanes = [int(table.lane[engine.slots[serial]]) for serial in running]
            if lanes.count(m.LANE_INTERACTIVE) < 2:
                n += 1
                tokens = STREAM_TOKENS + chance.randrange(100)
                submit(f"# {n}\n{STREAM}", tokens, m.LANE_INTERACTIVE)
                engine.wait(max(running), n_tokens=1)
            elif len(running) < 5:
                n += 1
                prompt = f"# {n}\n" + TEXT * chance.randrange(2, 10)
                submit(prompt, chance.randrange(2, 60), m.LANE_BACKGROUND)
            for serial in [*running]:
                slot = engine.slots[serial]
                if table.serial[slot] == serial and table.state[slot] == t.DONE:
                    prompt, tokens = running.pop(serial)
                    made = engine.generated(serial)
                    assert len(made) == tokens
                    oracle.assert_followed(prompt, made)
                    engine.release(serial)
                    finished += 1
            time.sleep(0.002)
        assert finished >= 24 and header.aside_tokens >= 1500
        for serial in running:
            engine.send(m.Cancel(serial))
            engine.wait(serial)
        assert header.cells_used == 0
        assert engine.close() == 0
    oracle.close()
    seen = [json.loads(line) for line in seen_file.read_text().splitlines()]
    ends = [what for kind, *what in seen if kind == "end"]
    assert len(ends) >= 20 and all(whole and same for whole, same, _ in ends)
    assert any(mixed for *_, mixed in ends)  # orders that say something
    kept = [what for kind, *what in seen if kind == "kept"]
    assert all(valid for valid, _ in kept) and max(ended for _, ended in kept) > 0
    stretches = [n for kind, *what in seen if kind == "place" for n in what[1:]]
    assert len(stretches) >= 5 and sum(stretches) <= 1.5 * len(stretches)
