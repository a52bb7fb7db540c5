"""Sequences of rows, and those that ended rows leave for their next turns; nobody goes without."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine_driver import DrivenEngine
from tests.support.oracle import Oracle
from tests.support.patches.engine_spies import spied_sequences
from umaserve.cache.next_turn import FEWEST, Ended
from umaserve.engine.cells import sequences as s
from umaserve.engine.model.abilities import ENDED, spare_sequences
from umaserve.engine.native.status import NO_KV_SLOT
from umaserve.engine.prefixes.copies import stretches
from umaserve.engine.seats.seats import Seats
from umaserve.models.states import RESERVED
from umaserve.wire import messages as m

N_SEQ = 6
GREEDY = m.Sampling(temperature=0.0, ignore_eos=True)


class Cells:
    """Positions of each sequence, as libllama has them."""

    def __init__(self, n_seqs: int) -> None:
        self.n_seq_max, self.tokens = n_seqs, [0] * n_seqs

    def seq_rm(self, seq: int, p0: int = -1, p1: int = -1) -> bool:
        self.tokens[seq] = min(self.tokens[seq], max(p0, 0))
        return True

    def seq_pos_max(self, seq: int) -> int:
        return self.tokens[seq] - 1

    def clear(self) -> None:
        self.tokens = [0] * self.n_seq_max


def made(
    monkeypatch, more: int, plain: bool = True, on_processor: bool = False
) -> tuple[s.Sequences, Cells]:
    """Sequences over cells of a test, with ``more`` than rows."""
    monkeypatch.setattr(s, "why_not_plain", lambda _: "" if plain else "windows")
    cells = Cells(N_SEQ + RESERVED + more)
    loaded = SimpleNamespace(context=cells, n_seq=N_SEQ, on_processor=on_processor)
    return s.Sequences(loaded), cells


@settings(max_examples=200)
@given(
    more=st.sampled_from([0, 3, ENDED]), plain=st.booleans(),
    events=st.lists(st.tuples(st.sampled_from("tghcl"), st.integers(0, 99)), max_size=80),
)  # fmt: skip
def test_no_sequence_is_lost_and_none_has_two_owners(more, plain, events):
    with pytest.MonkeyPatch.context() as patch:
        sequences, cells = made(patch, more, plain)
        rows: list[int] = []
        for what, n in events:
            held = list(sequences.next_turns._held)
            if what == "t" and sequences.available:
                seq = sequences.take()
                assert cells.tokens[seq] == 0
                cells.tokens[seq] = FEWEST + n
                rows.append(seq)
            elif what in "gh" and rows:
                seq = rows.pop(n % len(rows))
                size = cells.tokens[seq]
                ended = Ended("a", 0, np.zeros(size, np.int32), size, 0.0) if what == "h" else None
                sequences.give_back(seq, ended=ended)
            elif what == "c" and held and sequences.available:
                seq = held[n % len(held)]
                known = cells.tokens[seq]
                at = known if not plain and n % 2 else 1 + n % known

                def rewind(seq: int = seq, at: int = at) -> bool:
                    cells.tokens[seq] = at
                    return True

                assert sequences.go_on(seq, at - 1, rewind if at < known and not plain else None)
                assert cells.tokens[seq] == at
                rows.append(seq)
            elif what == "l" and held:
                sequences.let_go(held[n % len(held)])
            sequences.check(dict(enumerate(cells.tokens)), set(rows))
            assert sequences.holds or not sequences.next_turns
            assert sequences.has_free or not sequences.available or not plain


@pytest.mark.parametrize("on_processor", [False, True])
def test_an_accelerator_holds_the_texts_of_two_agents_whatever_its_memory_can_do(
    monkeypatch, on_processor
):
    sequences, cells = made(monkeypatch, 0, plain=False, on_processor=on_processor)
    for _ in range(2):
        seq = sequences.take()
        cells.tokens[seq] = 7000
        sequences.give_back(seq, ended=Ended("a", 0, np.zeros(7000, np.int32), 7000, 0.0))
    assert (sequences.next_turns.overdue(0, 49_152, 1.0) >= 0) == on_processor


def test_a_held_sequence_that_is_not_what_was_said_is_free(monkeypatch):
    sequences, cells = made(monkeypatch, ENDED)
    seq = sequences.take()
    cells.tokens[seq] = 200
    sequences.give_back(seq, ended=Ended("a", 0, np.zeros(200, np.int32), 200, 0.0))
    cells.tokens[seq] = 100
    assert not sequences.go_on(seq, 149)
    sequences.check(dict(enumerate(cells.tokens)), set())


def test_a_held_sequence_that_cannot_be_taken_back_is_free(monkeypatch):
    sequences, cells = made(monkeypatch, 0, plain=False)
    seq = sequences.take()
    cells.tokens[seq] = 200
    sequences.give_back(seq, ended=Ended("a", 0, np.zeros(200, np.int32), 200, 0.0))
    assert not sequences.go_on(seq, 199, lambda: False)
    sequences.check(dict(enumerate(cells.tokens)), set())


def test_the_cache_is_emptied_with_what_is_held(monkeypatch):
    sequences, cells = made(monkeypatch, ENDED)
    seq = sequences.take()
    cells.tokens[seq] = 200
    sequences.clear()
    assert cells.tokens[seq] == 200  # a row has it
    sequences.give_back(seq, ended=Ended("a", 0, np.zeros(200, np.int32), 200, 0.0))
    sequences.clear()
    assert not any(cells.tokens) and not sequences.next_turns
    sequences.check(dict(enumerate(cells.tokens)), set())


def test_only_where_cells_are_held_there_are_sequences_for_them(model):
    """Each costs memory for the logits of a row."""
    lib = model.library.lib
    plain = {name: getattr(lib, name) for name in (
        "llama_model_is_recurrent", "llama_model_is_hybrid", "llama_model_n_swa",
        "llama_model_has_encoder", "llama_model_is_diffusion", "llama_model_rope_type",
        "llama_max_parallel_sequences", "LLAMA_ROPE_TYPE_MROPE", "LLAMA_ROPE_TYPE_IMROPE",
    )}  # fmt: skip
    windows = {**plain, "llama_model_n_swa": lambda _: 1024}
    most = lib.llama_max_parallel_sequences()
    for names, on_processor, rows, spare in (
        (plain, False, 4, RESERVED + ENDED), (plain, False, most - 5, 5),
        (plain, False, most, 0), (plain, True, 4, 1), (windows, False, 4, 1),
    ):  # fmt: skip
        library = SimpleNamespace(lib=SimpleNamespace(**names))
        one = SimpleNamespace(pointer=model.pointer, library=library)
        assert spare_sequences(rows, on_processor, one) == spare


def test_a_prompt_is_taken_to_lie_together_and_an_answer_apart():
    assert stretches(0, 512, 4000) == 1
    assert stretches(100, 160, 130) == 31
    assert stretches(200, 260, 130) == 61


def test_streams_that_come_and_end_are_answered_the_same(tmp_path):
    """Cells run short on the way, and held ones go first."""
    seen_file = tmp_path / "seen"
    prompts = ["def fibonacci(n):", "class Node:", "import os", "for i in range(10):"]
    long = "def add(a, b):\n    return a + b\n\n" * 8
    oracle = Oracle(n_ctx=1024)
    spied = partial(spied_sequences, path=str(seen_file))
    with DrivenEngine(patch=spied, n_ctx=1024, n_seq=4) as engine:
        running = []

        def finish(serial, text, n):
            engine.wait(serial, timeout=120)
            assert len(engine.generated(serial)) == n
            oracle.assert_followed(text, engine.generated(serial))
            engine.release(serial)

        for turn in range(5):
            for i, prompt in enumerate(prompts):
                text, n = (long if (turn + i) % 2 else "") + prompt, 30 + 40 * i
                serial = engine.submit(text, max_tokens=n, sampling=GREEDY, domain="d")
                running.append((serial, text, n))
            while len(running) > 3:  # the others may still run when the next ones come
                finish(*running.pop(0))
        for one in running:
            finish(*one)
    oracle.close()
    assert max(json.loads(line)[0] for line in seen_file.read_text().splitlines()) > 0


def test_a_batch_that_finds_no_cells_comes_again_once_some_are_free():
    evicted = []
    in_tick = np.ones(4, np.int32)
    seats = SimpleNamespace(
        _table=SimpleNamespace(in_tick=in_tick), evict=lambda: not evicted.append(1)
    )
    Seats.decode_failed(seats, NO_KV_SLOT, [0, 2])
    assert evicted
    assert in_tick.tolist() == [0, 1, 0, 1]
