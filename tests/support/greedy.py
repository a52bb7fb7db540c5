"""Greedy generation with the bare library, for tests that ask what a model says."""

from __future__ import annotations

import numpy as np

from umaserve import llama


def greedy(model: llama.Model, prompt: str, n: int, *, n_ctx: int = 1024) -> tuple[str, bool]:
    """(text, whether an end-of-generation token ended it) of at most `n` tokens.

    Every logits row is checked to be finite. Control tokens are part of the text.
    """
    lib, ffi = model.library.lib, model.library.ffi
    ends = model.eog_mask()
    feed = model.tokenize(prompt)
    pieces: list[bytes] = []
    with llama.Context.open(model, n_ctx=n_ctx, n_batch=n_ctx, n_threads=1) as context:
        for _ in range(n):
            tokens = ffi.new("llama_token[]", feed)
            batch = ffi.new("struct llama_batch *")
            batch.n_tokens, batch.token = len(feed), tokens
            assert lib.uma_decode(context.pointer, batch) == 0
            row = lib.llama_get_logits_ith(context.pointer, -1)
            logits = np.frombuffer(ffi.buffer(row, 4 * model.n_vocab), np.float32)
            assert np.isfinite(logits).all()
            token = int(logits.argmax())
            if ends[token]:
                return b"".join(pieces).decode("utf-8", "replace"), True
            pieces.append(model.token_to_piece_bytes(token, special=True))
            feed = [token]
    return b"".join(pieces).decode("utf-8", "replace"), False
