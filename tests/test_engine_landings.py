"""A whole engine as on an accelerator: prompts land beside streams, and it knows in which cells."""

from __future__ import annotations

import json
import random
import time

import pytest

from tests.engine_driver import DrivenEngine
from tests.oracle import Oracle
from umaserve.engine import messages as m
from umaserve.engine import table as t

GREEDY = m.Sampling(temperature=0.0, ignore_eos=True)
STREAM, STREAM_TOKENS = "def fibonacci(n):", 120
TEXT = "def step(value):\n    if value > 1:\n        return value * 2\n"
N_CTX = 2048
# The processor's engine computes in its one context what it can, so a test says that there is an
# accelerator.  Of each row that ends, libllama is asked in which order its cells hold its
# positions; and it is written down into how many stretches each piece is going to be copied.
CODE = """
import dataclasses, json, numpy as np, umaserve.engine.jit_cache as j
def use_jit_cache(use=j.use_jit_cache):
    use()  # before numba is imported
    import umaserve.engine.boot as b, umaserve.engine.cell_map as c
    import umaserve.engine.sequences as s
    load = b.load
    b._spare_sequences = lambda *_: s.RESERVED + s.ENDED
    b.load = lambda *a: dataclasses.replace(load(*a), overlap=True)
    give_back, place = s.Sequences.give_back, s.Sequences.place
    def say(*what):
        with open({path!r}, "a") as file:
            print(json.dumps(what), file=file)
    def given_back(self, seq, empty=False):
        cells, context = self.cells, self._context
        n = int(cells.cells[seq])
        if cells.words[c.VALID] and n:
            said = cells.position[cells.owner == seq].tolist()
            saved = np.empty(context.state_seq_size(seq), np.uint8)
            context.state_seq_get(seq, saved)
            found = s.saved_positions(saved, 0, n).tolist()
            say("end", n == context.seq_pos_max(seq) + 1, found == said, found != sorted(found))
        give_back(self, seq, empty)
        say("kept", int(cells.words[0]), len(self._ended))
    def placed(self, seq, saved, p0, p1):
        place(self, seq, saved, p0, p1)
        if p1 > p0:
            owner, position = self.cells.owner, self.cells.position
            mine = np.flatnonzero((owner == seq) & (position >= p0) & (position < p1))
            say("place", p1 - p0, int((np.diff(mine) > 1).sum()) + 1)
    s.Sequences.give_back, s.Sequences.place = given_back, placed
j.use_jit_cache = use_jit_cache
"""


@pytest.mark.slow
def test_prompts_land_where_it_is_said_while_streams_come_and_end(tmp_path):
    seen_file = tmp_path / "seen"
    chance = random.Random(3)
    oracle = Oracle(n_ctx=N_CTX)
    running: dict[int, tuple[str, int]] = {}
    finished = n = 0

    def submit(prompt, tokens, lane):
        engine.table.header[t.H_URGENT] += lane == m.LANE_INTERACTIVE  # as the front does
        serial = engine.submit(prompt, max_tokens=tokens, sampling=GREEDY, lane=lane)
        running[serial] = prompt, tokens

    with DrivenEngine(code=CODE.format(path=str(seen_file)), n_seq=5, n_ctx=N_CTX) as engine:
        table, header = engine.table, engine.table.header
        end_s = time.monotonic() + 100
        while (finished < 24 or header[t.H_ASIDE_TOKENS] < 1500) and time.monotonic() < end_s:
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
        assert finished >= 24 and header[t.H_ASIDE_TOKENS] >= 1500
        for serial in running:
            engine.send(m.Cancel(serial))
            engine.wait(serial)
        assert header[t.H_CELLS_USED] == 0
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
