"""A draft model, or the model's own heads for several tokens (MTP), as the ticks know them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from umaserve.drafts.wanted import MOST_EACH
from umaserve.engine.native.batch import BatchArrays
from umaserve.jit.record import Record
from umaserve.policy.cost.model import CostModel

if TYPE_CHECKING:
    from umaserve.engine.model.loaded import DraftModel


KEPT = MOST_EACH + 1  # hidden states of a row that are at hand for the heads


class Reading(Record):
    """State of a draft model's context and all its rows."""

    cells: int  # KV cells that it has
    used: int  # of them
    failed: int  # 1: libllama could not compute it, and it is asked no more
    told: int  # 1: and a person knows
    token_ms: float  # that a token takes in a chunk
    behind: int  # the row of this tick that has much to read; -1 = none


class Speaker(NamedTuple):
    """A draft model, or the model's own heads; ``context`` is 0 where there is neither.

    ``context`` to ``forget`` are addresses: of the ``llama_context``, its ``struct llama_batch``,
    its memory, ``llama_get_logits_ith`` and ``llama_memory_seq_rm``.  ``held`` int32[rows,
    positions]: the tokens of each row's sequence.  ``n_held`` int32[rows]: how many these are.
    ``whose`` int64[rows]: the number of their trust domain, or of a request that shares with none.
    ``maxima`` float32: room for `find_maxima`.  ``cost``: the cost model of its own ticks.

    The heads read each token with the hidden state that the model had before it.  ``states_of`` and
    ``state_of`` are addresses of libllama's functions for these; 0 = a draft model.  ``share`` is
    that of ``llama_memory_seq_cp``.  ``states``
    float32[rows, KEPT, n_embd]: the newest of each row, by position modulo KEPT.  ``n_known``
    int32[rows]: tokens of ``held`` whose states are known.  ``text`` int64[rows]: the request whose
    text these are, by its arrival.  ``inputs`` float32[n_batch, n_embd]: states in the batch.
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
    states_of: int
    state_of: int
    share: int
    states: np.ndarray
    n_known: np.ndarray
    text: np.ndarray
    inputs: np.ndarray

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
            states, inputs = np.zeros((1, 1, 1), np.float32), np.zeros((1, 1), np.float32)
            return cls(
                0, 0, 0, 0, 0, 0, arrays, held, none, whose, maxima, reading, cost,
                0, 0, 0, states, none.copy(), whose.copy(), inputs,
            )  # fmt: skip
        reading.cells = draft.context.n_ctx
        blocks = -(-draft.n_vocab // 64)
        library, ffi = draft.context.library, draft.context.library.ffi
        hidden, n_embd = draft.hidden, draft.batch.embd.shape[1]
        return cls(
            draft.context.address,
            draft.batch.address,
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
            hidden.states if hidden else 0,
            hidden.state if hidden else 0,
            library.address("llama_memory_seq_cp"),
            np.zeros((n_slots, KEPT, n_embd) if hidden else (1, 1, 1), np.float32),
            np.zeros(n_slots, np.int32),
            np.zeros(n_slots, np.int64),
            draft.batch.embd,
        )
