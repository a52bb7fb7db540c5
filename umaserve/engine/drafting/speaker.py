"""A draft model, as the ticks know it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from umaserve.engine.native.batch import BatchArrays
from umaserve.jit.record import Record
from umaserve.policy.cost.model import CostModel

if TYPE_CHECKING:
    from umaserve.engine.model.loaded import DraftModel


class Reading(Record):
    """State of a draft model's context and all its rows."""

    cells: int  # KV cells that it has
    used: int  # of them
    failed: int  # 1: libllama could not compute it, and it is asked no more
    told: int  # 1: and a person knows
    token_ms: float  # that a token takes in a chunk
    behind: int  # the row of this tick that has much to read; -1 = none


class Speaker(NamedTuple):
    """A draft model, as the ticks know it; ``context`` is 0 where there is none.

    ``context`` to ``forget`` are addresses: of the ``llama_context``, its ``struct llama_batch``,
    its memory, ``llama_get_logits_ith`` and ``llama_memory_seq_rm``.  ``held`` int32[rows,
    positions]: the tokens of each row's sequence.  ``n_held`` int32[rows]: how many these are.
    ``whose`` int64[rows]: the number of their trust domain, or of a request that shares with none.
    ``maxima`` float32: room for `find_maxima`.  ``cost``: the cost model of its own ticks.
    """

    context: int
    batch: int
    memory: int
    logits_ith: int
    forget: int
    n_vocab: int
    arrays: BatchArrays
    held: np.ndarray
    n_held: np.ndarray
    whose: np.ndarray
    maxima: np.ndarray
    reading: Reading
    cost: CostModel

    @classmethod
    def of(cls, draft: DraftModel | None, n_slots: int, positions: int) -> Speaker:
        """``draft``: owns the context and the batch, and outlives this."""
        reading = Reading.zeros()
        reading.behind = -1
        if draft is None:
            none = np.zeros(1, np.int32)
            arrays = BatchArrays(none, none, none, np.zeros(1, np.int8), none, none, none)
            maxima, cost = np.zeros(64, np.float32), CostModel.unknown()
            held = np.zeros((1, 1), np.int32)
            whose = np.zeros(1, np.int64)
            return cls(0, 0, 0, 0, 0, 0, arrays, held, none, whose, maxima, reading, cost)
        reading.cells = draft.context.n_ctx
        blocks = -(-draft.n_vocab // 64)
        library, ffi = draft.context.library, draft.context.library.ffi
        return cls(
            int(ffi.cast("intptr_t", draft.context.pointer)),
            int(ffi.cast("intptr_t", draft.batch.struct)),
            int(ffi.cast("intptr_t", draft.context.memory)),
            library.address("llama_get_logits_ith"),
            library.address("llama_memory_seq_rm"),
            draft.n_vocab,
            draft.batch.arrays,
            np.zeros((n_slots, min(positions, draft.n_positions)), np.int32),
            np.zeros(n_slots, np.int32),
            np.zeros(n_slots, np.int64),
            np.zeros(-(-blocks // 64) * 64, np.float32),
            reading,
            CostModel.unknown(),
        )
