"""Giving up a running graph: what libllama asks between the operations of a graph.

``llama_set_abort_callback`` works on the processor backend; elsewhere nobody asks.  A long tick that holds
nothing but prompt tokens is armed; when the front has sent an interactive request meanwhile, the
graph ends within an operation, ``llama_decode`` returns 2 and its tokens are computed again later.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numba import carray, cfunc, types

from umaserve.wire import table as t

from .calls import CLOCK_MONOTONIC, call_i32_i32_ptr

if TYPE_CHECKING:
    from umaserve.llama import Context

ARMED, URGENT, SEEN, UNTIL, CLOCK, ROOM = range(6)  # words from H_ABORT_ARMED on
ASKED = 8


@cfunc(types.boolean(types.voidptr), cache=True)
def should_abort(data):
    """``ggml_abort_callback``: ``data`` is the header's block of ABORT_WORDS.  Takes no GIL."""
    words = carray(data, t.ABORT_WORDS, np.int64)
    words[ASKED] += 1
    if words[ARMED] == 0 or words[URGENT] <= words[SEEN]:
        return False
    call_i32_i32_ptr(words[CLOCK], CLOCK_MONOTONIC, words[ROOM])
    return words[ROOM + 1] * 1_000_000_000 + words[ROOM + 2] < words[UNTIL]


def watch(context: Context, header: np.ndarray) -> None:
    """Make ``context`` ask; ``header`` is the session table's and must outlive the context."""
    libc = ctypes.CDLL(None)
    header[t.H_CLOCK] = int(ctypes.cast(libc.clock_gettime, ctypes.c_void_p).value or 0)
    block = header[t.H_ABORT_ARMED : t.H_ABORT_ARMED + t.ABORT_WORDS]
    header[t.H_CLOCK_ROOM] = block.ctypes.data + 8 * (ROOM + 1)
    context.set_abort_callback(int(should_abort.address or 0), block.ctypes.data)


@contextlib.contextmanager
def armed(header: np.ndarray) -> Iterator[None]:
    """What is decoded inside is given up as soon as an interactive request has been sent."""
    header[t.H_ABORT_UNTIL_NS] = np.iinfo(np.int64).max
    header[t.H_ABORT_ARMED] = 1
    try:
        yield
    finally:
        header[t.H_ABORT_ARMED] = 0
