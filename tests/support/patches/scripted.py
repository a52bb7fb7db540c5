"""An engine whose logits are a matter of the last token and its place alone.

What a real model says depends in the last bits on who else is in its batch.  Here it does not, so
what comes of a request can be compared token by token.  libllama computes all the same: cells,
batches and failures are its own.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tests.support.patches.engine import once_numba_may_load
from tests.support.patches.engine_faults import disturbed_and_checked

STATES = 41
NEVER = -1
WRONG = 7  # a draft model's token at each so many positions is another's
FAVOURED = 9.0  # a logit, among others of a deviation of 2


def rows_of(seed: int, n_vocab: int) -> np.ndarray:
    """float32[STATES, n_vocab]: the logits after a token, by its state."""
    choose = np.random.default_rng(seed)
    rows = choose.normal(0.0, 2.0, (STATES, n_vocab)).astype(np.float32)
    for row in rows:
        row[choose.integers(300, 900, 3)] += FAVOURED
    return rows


@once_numba_may_load
def scripted(seed: int, broken: int = NEVER) -> None:
    """``llama_get_logits_ith`` returns logits of ours for all outputs of the batch.

    Those at position ``broken`` of any sequence are no numbers.
    """
    from umaserve.engine.native.calls import Native

    kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
    make, kept = Native.of, list[Any]()

    def of(library: Any, context: Any, batch: Any, *rest: Any) -> Any:
        lib = library.lib
        n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(lib.llama_get_model(context)))
        rows, room = rows_of(seed, n_vocab), np.zeros((2048, n_vocab), np.float32)

        def logits(_: int, row: int) -> int:
            wanted = [i for i in range(batch.n_tokens) if batch.logits[i]]
            for output, i in enumerate(wanted):
                # now and then the same text goes on in another way
                state = batch.token[i] + batch.pos[i] // 29
                room[output] = rows[state % STATES]
                if batch.pos[i] == broken:
                    room[output] = np.nan
            return int(room.ctypes.data)

        callback = kind(logits)
        kept.extend((callback, room))  # ctypes keeps neither
        native = make(library, context, batch, *rest)
        return native._replace(logits_ith=ctypes.cast(callback, ctypes.c_void_p).value)

    Native.of = of  # type: ignore[method-assign, assignment]


def scripted_and_disturbed(seed: int, broken: int = NEVER) -> None:
    """The same, and rows are parked, evicted and forgotten, and all cells are counted."""
    scripted(seed=seed, broken=broken)
    disturbed_and_checked(seed=seed)


def draft_model_scripted(seed: int) -> None:
    """The same, and a draft model says what the script says, but for a token in WRONG."""
    scripted_and_disturbed(seed=seed)
    _script_draft_model(seed=seed)


@once_numba_may_load
def _script_draft_model(seed: int) -> None:
    from umaserve.engine.drafting.speaker import Speaker

    kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
    make, kept = Speaker.of, list[Any]()

    def of(draft: Any, *rest: Any) -> Any:
        batch, rows = draft.batch.arrays, rows_of(seed, draft.n_vocab)

        def logits(_: int, i: int) -> int:
            wrong = int(batch.pos[i] % WRONG == 0)
            state = batch.token[i] + batch.pos[i] // 29 + wrong
            return int(rows[state % STATES].ctypes.data)

        callback = kind(logits)
        kept.extend((callback, rows))
        speaker = make(draft, *rest)
        return speaker._replace(logits_ith=ctypes.cast(callback, ctypes.c_void_p).value)

    Speaker.of = of  # type: ignore[method-assign, assignment]


@once_numba_may_load
def draft_model_that_fails() -> None:
    """Its batches are empty, which libllama refuses."""
    from umaserve.engine.drafting.speaker import Speaker

    make, kept = Speaker.of, list[Any]()

    def of(draft: Any, *rest: Any) -> Any:
        empty = draft.context.library.ffi.new("struct llama_batch *")
        kept.append(empty)
        address = int(draft.context.library.ffi.cast("intptr_t", empty))
        return make(draft, *rest)._replace(batch=address)

    Speaker.of = of  # type: ignore[method-assign, assignment]


@once_numba_may_load
def draft_model_that_thinks_it_is_large() -> None:
    """It forgets no text for another, and has no cells left in the end."""
    from umaserve.engine.drafting.speaker import Speaker

    make = Speaker.of

    def of(draft: Any, *rest: Any) -> Any:
        speaker = make(draft, *rest)
        speaker.reading.cells = 1 << 20
        return speaker

    Speaker.of = of  # type: ignore[method-assign, assignment]


def heads_with_few_cells(cells: int) -> None:
    """A model's own heads have so many KV cells at most."""
    from umaserve.models import draft_model

    draft_model.HEAD_CELLS = cells
