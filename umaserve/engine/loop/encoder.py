"""The loop of a model that only encodes: texts in, vectors or scores out, several texts at once.

There are no ticks, since nobody's tokens are waited for.  A batch has whole texts, one sequence
each, in the order in which they came.  Texts of several questions share a batch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from umaserve.engine.admission.tokenizer_thread import TokenizerThread
from umaserve.engine.aside.jobs import NOT_NUMBERS, fitting, normalised
from umaserve.engine.model.abilities import flash_attention
from umaserve.engine.model.loaded import CannotLoad, Setup
from umaserve.engine.model.pooling import RANK
from umaserve.engine.model.thread_places import place_threads
from umaserve.engine.native.batch import Batch
from umaserve.engine.native.niceness import LAST, stand_back
from umaserve.llama.ranking import RankPrompt
from umaserve.llama.specials import Specials
from umaserve.wire import messages as m
from umaserve.wire import table as t

CANNOT = "this model only encodes texts; load one that generates text"
TOKEN_NS = 20_000_000  # that a token may take before an engine that computes seems to hang
# Tokens of a batch with several texts.  On a processor more gain nothing, and a text that comes now
# waits for longer.  Without flash attention all pairs of a batch's tokens are computed, those of
# different texts too; there a text by itself is the fastest.
PROCESSOR_TOKENS = 512


@dataclass(eq=False)
class _Question:
    """Texts of one message; ``vectors`` are theirs as far as they are ``done``."""

    ref: int
    texts: list[list[int]]
    vectors: np.ndarray  # float32[texts, width]
    placed: int = 0  # texts that are computed, or in the batch
    done: int = 0
    n_tokens: int = 0


class Encoder:
    """Serves until the front goes away or says so; the model is the caller's to close."""

    def __init__(self, setup: Setup) -> None:
        loaded, table, control = setup.loaded, setup.table, setup.control
        if loaded.on_processor:
            stand_back(LAST)  # nobody reads vectors: streams of other models go first
        self._loaded, self._table, self._control = loaded, table, control
        self._batch = Batch(loaded.library.ffi, loaded.n_batch, 1)
        ranks = RankPrompt(loaded.model) if loaded.pooling == RANK else None
        self._width = 1 if ranks else loaded.model.n_embd
        self._n_end = ranks.n_end if ranks else 1
        self._ranks = ranks is not None
        self._tokenizer = TokenizerThread(
            Specials(loaded.model), table, control.notify, ranks=ranks
        )
        self._questions: deque[_Question] = deque()
        self._most = loaded.n_ubatch  # tokens of a batch with several texts
        if loaded.on_processor:
            plain = flash_attention(setup.start) is False
            self._most = 0 if plain else min(self._most, PROCESSOR_TOKENS)

    @property
    def is_tokenizing(self) -> bool:
        """Whether a text is being tokenised beside the loop."""
        return self._tokenizer.is_busy

    def warm_up(self) -> None:
        """Encode two tokens for nothing.  Raises CannotLoad where that fails."""
        question = self._question(0, [[0, 1]])
        error = self._compute([(question, 0)]) or self._keep(question, 0, 0)
        if error:
            raise CannotLoad(f"the model loads, but its first vector fails: {error}")
        self._table.header.clear()

    def run(self) -> None:
        header, control = self._table.header, self._control
        while True:
            header.heartbeat_ns = time.monotonic_ns()
            messages = control.receive(0 if self._questions or self._tokenizer.finished else None)
            if control.closed or any(isinstance(each, m.Shutdown) for each in messages):
                return
            for message in messages:
                self._handle(message)
            while self._tokenizer.finished:
                self._take(*self._tokenizer.finished.popleft())
            if self._questions:
                self._step()

    def _handle(self, message: m.ToEngine) -> None:
        if isinstance(message, m.Tokenize | m.Embed):
            self._tokenizer.put(message)
        elif isinstance(message, m.Forget):
            self._tokenizer.forget(message.ref)
            self._drop(message.ref)
        elif isinstance(message, m.Submit):
            self._control.send(m.Rejected(message.serial, "E_PROTO_003", CANNOT))
        elif isinstance(message, m.AskCache):
            self._control.send(m.CacheReport(message.ref, "the model only encodes texts"))
        self._table.header.handled += 1

    def _drop(self, ref: int) -> None:
        self._questions = deque(each for each in self._questions if each.ref != ref)

    def _question(self, ref: int, texts: list[list[int]]) -> _Question:
        return _Question(ref, texts, np.empty((len(texts), self._width), np.float32))

    # --- texts in ---------------------------------------------------------------------------------

    def _take(
        self, message: m.Submit | m.Embed | m.Tokens, texts: list[list[int]], why: str
    ) -> None:
        if isinstance(message, m.Tokens):
            self._control.send(message)
        elif isinstance(message, m.Embed):
            loaded, most, code = self._loaded, self._loaded.n_positions, "E_PROTO_003"
            question, at = self._question(message.ref, texts), len(texts)
            end = self._n_end if message.truncate else 0
            if why:
                self._refuse(question, at, code, why)
                return
            for at, tokens in enumerate(texts):
                texts[at], code, why = fitting(tokens, loaded.n_vocab, most, end)
                if why:
                    answer = m.Embedded(message.ref, b"", len(tokens), at, most, code, why)
                    self._control.send(answer)
                    return
            self._questions.append(question)

    def _refuse(self, question: _Question, at: int, code: str, why: str) -> None:
        """End a question for a text that has no vector."""
        self._drop(question.ref)
        self._control.send(m.Embedded(question.ref, at=at, code=code, error=why))

    # --- a batch ----------------------------------------------------------------------------------

    def _step(self) -> None:
        """Compute a batch of whole texts, and answer the questions that have all of theirs."""
        rows = self._next_batch()
        error = self._compute(rows)
        for seq, (question, at) in enumerate(rows):
            if question not in self._questions:
                continue  # another text of it was refused
            why = error or self._keep(question, at, seq)
            if why:
                self._refuse(question, at, "E_RUNTIME_001", why)
            elif question.done == len(question.texts):
                self._drop(question.ref)
                vectors = question.vectors.tobytes()
                self._control.send(m.Embedded(question.ref, vectors, question.n_tokens))

    def _next_batch(self) -> list[tuple[_Question, int]]:
        """As many of the next texts as one batch takes, one at least."""
        rows: list[tuple[_Question, int]] = []
        size, most = 0, self._loaded.n_seq
        for question, at in self._waiting():
            size += len(question.texts[at])
            if rows and (size > self._most or len(rows) == most):
                break
            rows.append((question, at))
            question.placed += 1
        return rows

    def _waiting(self) -> Iterator[tuple[_Question, int]]:
        for question in self._questions:
            for at in range(question.placed, len(question.texts)):
                yield question, at

    def _compute(self, rows: list[tuple[_Question, int]]) -> str:
        """Compute a batch of these texts, each as the sequence of its place; says why it fails."""
        loaded, arrays, n = self._loaded, self._batch.arrays, 0
        context, lib, header = loaded.context, loaded.library.lib, self._table.header
        for seq, (question, at) in enumerate(rows):
            tokens = question.texts[at]
            these = slice(n, n + len(tokens))
            arrays.token[these], arrays.pos[these] = tokens, np.arange(len(tokens))
            arrays.seq[these] = seq
            n = these.stop
        arrays.logits[:n], arrays.n_tokens[0] = 1, n
        place_threads(loaded.places, loaded.n_threads_batch)
        # it is no hang that a long text takes long
        began_ns = time.monotonic_ns()
        header.tick_start_ns = header.heartbeat_ns = began_ns + TOKEN_NS * n
        header.busy = t.BUSY_DECODE
        try:
            context.clear()
            status = int(lib.uma_decode(context.pointer, self._batch.struct))
            context.synchronize()
        finally:
            header.busy, header.tick_start_ns = t.BUSY_IDLE, 0
        took_ns = time.monotonic_ns() - began_ns
        header.ticks += 1
        header.prefill_tokens += n
        header.last_batch, header.last_decode_ns = n, took_ns
        header.decode_ns_total += took_ns
        header.tick_ns_total += took_ns
        if status:
            why = loaded.library_log_tail() or "libllama gave no reason"
            return f"llama_decode failed with status {status}: {why}"
        return ""

    def _keep(self, question: _Question, at: int, seq: int) -> str:
        """Keep the vector of a sequence as that of a text; says why there is none."""
        lib, ffi = self._loaded.library.lib, self._loaded.library.ffi
        row = lib.llama_get_embeddings_seq(self._loaded.context.pointer, seq)
        if row == ffi.NULL:
            return "libllama has no vector for it"
        vector = np.frombuffer(ffi.buffer(row, 4 * self._width), np.float32)
        if not np.isfinite(vector).all():
            return NOT_NUMBERS
        question.vectors[at] = vector if self._ranks else normalised(vector)
        question.n_tokens += len(question.texts[at])
        question.done += 1
        return ""
