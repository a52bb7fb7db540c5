"""Parking on a real context: cells that left and came back say what they said before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from umaserve import llama
from umaserve.engine.cells.parking import Parking

N_CTX = 512
PROMPT = "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, "
OTHER = "import os\n\n\ndef walk(top):\n    for name in sorted("
PLENTY = 1 << 30


@pytest.fixture
def context(model: llama.Model) -> Iterator[llama.Context]:
    with llama.Context.open(model, n_ctx=N_CTX, n_batch=N_CTX, n_seq_max=4) as context:
        yield context


def decode(context: llama.Context, seq: int, tokens: list[int], past: int) -> np.ndarray:
    """Feed tokens to a sequence; the logits of the last one, float32[n_vocab], copied."""
    lib, ffi = context.library.lib, context.library.ffi
    batch = lib.llama_batch_init(len(tokens), 0, 1)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, past + i, 1
        batch.seq_id[i][0], batch.logits[i] = seq, i == len(tokens) - 1
    batch.n_tokens = len(tokens)
    status = lib.llama_decode(context.pointer, batch)
    lib.llama_batch_free(batch)
    assert status == 0
    row = lib.llama_get_logits_ith(context.pointer, -1)
    return np.frombuffer(ffi.buffer(row, 4 * context.model.n_vocab), np.float32).copy()


def greedy(context: llama.Context, seq: int, feed: list[int], past: int, n: int) -> list[int]:
    out: list[int] = []
    while len(out) < n:
        token = int(decode(context, seq, feed, past).argmax())
        past += len(feed)
        out.append(token)
        feed = [token]
    return out


def test_a_parked_session_goes_on_as_if_it_had_stayed(model, context):
    parking = Parking(context, PLENTY)
    tokens, other = model.tokenize(PROMPT), model.tokenize(OTHER)
    *known, last = tokens
    decode(context, 0, known, 0)
    undisturbed = greedy(context, 0, [last], len(known), 12)

    context.seq_rm(0)
    decode(context, 0, known, 0)
    assert parking.move_out(7, 0, len(known), recompute_ms=0.0)
    assert parking.moved(7)[1] == len(known)
    assert parking.bytes_held > 0
    context.seq_rm(0)
    # somebody else sits in its cells meanwhile, and in its sequence
    decode(context, 0, other, 0)
    assert parking.move_in(7, 2) == len(known)
    assert parking.moved(7)[1] == parking.bytes_held == 0
    assert context.seq_pos_max(2) == len(known) - 1
    assert greedy(context, 2, [last], len(known), 12) == undisturbed
    # and the other one is still itself
    assert context.seq_pos_max(0) == len(other) - 1


def test_what_is_computed_sooner_than_copied_is_not_kept(model, context):
    parking = Parking(context, PLENTY)
    tokens = model.tokenize(PROMPT)
    decode(context, 0, tokens, 0)
    assert not parking.move_out(3, 0, len(tokens), recompute_ms=1e-6)
    assert parking.moved(3)[1] == parking.bytes_held == 0
    assert parking.move_in(3, 1) == 0
    assert context.seq_pos_max(1) == -1
    # computing it again would take long
    assert parking.move_out(3, 0, len(tokens), recompute_ms=1e6)


def test_parked_sessions_stay_within_their_memory(model, context):
    tokens = model.tokenize(PROMPT)
    decode(context, 0, tokens, 0)
    decode(context, 1, tokens, 0)
    size = context.state_seq_size(0)
    parking = Parking(context, size + size // 2)
    assert parking.move_out(0, 0, len(tokens), 0.0)
    assert not parking.move_out(1, 1, len(tokens), 0.0)
    assert parking.bytes_held <= size + size // 2
    context.seq_rm(0)
    assert parking.move_in(0, 0) == len(tokens)
    assert parking.move_out(1, 1, len(tokens), 0.0)


def test_forgetting_frees_the_memory(model, context):
    parking = Parking(context, PLENTY)
    tokens = model.tokenize(PROMPT)
    decode(context, 0, tokens, 0)
    assert parking.move_out(5, 0, len(tokens), 0.0)
    parking.forget(5)
    parking.forget(5)
    assert parking.bytes_held == 0
    assert parking.move_in(5, 1) == 0


def test_without_cells_for_it_a_session_starts_anew(model, context):
    parking = Parking(context, PLENTY)
    tokens = model.tokenize(OTHER * 20)
    half = tokens[: N_CTX // 2 + 1]
    assert 2 * len(half) > context.n_ctx
    decode(context, 0, half, 0)
    assert parking.move_out(1, 0, len(half), 0.0)
    # the cells of two such sessions are more than there are
    assert parking.move_in(1, 1) == 0
    assert context.seq_pos_max(1) == -1
    assert parking.bytes_held == 0
    assert context.seq_pos_max(0) == len(half) - 1
