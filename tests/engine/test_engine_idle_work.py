"""A start serves at once; what it has to measure is measured while nobody asks for anything."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.patches.engine_faults import no_second_context
from tests.support.patches.thread_choices import measured_beside_another_program
from tests.support.small_models import write_model
from tests.support.waiting import until
from umaserve import llama
from umaserve.engine.model.costs import cost_keeper
from umaserve.engine.model.costs.cost_file import CostFile
from umaserve.engine.model.costs.cost_keeper import CostKeeper
from umaserve.engine.model.loaded import usable_cores
from umaserve.engine.model.thread_places import no_places
from umaserve.engine.native import abort
from umaserve.engine.start.bare_ticks import PAST, BareTicks
from umaserve.engine.start.probe import PLAIN_SHAPES, Prober
from umaserve.engine.start.thread_choice import choose
from umaserve.policy.cost.model import FADED, MOST_SURE, CostModel
from umaserve.policy.cost.prediction import is_known
from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.header import AbortWords
from umaserve.wire.states import LANE_BACKGROUND, LANE_INTERACTIVE

FAMILIES = ("mamba-micro", "jamba-micro", "gemma3-micro")


def kept_costs(folder: Path) -> list[Path]:
    return list((folder / "costs").glob("[!.]*.npz"))  # whole ones


# Shapes after which ticks of eight rows were measured.  There are more than 20, but an engine
# measures for so many seconds at most, and on a busy machine these end before.
ROWS_TOO = 8


def known_shapes(folder: Path) -> int:
    """Shapes of ticks that an engine knew when it last wrote what they cost."""
    for path in kept_costs(folder):
        with np.load(path) as stored:
            cost = CostModel.of(stored)
        return sum(is_known(cost, *shape) for shape in PLAIN_SHAPES)
    return 0


@pytest.fixture(scope="module")
def family_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write_model(folder / f"{name}.gguf", name, n_ctx=8192) for name in FAMILIES}


@pytest.mark.timeout(270)
def test_a_first_start_measures_nothing_before_it_is_ready_and_all_of_it_later(
    start_anew: Callable[..., DrivenEngine], tmp_path: Path
) -> None:
    engine = start_anew(n_threads=0)
    assert not [p.stage for p in engine.progress if "measuring" in p.stage]
    assert not kept_costs(tmp_path)
    first = engine.run("def fibonacci(n):", max_tokens=8)
    # written when everything is known: long where others have the cores
    until(lambda: known_shapes(tmp_path) > ROWS_TOO, timeout=240.0)
    # what was computed meanwhile is in nobody's way
    assert engine.run("def fibonacci(n):", max_tokens=8) == first


def test_costs_measured_beside_another_program_are_measured_again(
    start_anew: Callable[..., DrivenEngine], tmp_path: Path
) -> None:
    said = tmp_path / "said"
    engine = start_anew(patch=partial(measured_beside_another_program, path=str(said)), n_threads=1)

    def measured() -> list[list[float]]:
        lines = said.read_text().splitlines() if said.exists() else []
        return [json.loads(line) for line in lines]

    until(lambda: len(measured()) == 1, timeout=240.0)
    engine.run("def fibonacci(n):", max_tokens=60)
    until(lambda: len(measured()) == 2, timeout=240.0)
    (_, slow), (_, again) = measured()
    assert again < 0.5 * slow
    engine.run("import os", max_tokens=8)
    assert len(measured()) == 2  # what the ticks take is what was measured


def test_costs_are_believed_less_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = CostModel.unknown()
    keeper = CostKeeper(no_places(), cost)

    def after_a_pause(ticks: int, seconds: float) -> float:
        cost.count[0, 1, 0] = MOST_SURE
        keeper.save_now_and_then(ticks)
        monkeypatch.setattr(cost_keeper, "ABSENCE_S", seconds)
        keeper.doubt_after_pause()
        return float(cost.count[0, 1, 0])

    assert after_a_pause(0, 0.0) == MOST_SURE  # nothing was learned
    assert after_a_pause(5, 60.0) == MOST_SURE
    assert after_a_pause(5, 0.0) == FADED
    assert after_a_pause(5, 0.0) == MOST_SURE  # once a pause
    assert after_a_pause(6, 0.0) == FADED


def test_what_cannot_be_measured_is_left_out(start_anew: Callable[..., DrivenEngine]) -> None:
    engine = start_anew(patch=no_second_context, n_threads=2)
    if engine.ready.device != "CPU" or usable_cores() < 2:
        pytest.skip("no chunk is computed between ticks here")
    warned = engine.expect(m.Log)
    assert warned.level == "warn" and "not measured" in warned.text and "on purpose" in warned.text
    assert len(engine.run("def fibonacci(n):", max_tokens=8)) == 8


@pytest.mark.parametrize("shape", FAMILIES)
def test_eight_requests_at_once_succeed_on_a_model_that_was_never_served(
    start_anew: Callable[..., DrivenEngine], family_files: dict[str, str], shape: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Measuring left its sequences in a recurrent state, which cannot be cut."""
    engine = start_anew(model=family_files[shape], n_ctx=2048)
    alone = [engine.run(f"request {i}", max_tokens=6) for i in range(8)]
    until(lambda: known_shapes(tmp_path) > ROWS_TOO)
    serials = engine.submit_together([f"request {i}" for i in range(8)], max_tokens=6)
    for serial in serials:
        engine.wait(serial)
    assert [engine.reason(s) for s in serials] == [t.REASON_LENGTH] * 8
    assert all(len(engine.generated(s)) == 6 for s in serials)
    for serial in serials:
        engine.release(serial)
    assert [engine.run(f"request {i}", max_tokens=6) for i in range(8)] == alone


@pytest.mark.parametrize("shape", FAMILIES)
def test_a_prompt_that_was_given_up_is_computed_as_if_it_never_was(
    family_files: dict[str, str], shape: str
) -> None:
    # chunks of other sizes change the last bits of logits; the answer to this is the same with
    # chunks of 16, 17, 40, 64, 96, 200 and 512 tokens in all three families
    prompt = "def f(x):\n    return x + 1\n" * 411
    sizes = {"n_ctx": 8192, "tick_budget_ms": 4.0}
    with DrivenEngine(model=family_files[shape], probe=False, **sizes) as engine:
        engine.run("x", max_tokens=2, lane=LANE_BACKGROUND)
        expected = engine.run(prompt, max_tokens=6, lane=LANE_BACKGROUND)
        for _ in range(20):
            serial = engine.submit(prompt, max_tokens=6, lane=LANE_BACKGROUND)
            slot = engine.slots[serial]
            while engine.table.state[slot] != t.DONE and not engine.table.abort.armed:
                time.sleep(0.0002)
            engine.table.abort.urgent += 1  # as the front, with an interactive request
            engine.run("hello", max_tokens=1, lane=LANE_INTERACTIVE)
            engine.wait(serial)
            assert engine.reason(serial) == t.REASON_LENGTH
            assert engine.generated(serial) == expected
            engine.release(serial)
            if engine.table.header.aborted_chunks >= 1:
                return
        pytest.fail("no prompt was ever given up")


@pytest.mark.parametrize("shape", ["", *FAMILIES])
def test_a_sequence_is_cut_or_gone(
    model: llama.Model, family_files: dict[str, str], shape: str
) -> None:
    opened = llama.Model.open(llama.load(), family_files[shape], n_gpu_layers=0) if shape else model
    with llama.Context.open(opened, n_ctx=256, n_seq_max=2, n_threads=1) as context:
        ticks = bare(opened, context)
        assert ticks.measure(1, 20) > 0.0
        kept = context.seq_pos_max(0) + 1
        goes_back = not opened.library.lib.llama_model_is_recurrent(opened.pointer)
        goes_back &= not opened.library.lib.llama_model_is_hybrid(opened.pointer)
        if goes_back:
            assert kept == PAST and context.cut(0, 10) and context.seq_pos_max(0) == 9
        else:
            assert kept == 0  # one token more, which could not be taken back
            assert ticks.measure(1, 0) > 0.0 and not context.cut(0, 10)
            assert context.seq_pos_max(0) == -1
        ticks.close()
        for seq in range(2):
            assert context.seq_pos_max(seq) == -1
    if shape:
        opened.close()


def bare(model: llama.Model, context: llama.Context) -> BareTicks:
    loaded = SimpleNamespace(
        library=model.library, context=context, n_vocab=model.n_vocab, places=no_places(),
        threads=lambda aside: (1, 1), n_seq=context.n_seq_max, n_batch=64, n_positions=256,
    )  # fmt: skip
    return BareTicks(loaded, AbortWords.fresh())


def loaded_alone(model: llama.Model, context: llama.Context, n_seq: int) -> Any:
    """Parts of a loaded model that a prober uses."""
    return SimpleNamespace(
        library=model.library, context=context, n_vocab=model.n_vocab, places=no_places(),
        threads=lambda aside: (1, 1), n_seq=n_seq, n_batch=64, n_ctx=512, n_positions=512,
    )  # fmt: skip


def test_an_interactive_request_gives_a_measurement_up(model: llama.Model) -> None:
    with llama.Context.open(model, n_ctx=512, n_seq_max=2, n_threads=1) as context:
        words = AbortWords.fresh()
        abort.watch(context, words)
        loaded, cost = loaded_alone(model, context, 1), CostModel.unknown()
        words.urgent = 1  # somebody has come, and nobody has looked yet
        prober = Prober(loaded, cost, words)
        steps = prober.steps(0)
        next(steps)
        steps.close()
        assert not cost.count.any() and context.seq_pos_max(0) == -1
        words.urgent_seen = 1
        for _ in prober.steps(0):
            assert words.armed == 0
        assert is_known(cost, 0, 1, 0) and is_known(cost, 0, 0, 16)
        assert context.seq_pos_max(0) == -1


def measure(prober: Prober) -> None:
    for _ in prober.steps(0):
        pass


def test_several_rows_of_an_earlier_run_are_measured_once_more(model: llama.Model) -> None:
    """Others ran when it was measured: thought this long, drafts and merging are never tried."""
    with llama.Context.open(model, n_ctx=512, n_seq_max=4, n_threads=1) as context:
        loaded, cost = loaded_alone(model, context, 4), CostModel.unknown()
        measure(Prober(loaded, cost, AbortWords.fresh()))
        first = cost.mean[0, 2, 0]
        cost.mean[0, 2, 0] = 1e4 * first
        cost.mean[0, 4, 0] *= 1e-4  # a tick takes no less because others run
        kept = cost.mean[0, 4, 0]
        cost.doubt()
        prober = Prober(loaded, cost, AbortWords.fresh())
        measure(prober)
        assert cost.mean[0, 2, 0] < 100 * first
        assert is_known(cost, 0, 2, 0)
        assert cost.mean[0, 4, 0] == kept
        cost.mean[0, 2, 0] = 1e4 * first
        measure(prober)  # once a run
        assert cost.mean[0, 2, 0] == 1e4 * first


def test_a_cost_of_a_fuller_cache_is_compared_at_the_fill_of_the_probe(model: llama.Model) -> None:
    with llama.Context.open(model, n_ctx=512, n_seq_max=2, n_threads=1) as context:
        loaded, cost = loaded_alone(model, context, 2), CostModel.unknown()
        measure(Prober(loaded, cost, AbortWords.fresh()))
        first = cost.mean[0, 2, 0]
        cost.mean[0, 2, 0], cost.kv[0, 2, 0] = 2.0 * first, 4000.0
        cost.slope[0, 2] = 1000.0 * first / (2 * 4000.0)  # all of the second half
        cost.doubt()
        measure(Prober(loaded, cost, AbortWords.fresh()))
        assert cost.mean[0, 2, 0] == 2.0 * first


def test_more_rows_than_sequences_are_several_tokens_of_each(model: llama.Model) -> None:
    with llama.Context.open(model, n_ctx=512, n_seq_max=3, n_threads=1) as context:
        ticks, decoded = bare(model, context), list[list[int]]()
        decode, arrays = ticks._decode, ticks._batch.arrays

        def seen(*entries: Any, **how: Any) -> bool:
            done = decode(*entries, **how)
            of_rows = arrays.logits[: arrays.n_tokens[0]] == 1
            decoded.append(arrays.seq[: of_rows.size][of_rows].tolist())
            return done

        ticks._decode = seen  # type: ignore[method-assign]
        assert ticks.measure(8, 0) > 0.0
        assert decoded[-1] == [0, 0, 0, 1, 1, 1, 2, 2]
        assert ticks.measure(2, 0) > 0.0
        assert decoded[-1] == [0, 1]
        ticks.close()


def test_choosing_threads_can_be_given_up_and_leaves_all_of_them(model: llama.Model) -> None:
    class Ticks:
        def __init__(self, times: dict[int, float]) -> None:
            self.times, self.now = times, 0

        def threads(self, one: int, more: int) -> None:
            self.now = one

        def measure(self, rows: int, prompt: int) -> float:
            return self.times[self.now]

    def chosen(times: dict[int, float]) -> int:
        choice = choose(Ticks(times), 4, 1, 0)  # type: ignore[arg-type]
        while True:
            try:
                next(choice)
            except StopIteration as end:
                return int(end.value)

    assert chosen({4: 10.0, 3: 8.0}) == 3
    assert chosen({4: 10.0, 3: 9.5}) == 4
    assert chosen({4: 0.0, 3: 1.0}) == 4  # somebody came


class SlowFile(CostFile):
    """Writes when it is told to."""

    def __init__(self, folder: Path) -> None:
        super().__init__({}, folder)
        self.saved: list[CostModel] = []
        self.may_go = False

    def save(self, cost: CostModel) -> str:
        until(lambda: self.may_go)
        self.saved.append(cost)
        return "the disk is full"


def test_nobody_waits_for_costs_to_be_written(tmp_path: Path) -> None:
    file, cost = SlowFile(tmp_path), CostModel.unknown()
    keeper = CostKeeper(no_places(), cost)
    keeper.recall(file)
    assert keeper.save_now_and_then(5) == "" and not file.saved  # the last is not long ago
    keeper.learned()
    cost.ticks[0] = 1.0
    assert keeper.save_now_and_then(6) == ""  # comes back, with nothing written
    cost.ticks[0] = 2.0  # the ticks go on
    assert not file.saved
    file.may_go = True
    keeper.close()
    assert [float(saved.ticks[0]) for saved in file.saved] == [1.0]
    assert keeper.save_now_and_then(6) == "the disk is full"
    assert keeper.save_now_and_then(6) == ""
    keeper.save_now_and_then(7)
    keeper.close()
    assert [float(saved.ticks[0]) for saved in file.saved] == [1.0, 2.0]
