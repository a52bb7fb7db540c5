"""First tokens of prompts that are computed beside the ticks, sampled where their logits are.

A prompt in the background ends in the second context: nobody who streams waits for its last row.  A
request that wants no more than this token needs no KV cells in the engine's context at all.  Who is
waited for ends in the ticks, so that the second token follows the first.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from umaserve.sampling.counted import COPIED_BYTES, ROWS_IN_PLACE
from umaserve.sampling.params import CONSTRAINT, MIROSTAT, Settings
from umaserve.sampling.sampler import Rows, Scratch, sample_rows
from umaserve.wire import messages as m
from umaserve.wire import table as t

if TYPE_CHECKING:
    from umaserve.engine.model.loaded import Loaded


class FirstToken(NamedTuple):
    """The token at position ``at`` of request ``serial``, whose tokens before it were computed.

    ``in_place`` and ``copied``: rows read where they were, and bytes of logits copied; ``took_ns``.
    """

    slot: int
    serial: int
    at: int
    token: int
    in_place: int
    copied: int
    took_ns: int


class FirstTokens:
    """Samples rows of the second context; for the prefill worker's thread alone.

    ``settings`` and ``table`` are the engine's: of a row that this thread computes, the ticks
    neither read nor write what is used here.
    """

    def __init__(self, loaded: Loaded, table: t.SessionTable, settings: Settings) -> None:
        self._table, self._settings = table, settings
        self._scratch = Scratch.allocate(loaded.n_vocab, table.spec.n_ctx, loaded.eog_ids.size)
        one = np.zeros(1, np.int32)
        self._row = Rows(
            one, np.zeros(1, np.int64), loaded.n_vocab, settings, table.tokens, table.n_tokens,
            table.n_prompt, loaded.eog_ids, one.copy(), table.logprob, table.top_ids,
            table.top_logprobs,
        )  # fmt: skip

    def takes(self, slot: int) -> bool:
        """Whether this row's prompt may end in the second context.

        Mirostat's state moves with each draw, and a token may turn out not to be wanted.  What is
        bound by a constraint waits for its mask in the ticks alone.
        """
        background = self._table.lane[slot] != m.LANE_INTERACTIVE
        whole = self._settings.whole[slot]
        return bool(background and not whole[MIROSTAT] and not whole[CONSTRAINT])

    def sample(self, slot: int, serial: int, at: int, address: int) -> FirstToken:
        """The token at position ``at`` of a row, from its logits, float32[n_vocab], at ``address``.

        The row has to be this request's, with as many tokens.
        """
        row, counted = self._row, self._scratch.counted
        row.slots[0], row.addresses[0] = slot, address
        began = time.monotonic_ns()
        sample_rows(0, 1, row, self._scratch)
        in_place, copied = int(counted[ROWS_IN_PLACE]), int(counted[COPIED_BYTES])
        counted[:] = 0
        took_ns = time.monotonic_ns() - began
        return FirstToken(slot, serial, at, int(row.sampled[0]), in_place, copied, took_ns)
