"""What an engine finds out about its device before anything is switched on for it."""

from __future__ import annotations

import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.patches.engine_spies import returning_early
from umaserve.engine.model.ways import Ways
from umaserve.wire import messages as m

LAYERS = 24


@pytest.mark.parametrize(
    ("waited", "asked", "ways"),
    [
        (0.0001, 700, Ways(overlaps=False, abortable=True)),  # a processor
        (0.6, 1, Ways(overlaps=True, abortable=False)),  # an accelerator
        (0.4, 400, Ways(overlaps=True, abortable=False)),  # half the layers on each
        (0.01, 1, Ways()),  # a device that is waited for: nothing is known to pay
    ],
)
def test_the_ways_follow_from_what_was_measured(waited, asked, ways):
    assert Ways.of(waited, asked, LAYERS) == ways


@pytest.mark.parametrize("prefill_threads", [0, 1])
def test_a_processors_engine_finds_that_its_graphs_can_be_given_up(prefill_threads):
    with DrivenEngine(n_ctx=512, prefill_threads=prefill_threads) as engine:
        assert engine.table.abort.asked > 0


def test_prompts_are_computed_in_the_ticks_of_an_accelerator(start_anew):
    greedy = m.Sampling(temperature=0.0, ignore_eos=True)
    engine = start_anew(patch=returning_early, n_ctx=1024, n_seq=2, probe=False)
    stream = engine.submit("def f(", max_tokens=300, sampling=greedy)
    engine.wait(stream, n_tokens=1)
    prompt = engine.submit(
        "import os\n" * 60, max_tokens=1, sampling=greedy, lane=m.LANE_BACKGROUND
    )
    engine.wait(prompt)
    engine.wait(stream)
    assert engine.table.header.aside_tokens == 0
