"""Cells of ended requests are kept so that prompts find room together; nobody goes without."""

from __future__ import annotations

import json
import random
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cell_rule import Cells
from tests.support.engine_driver import DrivenEngine
from tests.support.oracle import Oracle
from tests.support.patches.engine_spies import spied_sequences
from umaserve import llama
from umaserve.cache.next_turn import FEWEST, Ended
from umaserve.engine.cells import cell_map as c
from umaserve.engine.cells import sequences as s
from umaserve.engine.cells.piece import Piece, export_piece, import_piece, saved_positions
from umaserve.engine.loop import engine as loop
from umaserve.engine.model.abilities import ENDED, RESERVED, spare_sequences
from umaserve.engine.native.batch import Batch
from umaserve.engine.native.status import NO_KV_SLOT
from umaserve.wire import messages as m

N_SEQ, N_CTX = 6, 4096
GREEDY = m.Sampling(temperature=0.0, ignore_eos=True)
NOTHING = np.empty(0, np.uint8)
PIECE = 128  # tokens of a prompt that are copied at once


class Engine:
    """Rows, prompts and ticks over the cells of a test; `Sequences` thinks that it has libllama."""

    def __init__(self, patch, keeps=True, n_ctx=N_CTX, n_ubatch=64):
        self.theirs, self.n_ctx, self.n_ubatch = Cells(n_ctx), n_ctx, n_ubatch
        theirs = self.theirs
        names = vars(c)
        for name in [name for name in names if hasattr(names[name], "py_func")]:
            patch.setitem(names, name, names[name].py_func)  # interpreted
        patch.setitem(names, "call_i64_ptr_i32_i32_i32", lambda _, __, *what: theirs.seq_rm(*what))
        patch.setattr(s, "why_not_plain", lambda _: "")
        context = SimpleNamespace(
            n_seq_max=N_SEQ + RESERVED + (ENDED if keeps else 0),
            memory=0,
            seq_rm=theirs.seq_rm,
            seq_pos_max=theirs.seq_pos_max,
        )
        library = SimpleNamespace(
            ffi=SimpleNamespace(cast=lambda _, value: value), address=lambda _: 0,
            lib=SimpleNamespace(llama_memory_clear=lambda *_: theirs.clear()),
        )  # fmt: skip
        self.sequences = s.Sequences(
            SimpleNamespace(
                library=library, context=context, n_ctx=n_ctx, n_seq=N_SEQ, n_ubatch=n_ubatch
            )
        )
        self.sequences.keep()
        self.sequences.clear()
        self.rows = {}  # sequence: tokens
        self.stretches = []  # of each prompt's piece that was copied

    def fits(self, tokens):
        """Whether there is room, once what is held has been let go for it."""
        turns = self.sequences.next_turns
        used = sum(self.rows.values()) + tokens
        while turns and used + turns.cells > self.n_ctx:
            self.sequences.let_go(turns.oldest())
        return used <= self.n_ctx

    def come(self, prompt, copied=True):
        """A prompt's cells: copied in pieces, or computed in one tick."""
        if not self.sequences.available or not self.fits(prompt):
            return None
        seq = self.sequences.take()
        assert seq not in self.rows and not (self.theirs.owner == seq).any()
        self.rows[seq] = prompt
        if not copied:
            self.tick([seq] * prompt, list(range(prompt)))
            return seq
        for at in range(0, prompt, PIECE):
            n = min(PIECE, prompt - at)
            self.sequences.place(seq, NOTHING, at, at + n)
            self.stretches.append(self.theirs.take(seq, n, at))
        return seq

    def decode(self, exactly=False):
        if self.rows and self.fits(len(self.rows)):
            self.tick(list(self.rows), list(self.rows.values()), exactly)
            self.rows = {seq: n + 1 for seq, n in self.rows.items()}

    def tick(self, seqs, positions, exactly=False):
        cells, n = self.sequences.cells, len(seqs)
        c.make_room(cells, n, n >= 2 * N_SEQ, exactly)
        c.take_cells(cells, np.array(seqs), np.array(positions), n)
        for at in range(0, n, self.n_ubatch):
            self.theirs.take_batch(
                seqs[at : at + self.n_ubatch], positions[at : at + self.n_ubatch]
            )

    def end(self, seq, hold=False):
        n = self.rows.pop(seq)
        ended = Ended("", 0, np.arange(n), n, 0.0) if hold else None
        self.sequences.give_back(seq, ended=ended)

    def go_on(self, n):
        """The next turn of what is held longest, with ``n`` tokens of it at most."""
        held = self.sequences.next_turns
        if held and self.sequences.available:
            seq = held.oldest()
            n = min(held.size(seq), n)
            assert self.sequences.go_on(seq, n)
            self.rows[seq] = n

    def pass_by(self, n):
        """Tokens of nobody's are computed and forgotten."""
        seq = self.sequences.for_nobody(n)
        self.theirs.take(seq, n)
        self.theirs.free_all_of(seq)

    @property
    def held(self):
        """Tokens of each sequence that is held."""
        turns = self.sequences.next_turns
        return {seq: n for seq in range(N_SEQ + RESERVED + ENDED) if (n := turns.size(seq))}

    def check(self):
        """What is said of the cells is so, and every row has its own."""
        cells, theirs = self.sequences.cells, self.theirs
        for seq, n in self.rows.items():
            mine = np.flatnonzero(theirs.owner == seq)
            assert sorted(theirs.position[mine]) == list(range(n))
        if not cells.marks.valid:
            return
        assert cells.owner.tolist() == theirs.owner.tolist()
        taken = theirs.owner >= 0
        assert cells.position[taken].tolist() == theirs.position[taken].tolist()
        assert cells.marks.head == theirs.head
        assert cells.marks.used == taken.sum()
        for seq, n in self.held.items():
            mine = np.flatnonzero(theirs.owner == seq)
            assert sorted(theirs.position[mine]) == list(range(n))
        assert self.sequences.next_turns.cells == sum(self.held.values())
        live = np.isin(theirs.owner, [*self.rows, *self.held])
        last = np.flatnonzero(taken)[-1] + 1 if taken.any() else 0
        assert cells.marks.top == last
        if live.any():
            assert live[: cells.marks.low].all()


EVENTS = st.one_of(
    st.tuples(st.just("come"), st.integers(1, 500)),
    st.tuples(st.just("compute"), st.integers(1, 500)),
    st.tuples(st.just("end"), st.integers(0, 7)),
    st.tuples(st.just("hold"), st.integers(0, 7)),
    st.tuples(st.just("go on"), st.integers(FEWEST, 200)),
    st.tuples(st.just("let go"), st.just(0)),
    st.tuples(st.just("for nobody"), st.integers(1, 40)),
    st.tuples(st.just("decode"), st.integers(1, 80)),
    st.tuples(st.just("decode exactly"), st.integers(1, 40)),
    st.tuples(st.just("lose track"), st.just(0)),
)


@given(st.lists(EVENTS, min_size=1, max_size=40), st.sampled_from([600, N_CTX]))
@settings(max_examples=200)
def test_no_cell_is_lost_and_none_is_missing(events, n_ctx):
    """However requests come and end, whoever fits gets cells, and it is known who has which."""
    with pytest.MonkeyPatch.context() as patch:
        engine = Engine(patch, n_ctx=n_ctx)
        for what, n in events:
            if what in ("come", "compute"):
                engine.come(n, what == "come")
            elif what in ("end", "hold") and engine.rows:
                engine.end(list(engine.rows)[n % len(engine.rows)], what == "hold")
            elif what == "go on":
                engine.go_on(n)
            elif what == "let go" and engine.sequences.next_turns:
                engine.sequences.let_go(engine.sequences.next_turns.oldest())
            elif what == "for nobody" and engine.fits(n):
                engine.pass_by(n)
            elif what == "lose track":
                engine.sequences.lose_track()
            elif what.startswith("decode"):
                for _ in range(n):
                    engine.decode(what == "decode exactly")
            engine.check()
        while engine.sequences.next_turns:
            engine.sequences.let_go(engine.sequences.next_turns.oldest())
        for seq in [*engine.rows, engine.come(1)]:
            if seq is not None:
                engine.end(seq)
        assert engine.sequences.cells.marks.valid  # whatever went wrong is over
        assert not (engine.theirs.owner >= 0).any()
        given_out = [engine.sequences.take() for _ in range(N_SEQ)]
        assert len(set(given_out)) == N_SEQ and not engine.sequences.available


def chats(patch, keeps, seed):
    """Stretches of the pieces of chats with prompts and answers of all lengths, and how far cells
    reach, over those in use, in the mean."""
    rng, engine = random.Random(seed), Engine(patch, keeps)
    ends, reach = {}, []
    for tick in range(1500):
        if len(engine.rows) < 4 and rng.random() < 0.05:
            ends[engine.come(rng.randrange(20, 500))] = tick + rng.randrange(20, 300)
        engine.decode()
        for seq in [seq for seq in engine.rows if ends[seq] <= tick]:
            engine.end(seq)
        if engine.rows:
            last = np.flatnonzero(engine.theirs.owner >= 0)[-1] + 1
            reach.append(last / sum(engine.rows.values()))
    engine.check()
    return engine.stretches, np.mean(reach)


@pytest.mark.parametrize("seed", range(3))
def test_prompts_that_are_copied_are_not_scattered(seed):
    """Each stretch of cells costs copies of its own; and attention reads up to the last one."""
    with pytest.MonkeyPatch.context() as patch:
        kept, reach = chats(patch, True, seed)
    with pytest.MonkeyPatch.context() as patch:
        not_kept, usual = chats(patch, False, seed)
    assert len(kept) > 40
    # a few cells may have been freed for the next tokens before the prompt came
    assert np.median(kept) <= 2 and np.mean(kept) < 4 and max(kept) <= 2 * c.UNIT
    assert np.mean(not_kept) > 6 * np.mean(kept)  # what it is for
    assert reach < 1.15 * usual


def test_exactly_as_many_are_freed_where_a_prompt_may_come():
    with pytest.MonkeyPatch.context() as patch:
        engine = Engine(patch)
        first, second, third = (engine.come(20) for _ in range(3))
        for _ in range(100):
            engine.decode(True)
        engine.end(first)
        for _ in range(5):
            engine.decode(True)
        engine.stretches.clear()
        engine.come(300)
        engine.end(second)
        for _ in range(7):
            engine.decode(True)
        engine.come(400)
        engine.check()
        assert set(engine.stretches) == {1}


def test_a_whole_cache_of_single_cells_serves_a_prompt_all_the_same():
    with pytest.MonkeyPatch.context() as patch:
        engine = Engine(patch, n_ctx=256)
        for _ in range(5):
            engine.come(1)
        for _ in range(40):
            engine.decode()
        for seq in list(engine.rows)[:3]:
            engine.end(seq)
        assert engine.come(170) is not None
        engine.check()


def test_the_span_does_not_stay_long_for_what_has_ended():
    """Attention reads up to the last cell that is not free."""
    with pytest.MonkeyPatch.context() as patch:
        engine = Engine(patch)
        for _ in range(5):
            engine.come(600)
        engine.decode()
        for seq in list(engine.rows)[1:]:
            engine.end(seq)
        assert engine.sequences.cells.marks.top == 3001  # its last token lies there
        assert (engine.theirs.owner[600:3000] >= 0).all()  # kept
        engine.end(next(iter(engine.rows)))
        assert engine.sequences.cells.marks.top == 0
        engine.come(600)
        engine.come(600)
        engine.end(next(iter(engine.rows)))
        assert engine.sequences.cells.marks.top == 1200
        engine.end(next(iter(engine.rows)))
        engine.come(600)
        engine.come(600)
        engine.end(list(engine.rows)[1])
        assert engine.sequences.cells.marks.top == 600
        engine.check()


def test_more_requests_may_end_than_there_are_sequences_to_keep():
    with pytest.MonkeyPatch.context() as patch:
        engine = Engine(patch)
        staying = engine.come(30)
        for _ in range(ENDED + 20):
            seq = engine.come(2)
            engine.decode(True)  # the one that stays has the last cell
            engine.end(seq)
            engine.check()
        assert list(engine.rows) == [staying]


@pytest.fixture
def loaded(model):
    context = llama.Context.open(
        model, n_ctx=512, n_batch=256, n_ubatch=256, n_seq_max=N_SEQ + RESERVED + ENDED,
        n_threads=1,
    )  # fmt: skip
    yield SimpleNamespace(
        library=model.library, model=model, context=context, n_ctx=512, n_seq=N_SEQ, n_ubatch=256,
        n_vocab=model.n_vocab,
    )  # fmt: skip
    context.close()


def test_libllama_has_its_cells_where_it_is_said(loaded, model):
    """Told to forget what was kept, it finds room for a prompt where that was; and no other."""
    batch, lib = Batch(model.library.ffi, 256, 8), model.library.lib
    arrays, context = batch.arrays, loaded.context
    sequences = s.Sequences(loaded)
    sequences.keep()
    cells = sequences.cells

    def decode(*what):
        """(sequence, first position, how many)"""
        n = 0
        for seq, at, count in what:
            arrays.seq[n : n + count], arrays.pos[n : n + count] = seq, range(at, at + count)
            n += count
        arrays.token[:n], arrays.logits[:n] = 5, 0
        arrays.logits[n - 1], arrays.n_tokens[0] = 1, n
        c.make_room(cells, n, n >= c.TOGETHER, True)
        c.take_cells(cells, arrays.seq, arrays.pos, n)
        return lib.uma_decode(context.pointer, batch.struct)

    a, b = sequences.take(), sequences.take()
    assert decode((a, 0, 150)) == decode((b, 0, 40)) == 0
    for i in range(50):
        assert decode((b, 40 + i, 1), (a, 150 + i, 1)) == 0
    assert cells.marks.top == cells.marks.used == 290
    sequences.give_back(a)
    assert context.seq_pos_max(a) == 198  # of its last cells, one lies behind those of the other
    d = sequences.take()
    assert decode((d, 0, 100)) == 0  # where the prompt was
    assert (cells.owner[:100] == d).all() and (cells.owner[100:150] == a).all()
    assert lib.llama_memory_seq_pos_min(context.memory, a) == 100
    assert decode((d, 100, 150)) == 0  # nowhere but behind
    assert cells.owner[290] == d
    assert decode((d, 250, 80)) == 0 and cells.marks.used == 439  # what was kept
    assert decode((d, 330, 92)) == 0 and cells.marks.used == 512  # all there are
    assert context.seq_pos_max(a) == -1
    assert decode((d, 422, 1)) == 1 and not cells.marks.valid
    sequences.lose_track()
    assert context.seq_pos_max(b) == 89 and context.seq_pos_max(d) == 421


@pytest.mark.parametrize("seed", range(3))
def test_libllama_follows_the_rule_that_is_played(loaded, model, seed):
    """Requests come, are copied or computed, decode, lose a part and end: each one's positions lie
    in the order that is expected, as far as libllama tells (it saves a sequence by its cells)."""
    rng, batch, lib = random.Random(seed), Batch(model.library.ffi, 256, 8), model.library.lib
    arrays, context = batch.arrays, loaded.context
    other = llama.Context.open(model, n_ctx=512, n_batch=256, n_ubatch=64, n_seq_max=2, n_threads=1)
    sequences = s.Sequences(loaded)
    sequences.keep()
    cells, rows, seen = sequences.cells, {}, 0

    def decode(into, tokens):
        n = len(tokens)
        arrays.seq[:n], arrays.pos[:n] = zip(*tokens, strict=True)
        arrays.token[:n], arrays.logits[:n] = 5, 0
        arrays.logits[n - 1], arrays.n_tokens[0] = 1, n
        if into is context:
            c.make_room(cells, n, n >= c.TOGETHER, rng.random() < 0.5)
            c.take_cells(cells, arrays.seq, arrays.pos, n)
        assert lib.uma_decode(into.pointer, batch.struct) == 0

    # the piece that is copied lies in cells whose order is not its own
    decode(other, [(1, i) for i in range(60)])
    decode(other, [(0, i) for i in range(30)])
    other.seq_rm(1)
    decode(other, [(0, i) for i in range(30, 100)])
    room, size = export_piece(other, 0, 1, 0, 100)
    assert saved_positions(room, 0, 100).tolist() != list(range(100))
    for _ in range(150):
        what = rng.random()
        if what < 0.25 and sequences.available and sum(rows.values()) < 250:
            seq = sequences.take()
            if rng.random() < 0.5:
                sequences.place(seq, room, 0, 100)
                assert import_piece(context, seq, N_SEQ, Piece(0, 0, 0, 0, 100, room, size))
                rows[seq] = 100
            else:
                rows[seq] = rng.randrange(1, 120)
                decode(context, [(seq, i) for i in range(rows[seq])])
        elif what < 0.4 and rows:
            seq = rng.choice(list(rows))
            del rows[seq]
            sequences.give_back(seq)
        elif what < 0.5 and max(rows.values(), default=0) > 2:
            seq = max(rows, key=lambda seq: rows[seq])
            p0 = rng.randrange(rows[seq] - 1)
            p1 = rng.randrange(p0 + 1, rows[seq])
            assert sequences.shift(seq, p0, p1)
            rows[seq] -= p1 - p0
        elif rows and sum(rows.values()) < 400:
            for _ in range(rng.randrange(1, 12)):
                decode(context, list(rows.items()))
                rows = {seq: n + 1 for seq, n in rows.items()}
        assert cells.marks.valid
        for seq, n in rows.items():
            saved, _ = export_piece(context, seq, N_SEQ, 0, n)
            expected = cells.position[cells.owner == seq]
            assert saved_positions(saved, 0, n).tolist() == expected.tolist()
            seen += bool((np.diff(expected) < 0).any())
    assert seen > 20  # sequences whose order says something
    other.close()


def test_positions_are_read_as_libllama_saved_them(loaded, model):
    """It goes by cells: what came later may lie in front."""
    batch, lib = Batch(model.library.ffi, 256, 8), model.library.lib
    arrays, context = batch.arrays, loaded.context

    def decode(seq, at, n):
        arrays.seq[:n], arrays.pos[:n] = seq, range(at, at + n)
        arrays.token[:n], arrays.logits[:n] = 5, 0
        arrays.logits[n - 1], arrays.n_tokens[0] = 1, n
        assert lib.uma_decode(context.pointer, batch.struct) == 0

    decode(0, 0, 60)
    decode(1, 0, 50)
    context.seq_rm(0)
    decode(1, 50, 40)  # in the cells of the other
    room, used = export_piece(context, 1, N_SEQ, 20, 90)
    assert saved_positions(room[:used], 20, 90).tolist() == [*range(50, 90), *range(20, 50)]
    assert saved_positions(room[:used], 0, 70).tolist() == list(range(70))  # not what it is
    assert saved_positions(NOTHING, 0, 70).tolist() == list(range(70))
    sequences = s.Sequences(loaded)
    sequences.keep()
    seq = sequences.take()
    sequences.place(seq, room, 20, 90)
    piece = Piece(0, 0, 0, 20, 90, room, used)
    decode(seq, 0, 20)
    c.take_cells(sequences.cells, arrays.seq, arrays.pos, 20)  # the other way round, and no harm
    assert import_piece(context, seq, N_SEQ, piece)
    assert sequences.cells.position[:40].tolist() == list(range(50, 90))


def test_everything_is_compiled_before_the_first_request(loaded):
    """A first landing waited half a second for it."""
    sequences = s.Sequences(loaded)
    before = {name: len(f.overloads) for name, f in vars(c).items() if hasattr(f, "overloads")}
    sequences.clear()
    seqs = [sequences.take() for _ in range(N_SEQ)]
    for seq in seqs:
        sequences.place(seq, NOTHING, 0, 5)
    sequences.forgotten(N_SEQ)
    for seq in seqs:
        sequences.give_back(seq)
    assert before == {
        name: len(f.overloads) for name, f in vars(c).items() if hasattr(f, "overloads")
    }
    assert before["make_room"] and before["take_together"] and before["end_sequence"]


def test_only_where_cells_are_kept_there_are_sequences_for_them(model):
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


def test_where_nothing_is_copied_nothing_is_kept(loaded):
    for n_seq, told in ((N_SEQ, False), (N_SEQ + ENDED, True)):
        sequences = s.Sequences(SimpleNamespace(**{**vars(loaded), "n_seq": n_seq}))
        if told:
            sequences.keep()
        sequences.clear()
        assert not sequences.cells.marks.valid
        seq = sequences.take()
        sequences.place(seq, NOTHING, 0, 100)
        sequences.give_back(seq)
        assert not sequences.lose_track()


def test_where_nobody_knows_a_prompt_is_taken_to_lie_together(loaded):
    """A copy of it pays then, also before the device has been measured."""
    sequences = s.Sequences(loaded)
    assert not sequences.keeps_cells
    assert sequences.stretches(0, 0, 512, 4000) == 1
    assert sequences.stretches(0, 100, 160, 130) == 31
    assert sequences.stretches(0, 200, 260, 130) == 61



def test_streams_that_come_and_end_are_answered_the_same(tmp_path):
    """Cells run short on the way, and what is kept goes first."""
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
                running.append((engine.submit(text, max_tokens=n, sampling=GREEDY), text, n))
            while len(running) > 3:  # the others may still run when the next ones come
                finish(*running.pop(0))
        for one in running:
            finish(*one)
    oracle.close()
    seen = [json.loads(line) for line in seen_file.read_text().splitlines()]
    assert max(ended for *_, ended in seen) > 0
    assert [used for valid, used, _, _ in seen if valid][-1] == 0
    assert all(used <= top <= 1024 for valid, used, top, _ in seen if valid)
    assert [valid for valid, *_ in seen].count(1) > len(seen) // 2


def test_a_batch_that_finds_no_cells_comes_again_once_some_are_free():
    """Of those that nobody reads first, then somebody's."""
    calls, found = [], {"ended", "evict"}

    def free(what):
        calls.append(what)
        return what in found

    engine = SimpleNamespace(
        table=SimpleNamespace(in_tick=np.ones(4, np.int32)),
        sequences=SimpleNamespace(lose_track=lambda: free("ended")),
        seats=SimpleNamespace(evict=lambda: free("evict")),
    )
    for gone, expected in (((), 1), (("ended",), 2)):
        found -= set(gone)
        calls.clear()
        loop.Engine._failed(engine, NO_KV_SLOT, np.array([0, 2]))
        assert calls == ["ended", "evict"][:expected]
    assert engine.table.in_tick.tolist() == [0, 1, 0, 1]
