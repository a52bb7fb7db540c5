"""What an engine finds out about its device before anything is switched on for it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.patches.engine_spies import returning_early
from umaserve import llama
from umaserve.engine.cells import placement
from umaserve.engine.model.abilities import RESERVED
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


@pytest.fixture
def loaded(model):
    n_seq = 2
    context = llama.Context.open(
        model, n_ctx=512, n_batch=256, n_ubatch=256, n_seq_max=n_seq + RESERVED + 2, n_threads=1
    )
    yield SimpleNamespace(
        library=model.library, model=model, context=context, n_ctx=512, n_seq=n_seq,
        n_vocab=model.n_vocab,
    )  # fmt: skip
    context.close()


def pays(loaded):
    """The verdict, and how many steps it took."""
    steps, found = placement.pays(loaded), []

    def run():
        found.append((yield from steps))

    n = sum(1 for _ in run())
    return found[0], n


@pytest.mark.parametrize(
    ("together_ms", "apart_ms", "verdict"),
    [(1.0, 9.0, True), (1.0, 1.9, False), (20.0, 22.0, False), (20.0, 25.0, True)],
)
def test_cells_are_kept_where_scattered_copies_are_dearer(
    loaded, monkeypatch, together_ms, apart_ms, verdict
):
    took = {0: together_ms, loaded.n_seq + RESERVED: 0.0, loaded.n_seq + RESERVED + 1: apart_ms}
    copied, positions = placement._copied_ms, []

    def timed(loaded, seq, saved):
        assert copied(loaded, seq, saved) > 0.0
        positions.append(loaded.context.seq_pos_max(seq))
        return took[seq]

    monkeypatch.setattr(placement, "_copied_ms", timed)
    assert pays(loaded) == (verdict, 2 * placement.TIMES)
    assert set(positions) == {placement.TOKENS - 1}  # each copy was a whole one
    assert all(loaded.context.seq_pos_max(seq) == -1 for seq in range(loaded.context.n_seq_max))


def test_without_sequences_for_it_nothing_is_measured(loaded, monkeypatch):
    monkeypatch.setattr(placement, "_prompt", lambda _: pytest.fail("it was measured"))
    loaded.n_seq += 2
    assert pays(loaded) == (False, 0)


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
