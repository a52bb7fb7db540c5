"""Whether it pays on this device that a prompt's KV cells lie together.

Two copies of one prompt are put into the cache: once into cells side by side, once into every
second cell.  Where the second takes longer, the loop keeps stretches of cells free (`cell_map`).
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING

import numpy as np

from umaserve.engine.model.abilities import RESERVED, why_not_plain
from umaserve.engine.native.batch import Batch
from umaserve.llama.errors import LlamaError

if TYPE_CHECKING:
    from umaserve.engine.model.loaded import Loaded

TOKENS = 64  # of that prompt
TIMES = 3  # that both are measured
DEARER = 1.2  # times as long
NOTICED_MS = 1.0  # that this has to be, too


def pays(loaded: Loaded) -> Generator[None, None, bool]:
    """Measure it, one copy a step; the context's cache has to be empty, and is left empty.

    False without a measurement where the context has no sequences for it.
    """
    context = loaded.context
    spare = loaded.n_seq + RESERVED  # the first whose cells may be kept
    if why_not_plain(loaded) or context.n_seq_max < spare + 2 or loaded.n_ctx < 4 * TOKENS:
        return False
    saved = _prompt(loaded)
    together_ms, apart_ms = [], []
    for _ in range(TIMES):
        yield
        context.clear()
        together_ms.append(_copied_ms(loaded, 0, saved))
        yield
        _copied_ms(loaded, spare, saved)
        for seq in (0, spare):
            for position in range(0, TOKENS, 2):
                context.seq_rm(seq, position, position + 1)
        apart_ms.append(_copied_ms(loaded, spare + 1, saved))
    context.clear()
    together, apart = min(together_ms), min(apart_ms)
    return apart >= max(DEARER * together, together + NOTICED_MS)


def _prompt(loaded: Loaded) -> np.ndarray:
    """Compute a prompt and return its cells as libllama saves them: uint8.  Raises `LlamaError`."""
    batch = Batch(loaded.library.ffi, TOKENS, 1)
    batch.put_nobodys(TOKENS, loaded.n_vocab)
    if loaded.library.lib.uma_decode(loaded.context.pointer, batch.struct):
        raise LlamaError("a prompt could not be computed to measure what copying it takes")
    loaded.context.synchronize()
    saved = np.empty(loaded.context.state_seq_size(0), np.uint8)
    loaded.context.state_seq_get(0, saved)
    return saved


def _copied_ms(loaded: Loaded, seq: int, saved: np.ndarray) -> float:
    began = time.perf_counter()
    if loaded.context.state_seq_set(seq, saved, saved.size) != saved.size:
        raise LlamaError("libllama did not take back the KV cells that it saved")
    loaded.context.synchronize()
    return 1000.0 * (time.perf_counter() - began)
