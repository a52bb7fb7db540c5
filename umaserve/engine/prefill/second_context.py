"""The second context, in which prompts are computed beside the ticks, and what its chunks take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from umaserve import llama
from umaserve.engine.model.abilities import flash_attention
from umaserve.engine.model.loaded import Loaded
from umaserve.engine.model.thread_places import place_threads
from umaserve.engine.native import abort
from umaserve.engine.native.batch import Batch
from umaserve.engine.native.status import DECODED
from umaserve.llama import Context
from umaserve.models.kv_shape import padded
from umaserve.policy.cost.model import CHUNK_SIZES, CostModel
from umaserve.policy.processor.slices import SLICED_CHUNK
from umaserve.wire import messages as m
from umaserve.wire.header import AbortWords

from .gate import Gate, all_ms, begin_chunk, forget_times, hang, longest_ms, take_times

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
    context = llama.Context.open(
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
    loaded.adapters.set(context)
    return context


def measure_slices(
    loaded: Loaded, start: m.Start, gate: Gate, cost: CostModel, words: AbortWords
) -> Iterator[None]:
    """Learn what the parts of chunks between the ticks of a processor take, one chunk a step.

    In the loop's thread, whose threads compute the chunks for nothing.  Sizes that ``cost`` knows
    are left out.  ``gate`` is the worker's, which gets the times of the parts at the end; ``words``
    are the session table's, see `abort`.  The generator may be closed after any chunk.
    """
    threads, own, took_ms = loaded.n_threads_batch, Gate.zeros(), 0.0
    context = open_second(
        loaded, start, 2 * SLICED_CHUNK, SLICED_CHUNK, threads, **hang(own, loaded.library)
    )
    abort.watch(context, words)
    batch = Batch(loaded.library.ffi, SLICED_CHUNK, 1)
    try:
        place_threads(loaded.places, threads)
        for i, n in enumerate(CHUNK_SIZES.tolist()):
            if n > min(SLICED_CHUNK, loaded.n_positions) or took_ms > SLOW_CHUNK_MS:
                break
            if cost.parts[i] > 0.0 or n & (n - 1) and took_ms > BETWEEN_MS:
                continue
            batch.put_nobodys(n, loaded.model.n_vocab)
            for turn in range(TIMES):
                begin_chunk(own, n)
                began = time.perf_counter()
                with abort.armed(words):
                    status = context.library.lib.uma_decode(context.pointer, batch.struct)
                    context.synchronize()
                if turn == 0:  # it pays for kernels and buffers
                    forget_times(own, n)
                elif status == DECODED:
                    cost.longest[i], cost.parts[i] = longest_ms(own), all_ms(own)
                took_ms = 1000.0 * (time.perf_counter() - began)
                context.clear()
                yield
        for i in range(CHUNK_SIZES.size - 2, -1, -1):
            if not cost.longest[i]:  # no longer than the next one; use will tell
                cost.longest[i], cost.parts[i] = cost.longest[i + 1], cost.parts[i + 1]
        take_times(gate, own)
    finally:
        context.close()
