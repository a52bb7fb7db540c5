"""libllama by itself, without engine or front: what outputs are compared with."""

from __future__ import annotations

import os

import numpy as np

from umaserve import llama
from umaserve.assets import demo_model_path

FEW = 40  # tokens


class Oracle:
    """The bundled model, or another, in this process; one sequence, one context."""

    def __init__(self, n_ctx: int = 4096, model: str = "") -> None:
        self.library = llama.load("auto")
        path = model or str(demo_model_path())
        self.model = llama.Model.open(self.library, path, n_gpu_layers=-1)
        self.context = llama.Context.open(
            self.model, n_ctx=n_ctx, n_batch=n_ctx, n_ubatch=512, n_seq_max=1, n_threads=1,
            n_threads_batch=os.cpu_count() or 1,
        )  # fmt: skip
        self.eog = np.asarray(self.model.eog_mask()).astype(bool)

    def close(self) -> None:
        self.context.close()
        self.model.close()

    def greedy(self, prompt: str, n: int) -> list[int]:
        """llama.cpp's own greedy sampler over its own decode, up to ``n`` tokens."""
        lib, ffi = self.library.lib, self.library.ffi
        self.context.clear()
        sampler = lib.llama_sampler_init_greedy()
        feed, out = self.model.tokenize(prompt), []
        while len(out) < n:
            array = ffi.new("llama_token[]", feed)
            batch = lib.llama_batch_get_one(array, len(feed))
            assert lib.llama_decode(self.context.pointer, batch) == 0
            token = lib.llama_sampler_sample(sampler, self.context.pointer, -1)
            if self.eog[token]:
                break
            out.append(token)
            feed = [token]
        lib.llama_sampler_free(sampler)
        return out

    def greedy_gaps(self, prompt: str | list[int], tokens: list[int]) -> np.ndarray:
        """How far each of ``tokens`` is from being the most likely one after those before it.

        Logits, float32[len(tokens)]; 0 where it is.  End tokens are left out of the comparison.
        """
        lib, ffi = self.library.lib, self.library.ffi
        self.context.clear()
        prompt_tokens = self.model.tokenize(prompt) if isinstance(prompt, str) else prompt
        everything = (prompt_tokens + tokens)[:-1]
        batch = lib.llama_batch_init(len(everything), 0, 1)
        for i, token in enumerate(everything):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, i >= len(prompt_tokens) - 1
        batch.n_tokens = len(everything)
        assert lib.llama_decode(self.context.pointer, batch) == 0
        gaps = np.empty(len(tokens), np.float32)
        for i, token in enumerate(tokens):
            row = lib.llama_get_logits_ith(self.context.pointer, len(prompt_tokens) - 1 + i)
            logits = np.frombuffer(ffi.buffer(row, 4 * self.model.n_vocab), np.float32).copy()
            logits[self.eog] = -np.inf
            gaps[i] = logits.max() - logits[token]
        lib.llama_batch_free(batch)
        return gaps

    def assert_followed(self, prompt: str | list[int], tokens: list[int]) -> None:
        """No token is lost or doubled: each is the best one after all before it, or all but.

        Kernels for other batch shapes differ by up to about one logit on the bundled model.  How
        many tokens that turns says little (past the natural end of a text near-ties are frequent:
        18 of 150 seen); a token taken out of 80 such streams, or doubled in them, always showed
        as a gap of more than 5 at the next ones.  Of a few tokens one near-tie makes up most of the
        mean, so that is looked at as if they were ``FEW``.
        """
        gaps = self.greedy_gaps(prompt, tokens)
        assert gaps.max() < 4.0, (prompt, gaps)
        assert gaps.sum() / max(gaps.size, FEW) < 0.1, (prompt, gaps)
