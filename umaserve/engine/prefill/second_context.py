"""The second context, in which prompts are computed beside the ticks, and what its chunks take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from umaserve.engine.model.abilities import flash_attention
from umaserve.engine.model.capacity import padded
from umaserve.engine.model.thread_places import place_threads
from umaserve.engine.native import abort
from umaserve.engine.native.batch import Batch
from umaserve.engine.native.status import DECODED
from umaserve.policy.cost.model import CHUNK_SIZES, CostModel
from umaserve.policy.processor.slices import SLICED_CHUNK
from umaserve.wire import messages as m

from .gate import Gate, all_ms, begin_chunk, forget_times, hang, longest_ms, take_times

if TYPE_CHECKING:
    from umaserve.engine.model.loaded import Loaded
    from umaserve.llama import Context
    from umaserve.wire.header import AbortWords

# A chunk that takes longer at the start is followed by a chunk of twice the size.  The sizes in
# between are not worth the wait.
BETWEEN_MS = 20.0
SLOW_CHUNK_MS = 500.0  # a chunk that takes longer at the start has no larger one after it
TIMES = 2  # that a size is computed: buffers are made first, and then it is measured


def open_second(
    loaded: Loaded, start: m.Start, cells: int, chunk: int, n_threads: int, **others: Any
) -> Context:  # fmt: skip
    """A context like the engine's for chunks of up to ``chunk`` tokens; the caller closes it.

    ``others`` are further fields of ``llama_context_params``.
    """
    from umaserve import llama

    return llama.Context.open(
        loaded.model,
        n_ctx=padded(cells),
        n_batch=chunk,
        n_ubatch=chunk,
        n_seq_max=loaded.n_seq + 1,
        n_threads=n_threads,
        type_k=start.type_k,
        type_v=start.type_v,
        flash_attn=flash_attention(start),
        kv_unified=True,
        n_outputs_max=loaded.n_seq + 1,
        # on the processor an accelerator's part of the work could not be interrupted
        op_offload=not loaded.on_processor,
        **others,
    )


def measure_chunks(
    context: Context, batch: Batch, gate: Gate, most: int, n_vocab: int,
    part_ms: np.ndarray, parts_ms: np.ndarray,
) -> Iterator[None]:  # fmt: skip
    """Compute chunks of each of CHUNK_SIZES up to ``most`` tokens for nothing, one a step.

    ``part_ms`` gets the longest part between two looks at the `gate`, ``parts_ms`` all parts
    together.  Both are float64, a value for each of CHUNK_SIZES; 0 = not measured.  Sizes that they
    know are left out.  The generator may be closed after any chunk.
    """
    arrays = batch.arrays
    took_ms = 0.0
    for i, n in enumerate(CHUNK_SIZES.tolist()):
        if n > most:
            break
        if parts_ms[i] > 0.0 or n & (n - 1) and took_ms > BETWEEN_MS:
            continue
        # different ids: a mixture of experts sends equal tokens to the same ones
        arrays.token[:n] = 1 + (7919 * np.arange(1, n + 1)) % (n_vocab - 1)
        arrays.pos[:n] = np.arange(n)
        arrays.seq[:n] = arrays.logits[:n] = 0
        arrays.n_tokens[0] = n
        for turn in range(TIMES):
            begin_chunk(gate, n)
            began = time.perf_counter()
            decoded = context.library.lib.uma_decode(context.pointer, batch.struct) == DECODED
            context.synchronize()
            if turn == 0:  # it pays for kernels and buffers
                forget_times(gate, n)
            elif decoded:
                part_ms[i], parts_ms[i] = longest_ms(gate), all_ms(gate)
            took_ms = 1000.0 * (time.perf_counter() - began)
            context.clear()
            yield
        if took_ms > SLOW_CHUNK_MS:
            break
    for i in range(CHUNK_SIZES.size - 2, -1, -1):
        if not part_ms[i]:  # no longer than the next one; use will tell
            part_ms[i], parts_ms[i] = part_ms[i + 1], parts_ms[i + 1]


def measure_slices(
    loaded: Loaded, start: m.Start, gate: Gate, cost: CostModel, words: AbortWords
) -> Iterator[None]:
    """Learn what the parts of chunks between the ticks of a processor take, one chunk a step.

    In the loop's thread, whose threads compute the chunks.  ``gate`` is the worker's, which gets
    the times of the parts at the end; ``words`` are the session table's, see `abort`.
    """
    cells = 2 * SLICED_CHUNK
    threads = loaded.n_threads_batch
    own = Gate.zeros()
    context = open_second(
        loaded, start, cells, SLICED_CHUNK, threads, **hang(own, loaded.library)
    )
    abort.watch(context, words)
    batch = Batch(loaded.library.ffi, SLICED_CHUNK, 1)
    chunks = measure_chunks(
        context, batch, own, min(SLICED_CHUNK, loaded.n_positions), loaded.model.n_vocab,
        cost.longest, cost.parts,
    )  # fmt: skip
    try:
        place_threads(loaded.places, threads)
        while True:
            with abort.armed(words):
                if next(chunks, own) is own:
                    break
            yield
        take_times(gate, own)
    finally:
        context.close()
