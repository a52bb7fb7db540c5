"""The context of its own that work beside the requests has: made at first use, freed when unused.

One context gives embeddings and logits in turn (``llama_set_embeddings``).  It pools nothing
(`jobs` says why), and holds one text.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from umaserve import llama
from umaserve.engine.model.abilities import device_memory, flash_attention
from umaserve.engine.model.loaded import Loaded, Setup
from umaserve.engine.native import abort
from umaserve.engine.native.batch import Batch
from umaserve.models.kv_shape import padded
from umaserve.models.needs import available_bytes, gib
from umaserve.policy.cost.model import TILED

# tokens of a chunk at most, each with a row of logits.  From `TILED` on libllama's attention
# on a processor has another kernel.  A text is computed in chunks that are as long, as it would be
# at once, and gets the same numbers
CHUNK, ACCELERATOR_CHUNK = 2 * TILED - 1, 256
LEAST_CELLS = 1024
RESERVE_BYTES = 256 << 20  # for compute buffers, and that is left alone


def why_no_room(loaded: Loaded, tokens: int) -> str:
    """Why there is no memory for a context of so many tokens; "" = there is."""
    cells = padded(max(tokens, LEAST_CELLS))
    need = loaded.kv_bytes * cells // max(loaded.n_ctx, 1) + RESERVE_BYTES
    need += 4 * loaded.n_vocab * chunk_of(loaded)
    if loaded.on_processor:
        # mapped weights count as available, and are to stay; so do KV cells that come into use
        free: int | None = available_bytes() - loaded.unused_bytes - loaded.model.size_bytes
        if not available_bytes():
            free = None  # the system does not say
    else:
        free = device_memory(loaded)
    if free is None or need <= free:
        return ""
    return (
        f"a context of {cells} tokens for it takes {gib(need)}, and {gib(max(free, 0))} are free; "
        "shorten the text, or start the daemon with a smaller --n-ctx"
    )


def chunk_of(loaded: Loaded) -> int:
    """Tokens that the context computes at once."""
    return CHUNK if loaded.on_processor else ACCELERATOR_CHUNK


class AsideContext:
    """Owns a ``llama_context`` for texts of up to ``cells`` tokens; `close` frees it.

    ``hooks`` are further fields of ``llama_context_params``; they outlive it.  Raises `LlamaError`.
    """

    def __init__(self, setup: Setup, tokens: int, hooks: dict[str, Any]) -> None:
        loaded, start = setup.loaded, setup.start
        self.cells, chunk = padded(max(tokens, LEAST_CELLS)), chunk_of(loaded)
        self.context = llama.Context.open(
            loaded.model,
            n_ctx=self.cells,
            n_batch=chunk,
            n_ubatch=chunk,
            n_seq_max=2,  # the last one is spare: pieces pass through it on their way out
            n_threads=loaded.n_threads,
            n_threads_batch=loaded.n_threads_batch,
            type_k=start.type_k,
            type_v=start.type_v,
            flash_attn=flash_attention(start),
            pooling_type=loaded.library.lib.LLAMA_POOLING_TYPE_NONE,
            op_offload=not loaded.on_processor,
            **hooks,
        )
        loaded.adapters.set(self.context)
        abort.watch(self.context, setup.table.abort)
        self.batch = Batch(loaded.library.ffi, chunk, 1)
        self.n_embd = loaded.model.n_embd
        self._embeds = self._has_rows = False

    def close(self) -> None:
        self.context.close()

    def fill(self, tokens: list[int], at: int, rows: bool, embeds: bool) -> None:
        """Put tokens ``at`` and on into the batch; all of them give ``rows``, or none."""
        n, arrays = len(tokens), self.batch.arrays
        embeds = embeds and rows
        if embeds != self._embeds:
            self.context.library.lib.llama_set_embeddings(self.context.pointer, embeds)
            self._embeds = embeds
        arrays.token[:n] = tokens
        arrays.pos[:n] = np.arange(at, at + n)
        arrays.seq[:n] = 0
        arrays.logits[:n] = self._has_rows = rows
        arrays.n_tokens[0] = n

    def decode(self) -> int:
        """Compute the batch; what ``llama_decode`` says.  Releases the GIL meanwhile."""
        status = int(self.context.library.lib.uma_decode(self.context.pointer, self.batch.struct))
        self.context.synchronize()
        return status

    def rows(self) -> np.ndarray | None:
        """float32[n, n_embd or n_vocab] of the batch that was computed, as libllama keeps them
        until the next one.  No rows where none were wanted, None where libllama has none."""
        lib, ffi = self.context.library.lib, self.context.library.ffi
        get = lib.llama_get_embeddings if self._embeds else lib.llama_get_logits
        width = self.n_embd if self._embeds else self.context.model.n_vocab
        if not self._has_rows:
            return np.zeros((0, width), np.float32)
        pointer, n = get(self.context.pointer), int(self.batch.arrays.n_tokens[0])
        if pointer == ffi.NULL:
            return None
        return np.frombuffer(ffi.buffer(pointer, 4 * n * width), np.float32).reshape(n, width)
