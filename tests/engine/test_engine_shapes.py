"""Ticks after a change of shape on an accelerator, where a graph is captured anew."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace

import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.patches.engine_spies import spied_shapes
from umaserve.engine.ticks.beside import UNLIKE, note_shape
from umaserve.engine.ticks.records import Facts, Flight
from umaserve.policy.base import KIND_DECODE, Memory, PlanInfo
from umaserve.policy.cost.model import CostModel, learn
from umaserve.policy.cost.prediction import predict
from umaserve.wire import messages as m


def known(*rows):
    cost = CostModel.unknown()
    for n in rows:
        for _ in range(8):
            learn(cost, 0, n, 0, 0, 1.0 + 0.3 * n)
    return cost


class Ticks:
    """As the loop: each tick notes its shape, and is learned if it is like others."""

    def __init__(self, cost, overlaps=True):
        self.cost, self.knobs = cost, SimpleNamespace(overlaps=overlaps)
        self.flight = Flight.zeros()

    def tick(self, rows, ms, prompt=0, passengers=0, streams=None, drafted=0):
        """Whether it was learned."""
        memory, info, facts = Memory.fresh(4), PlanInfo.zeros(), Facts.zeros()
        memory.found[KIND_DECODE] = rows - passengers if streams is None else streams
        info.passengers = passengers
        facts.drafted, facts.tokens = drafted, rows + drafted + prompt
        note_shape.py_func(self.flight, self.knobs, self.cost, memory, rows, facts, info)
        if not facts.disturbed:
            learn(self.cost, 0, rows, prompt, 0, ms)
        return not facts.disturbed


def test_a_baseline_is_not_learned_from_ticks_after_others():
    """On an H200 a stream had a 95th percentile of 4.4 times that alone at a cap of 3, where two
    decoders rode with nearly all of its ticks: as if one alone took 2.3 ms, and it takes 1.25."""
    ticks = Ticks(known(1, 3))
    alone_ms = predict(ticks.cost, 0, 1, 0, 0)
    for _ in range(50):
        for _ in range(6):
            ticks.tick(3, 1.9, passengers=2)
        ticks.tick(1, 3.3)
        ticks.tick(1, 4.9)
    assert predict(ticks.cost, 0, 1, 0, 0) == alone_ms


def test_ticks_that_follow_one_another_are_learned():
    ticks = Ticks(known(1, 2))
    learned = [ticks.tick(rows, 2.0) for rows in (1, 1, 1, 1, 2, 2, 2, 1, 2, 2, 2)]
    assert UNLIKE == 2
    assert learned == [False, False, True, True, False, False, True] + [False] * 3 + [True]


def test_drafted_tokens_are_part_of_the_shape():
    ticks = Ticks(known(1, 8))
    learned = [ticks.tick(1, 2.0, drafted=n) for n in (0, 0, 0, 7, 7, 7, 0, 0, 0)]
    assert learned == [False, False, True] * 3


@pytest.mark.parametrize(
    ("case", "learned"),
    [
        ({"passengers": 1}, True),  # what they cost, they cost with the change
        ({"prompt": 5}, True),  # no graph is captured for those
        ({"streams": 3}, True),  # they take turns, each of which is a change
        ({"streams": 0}, True),  # of the background
        ({}, False),
    ],
)
def test_what_comes_with_a_change_is_learned_with_it(case, learned):
    ticks = Ticks(known(1, 2))
    for _ in range(3):
        ticks.tick(1, 1.3)
    assert ticks.tick(2, 9.0, **case) == learned


def test_what_is_not_known_yet_is_learned_and_a_processor_has_no_graphs():
    assert Ticks(known(1)).tick(2, 9.0)
    assert Ticks(known(1, 2), overlaps=False).tick(2, 9.0)


@pytest.mark.parametrize(("tokens", "shape"), [(1, -1), (8, 1)])
def test_the_loop_notes_what_its_ticks_have(tmp_path, tokens, shape):
    """The last one of a request: its prompt, or a token of its own."""
    seen_file = tmp_path / "seen"
    spied = partial(spied_shapes, path=str(seen_file))
    # drafts would be ticks of another shape, whenever times make them look worth it
    sizes = {"n_ctx": 512, "probe": False, "speculate": "off"}
    with DrivenEngine(patch=spied, **sizes) as engine:
        serial = engine.submit("some words", lane=m.LANE_INTERACTIVE, max_tokens=tokens)
        engine.wait(serial)
    assert json.loads(seen_file.read_text().splitlines()[-1]) == [shape, 0]
