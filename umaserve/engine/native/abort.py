"""Giving up a running graph: what libllama asks between the operations of a graph.

``llama_set_abort_callback`` works on the processor backend; elsewhere hardly anybody asks.  A long
tick that holds nothing but prompt tokens is armed.  When the front has sent an interactive request
meanwhile, the graph ends within an operation, ``llama_decode`` returns 2 and its tokens are
computed again later.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numba import carray, cfunc, from_dtype, types

from umaserve.wire.header import AbortWords

from .calls import CLOCK_MONOTONIC, address_in, call_i32_i32_ptr

if TYPE_CHECKING:
    from umaserve.llama import Context

_WORDS = from_dtype(AbortWords.dtype)


@cfunc(types.boolean(types.CPointer(_WORDS)), cache=True)
def should_abort(data):
    """``ggml_abort_callback``: ``data`` is the session table's ``AbortWords``.  Takes no GIL."""
    words = carray(data, 1)[0]
    words.asked += 1
    if words.armed == 0 or words.urgent <= words.urgent_seen:
        return False
    call_i32_i32_ptr(words.clock, CLOCK_MONOTONIC, words.clock_room)
    return words.now_s * 1_000_000_000 + words.now_ns < words.until_ns


def watch(context: Context, words: AbortWords) -> None:
    """Make ``context`` ask; ``words`` are the session table's and must outlive the context."""
    words.clock = address_in(ctypes.CDLL(None), "clock_gettime")
    words.clock_room = words.address_of("now_s")
    context.set_abort_callback(int(should_abort.address or 0), words.address_of("armed"))


@contextlib.contextmanager
def armed(words: AbortWords) -> Iterator[None]:
    """Give up a decode in this block as soon as an interactive request has been sent."""
    words.until_ns = np.iinfo(np.int64).max
    words.armed = 1
    try:
        yield
    finally:
        words.armed = 0
