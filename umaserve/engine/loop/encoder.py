"""The loop of a model that only encodes: texts in, vectors out, one text at a time.

There are no ticks, since nobody's tokens are waited for.  A text is computed at once: each of its
tokens sees all others.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from umaserve.engine.aside.jobs import NOT_NUMBERS
from umaserve.engine.aside.pooling import Pool, normalised
from umaserve.engine.aside.texts import fitting
from umaserve.engine.model.loaded import CannotLoad
from umaserve.engine.model.pooling import pooling_of
from umaserve.engine.model.thread_places import place_threads
from umaserve.engine.native.batch import Batch
from umaserve.llama.specials import Specials
from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.control import Control

from .tokenizer_thread import TokenizerThread

if TYPE_CHECKING:
    from umaserve.engine.model.loaded import Loaded

CANNOT = "this model makes embeddings only (it is an encoder); load one that generates text"
TOKEN_NS = 20_000_000  # that a token may take before an engine that computes seems to hang


class Encoder:
    """Serves until the front goes away or says so; the model is the caller's to close."""

    def __init__(self, loaded: Loaded, table: t.SessionTable, control: Control) -> None:
        self._loaded, self._table, self._control = loaded, table, control
        self._batch = Batch(loaded.library.ffi, loaded.n_ubatch, 1)
        self._way = pooling_of(loaded.model, causal=False)
        self._tokenizer = TokenizerThread(Specials(loaded.model), table, control.notify)
        self._texts: deque[tuple[m.Embed, list[int]]] = deque()
        self._forgotten: set[int] = set()
        lib = loaded.library.lib
        pooling = lib.llama_pooling_type(loaded.context.pointer)
        self._pooled = pooling != lib.LLAMA_POOLING_TYPE_NONE

    @property
    def is_tokenizing(self) -> bool:
        """Whether a text is being tokenised beside the loop."""
        return self._tokenizer.is_busy

    def warm_up(self) -> None:
        """Embed two tokens for nothing.  Raises CannotLoad where that fails."""
        vector, error = self._vector([0, 1])
        if error:
            raise CannotLoad(f"the model loads, but its first vector fails: {error}")
        self._table.header.clear()

    def run(self) -> None:
        header, control = self._table.header, self._control
        while True:
            header.heartbeat_ns = time.monotonic_ns()
            messages = control.receive(0 if self._texts or self._tokenizer.finished else None)
            if control.closed or any(isinstance(each, m.Shutdown) for each in messages):
                return
            for message in messages:
                self._handle(message)
            while self._tokenizer.finished:
                self._take(*self._tokenizer.finished.popleft())
            if self._texts:
                self._answer(*self._texts.popleft())

    def _handle(self, message: m.ToEngine) -> None:
        if isinstance(message, m.Tokenize | m.Embed):
            self._tokenizer.put(message)
        elif isinstance(message, m.Forget):
            self._tokenizer.forget(message.ref)
            if self.is_tokenizing or self._texts:
                self._forgotten.add(message.ref)
            else:
                self._forgotten.clear()
        elif isinstance(message, m.Submit):
            self._control.send(m.Rejected(message.serial, "E_PROTO_003", CANNOT))
        elif isinstance(message, m.AskCache):
            self._control.send(m.CacheReport(message.ref, "the model makes embeddings only"))
        self._table.header.handled += 1

    def _take(self, message: m.Submit | m.Embed | m.Tokens, tokens: list[int], why: str) -> None:
        if isinstance(message, m.Tokens):
            self._control.send(message)
        elif isinstance(message, m.Embed):
            code = "E_PROTO_003"
            if not why:
                loaded = self._loaded
                tokens, code, why = fitting(message, tokens, loaded.n_vocab, loaded.n_positions)
            if why:
                self._control.send(m.Embedded(message.ref, code=code, error=why))
            else:
                self._texts.append((message, tokens))

    def _answer(self, message: m.Embed, tokens: list[int]) -> None:
        if message.ref in self._forgotten:
            self._forgotten.discard(message.ref)
            return
        vector, error = self._vector(tokens)
        if error:
            answer = m.Embedded(message.ref, code="E_RUNTIME_001", error=error)
        else:
            answer = m.Embedded(message.ref, vector.tobytes(), len(tokens))
        self._control.send(answer)

    def _vector(self, tokens: list[int]) -> tuple[np.ndarray, str]:
        """float32[n_embd] of length 1, or why there is none."""
        loaded, n, arrays = self._loaded, len(tokens), self._batch.arrays
        context, lib, header = loaded.context, loaded.library.lib, self._table.header
        arrays.token[:n], arrays.pos[:n] = tokens, np.arange(n)
        arrays.seq[:n], arrays.logits[:n], arrays.n_tokens[0] = 0, 1, n
        place_threads(loaded.places, loaded.n_threads_batch)
        # it is no hang that a long text takes long
        header.tick_start_ns = header.heartbeat_ns = time.monotonic_ns() + TOKEN_NS * n
        header.busy = t.BUSY_DECODE
        try:
            context.clear()
            status = int(lib.uma_decode(context.pointer, self._batch.struct))
            context.synchronize()
        finally:
            header.busy, header.tick_start_ns = t.BUSY_IDLE, 0
        if status:
            why = loaded.library_log_tail() or "libllama gave no reason"
            return np.zeros(0), f"llama_decode failed with status {status}: {why}"
        vector = self._pooled_rows(n)
        if vector is None:
            return np.zeros(0), "libllama has no vector for it"
        return vector, "" if np.isfinite(vector).all() else NOT_NUMBERS

    def _pooled_rows(self, n: int) -> np.ndarray | None:
        loaded, width = self._loaded, self._loaded.model.n_embd
        lib, ffi, pointer = loaded.library.lib, loaded.library.ffi, loaded.context.pointer
        if self._pooled:
            row = lib.llama_get_embeddings_seq(pointer, 0)
            if row == ffi.NULL:
                return None
            return normalised(np.frombuffer(ffi.buffer(row, 4 * width), np.float32))
        rows = lib.llama_get_embeddings(pointer)
        if rows == ffi.NULL:
            return None
        pool = Pool(self._way, width)
        pool.take(np.frombuffer(ffi.buffer(rows, 4 * n * width), np.float32).reshape(n, width))
        return pool.vector()
