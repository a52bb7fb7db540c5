"""The prefill worker's threads: a second context, and the prompts that it holds.

They compute chunks on cores of their own.  Where the policy gives prompts slices of time, they put
chunks together and let the loop compute them (`chunk_stack`).

Long: prompts, chunks and copies share one context and its cells.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from typing import NamedTuple

import numpy as np

from umaserve.engine.cells.piece import Piece, export_piece, import_piece
from umaserve.engine.model.loaded import Setup
from umaserve.engine.native.batch import Batch
from umaserve.engine.native.niceness import stand_back
from umaserve.engine.native.status import DECODED, GIVEN_UP, NO_KV_SLOT
from umaserve.engine.samplers.first_token import FirstTokens
from umaserve.jit.record import address_of
from umaserve.llama import Context
from umaserve.policy.cost.model import CHUNK_SIZES, TILED, CostModel, doubt_larger, learn_part
from umaserve.wire import memory_order
from umaserve.wire import table as t

from .chunk_pace import CHUNKS, Pace, counted, even_share
from .chunk_stack import hand_over
from .gate import DONE, HANDED, THREAD, all_ms, begin_chunk, hang, longest_ms
from .held_prompt import HeldPrompt
from .orders import BACKLOG, Exchange, Request, is_set
from .second_context import open_second

FEWEST_CELLS = 1024  # of the second KV cache; it doubles until the prompt at hand fits
IDLE_S = 60.0  # without a prompt, after which the second context goes
LINGER_S = 0.05  # without an order, after which the thread that follows orders ends


class Chunk(NamedTuple):
    """Tokens of a prompt that are computed together."""

    prompt: HeldPrompt
    tokens: int
    most: int  # tokens that were granted
    ends: bool  # the prompt ends with them


class PrefillThread:
    """Computes what ``exchange.orders`` want, until `close`.

    Owns the second context, which no other thread touches while this one lives.

    - ``piece_tokens`` are moved at once.
    - ``cost`` learns what the parts of chunks take that the loop has computed.
    - ``sampler`` samples first tokens here.  None leaves the last token of every prompt to the
      engine.
    """

    def __init__(
        self, setup: Setup, exchange: Exchange, wake_read: int, n_threads: int, piece_tokens: int,
        cost: CostModel, sampler: FirstTokens | None,
    ) -> None:  # fmt: skip
        self._n_threads = n_threads
        self.piece_tokens = piece_tokens
        self.by_loop = False  # the chunk at hand is one that the loop computes
        self.tokens_total = 0
        self.aborted_total = 0
        self.pace = Pace()
        self._loaded, self._start, loaded = setup.loaded, setup.start, setup.loaded
        self._x = exchange
        self._wake_read = wake_read
        self._notify = setup.control.notify
        self._cost = cost
        self._sampler = sampler
        self._context: Context | None = None
        self._cells = 0  # of that context
        self._chunk_most = CHUNKS[0]
        self._batch = Batch(loaded.library.ffi, self._chunk_most, 1)
        self._threads_set = n_threads
        self._prompts: dict[int, HeldPrompt] = {}
        self._free_seqs = deque(range(loaded.n_seq))
        self._spare = loaded.n_seq
        self._closing = False
        self._has_team = False  # the thread that follows orders has computed, not the loop alone
        self._poll = select.poll()
        self._sizes: set[int] = set()  # of chunks that the loop has computed, by class
        self._thread = threading.Thread(target=self._run, name="prefill", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Give up the running chunk, end the thread, free the context.  From another thread."""
        self._closing = True
        self._x.orders.gate.stop = 1
        self._x.wake_worker()
        self._thread.join()
        self._close_context()

    def _run(self) -> None:
        """Wait for orders, and start a thread that follows them until soon after the last one.

        libgomp keeps a team for each thread that computed.  Where all teams have more threads than
        the machine has processors, a thread that waits spins 100 times, then sleeps
        (``gomp_throttled_spin_count_var``).  A tick then takes two to five times as long.
        """
        try:
            stand_back()
            self._poll.register(self._wake_read, select.POLLIN)
            while not self._closing and self._x.orders.alive[0]:
                follower = threading.Thread(target=self._follow, name="prefill", daemon=True)
                follower.start()
                follower.join()
                limit_s = IDLE_S if self._cells and not self._prompts else None
                # a follower that ends because the loop computes has read the order for it
                if not (self._closing or self._has_team or self._is_called(limit_s)):
                    self._close_context()
        except Exception as error:
            self._fail(error)

    def _follow(self) -> None:
        """Compute and copy until nothing has come for a moment, or the loop computes instead."""
        self._has_team = False
        try:
            while not self._closing and (self._step() or self._is_called(LINGER_S)):
                if self._has_team and self.by_loop:
                    return
            self._has_team = False
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Leave all prompts to the engine, which can do without this thread."""
        self._x.complain(f"prompts are no longer computed beside the ticks: {error}")
        self._x.orders.alive[0] = 0
        self._notify()

    def _is_called(self, limit_s: float | None) -> bool:
        """Wait until the loop or `close` writes; False after ``limit_s`` without (None: never)."""
        if self._poll.poll(None if limit_s is None else 1000.0 * limit_s):
            os.read(self._wake_read, 4096)
            return True
        return False

    def _step(self) -> bool:
        """Compute a chunk or make a copy; return False when there is nothing to do."""
        self._x.orders.gate.stop = 0
        memory_order.all_first()  # the loop says what it wants, then stops what it does not want
        if self._closing:  # looked at after the flag is cleared, so that close cannot be missed
            return False
        if self._x.clears:
            self._x.clears = False
            self._clear()
        wanted = self._x.orders.settled()
        self._take_handed()
        for prompt in list(self._prompts.values()):
            if self._is_over(prompt):
                self._drop(prompt)
        return any(map(self._advance, wanted))

    def _advance(self, slot: int) -> bool:
        """Do the next thing for a wanted slot, if there is one."""
        table, orders = self._x.table, self._x.orders
        serial, n_past = int(table.serial[slot]), int(table.n_past[slot])
        last = int(table.n_tokens[slot]) - 1
        # a suspect of a crash decodes alone, and on the engine's side
        if table.state[slot] != t.RUNNING or table.isolate[slot] or orders.refused[slot]:
            return False
        if n_past >= last:
            return False
        self._open(last + 1)
        prompt = self._prompts.get(slot) or self._take(slot, serial)
        if prompt.epoch != orders.epoch[slot]:
            prompt.epoch = int(orders.epoch[slot])
            if prompt.past > last:  # what was sampled from it is not wanted, or on its way
                self._ready.seq_rm(prompt.seq, last, -1)
                prompt.past, prompt.sampled = last, False
            prompt.exported, prompt.asked = min(n_past, prompt.past), False
        prompt.exported = max(prompt.exported, min(n_past, prompt.past))
        if self._export(prompt):
            return True
        if prompt.past >= n_past:
            prompt.asked = False
        else:
            if not prompt.asked:
                prompt.asked = True
                self._x.asked.append(Request(slot, serial, prompt.epoch, prompt.past))
                self._notify()
            return False
        self._look_for_end(prompt)
        return prompt.past < prompt.end and self._compute(prompt)

    def _look_for_end(self, prompt: HeldPrompt) -> None:
        """How far it is to be computed here, which depends on its lane too."""
        slot, sampler = prompt.slot, self._sampler
        here = sampler is not None and not prompt.sampled and sampler.takes(slot)
        prompt.end = int(self._x.table.n_tokens[slot]) - (0 if here else 1)

    def _take(self, slot: int, serial: int) -> HeldPrompt:
        if not self._free_seqs:  # a row ended just now; whatever goes can be fetched again
            self._drop(next(iter(self._prompts.values())))
        orders, seq = self._x.orders, self._free_seqs.popleft()
        prompt = HeldPrompt(slot, serial, int(orders.life[slot]), int(orders.epoch[slot]), seq)
        self._prompts[slot] = prompt
        self._look_for_end(prompt)
        return prompt

    def _is_over(self, prompt: HeldPrompt) -> bool:
        """Nothing of it is needed: another request, or every token has landed."""
        table, orders, slot = self._x.table, self._x.orders, prompt.slot
        return bool(
            prompt.serial != table.serial[slot]
            or prompt.life != orders.life[slot]
            or table.state[slot] != t.RUNNING
            or orders.refused[slot]
            or table.n_past[slot] >= table.n_tokens[slot] - 1
        )

    def _drop(self, prompt: HeldPrompt) -> None:
        self._ready.seq_rm(prompt.seq)
        self._free_seqs.append(prompt.seq)
        del self._prompts[prompt.slot]

    def _compute(self, prompt: HeldPrompt) -> bool:
        """The next chunk of a prompt, and out with it; False if it may not be computed yet."""
        chunk = self._gather(prompt)
        if chunk is None:
            return False
        self._begin(chunk)
        mark = self._ready.library.log_position()
        began = time.perf_counter()
        status = self._decode()
        if status == DECODED and self._x.orders.gate.gave_up:
            status = GIVEN_UP
        wall_ms = 1000.0 * (time.perf_counter() - began)
        self._end(chunk)
        if status == DECODED:
            self.tokens_total += chunk.tokens
            self._learn(chunk.tokens, wall_ms)
            prompt.past += chunk.tokens
            if chunk.ends:
                self._sample(prompt, chunk.tokens - 1)
            self._export(prompt)
        else:
            self._take_back(chunk, status, mark)
        return True

    def _gather(self, prompt: HeldPrompt) -> Chunk | None:
        """Put the next chunk together; None if it may not be computed yet."""
        orders, left = self._x.orders, prompt.end - prompt.past
        granted = int(orders.grant[0])
        memory_order.loads_first()
        self.by_loop = bool(orders.gate.by_loop)
        most = granted if self.by_loop else self.pace.chunk(prompt.past)
        n = min(most, left, self._chunk_most)
        if self.by_loop and n > 0 or n >= TILED:
            n = even_share(left, n, prompt.strictly)
        if n <= 0:
            return None
        self._batch.arrays.logits[:] = 0
        return Chunk(prompt, n, most, self._put(prompt, n))

    def _begin(self, chunk: Chunk) -> None:
        """Say that a chunk is computed, and hand it to the loop if that computes it."""
        orders, context = self._x.orders, self._ready
        orders.grant[0] = 0
        n_threads = self._loaded.n_threads_batch if self.by_loop else self._n_threads
        if self._threads_set != n_threads:
            self._threads_set = n_threads
            context.set_threads(n_threads)
        self._batch.arrays.n_tokens[0] = chunk.tokens
        # who is looked at if libllama takes the process down
        self._x.table.in_tick[chunk.prompt.slot] = 1
        orders.started_ns[0] = time.monotonic_ns()
        size = counted(chunk.tokens, chunk.most) if self.by_loop else chunk.tokens
        begin_chunk(orders.gate, size, whole=not self.by_loop)
        if self.by_loop:
            hand_over(orders.gate, context.address, self._batch.address)
        memory_order.stores_first()
        orders.running[0] = chunk.prompt.slot

    def _end(self, chunk: Chunk) -> None:
        """Say that a chunk is no longer computed."""
        orders, table = self._x.orders, self._x.table
        orders.running[0] = -1
        orders.gate.owner = THREAD
        if table.serial[chunk.prompt.slot] == chunk.prompt.serial:
            table.in_tick[chunk.prompt.slot] = 0

    def _take_back(self, chunk: Chunk, status: int, mark: int) -> None:
        """A chunk was not computed: nothing of it counts.  ``mark``: the library's log before."""
        context, prompt = self._ready, chunk.prompt
        context.seq_rm(prompt.seq, prompt.past, -1)
        if status == GIVEN_UP:
            self.aborted_total += 1
            prompt.strictly |= bool(self._x.orders.gate.redo)
        elif status == NO_KV_SLOT and len(self._prompts) > 1:
            # the engine has room for all that run, so what is in the way can be fetched again
            for other in list(self._prompts.values()):
                if other is not prompt:
                    self._drop(other)
        else:
            why = context.library.first_error(mark) or "libllama gave no reason"
            self._x.refuse(prompt.slot, f"llama_decode failed with status {status}: {why}")
            self._notify()

    def _decode(self) -> int:
        """Compute the chunk at hand, or wait until the loop has done it; what llama_decode says."""
        context, gate = self._ready, self._x.orders.gate
        if self.by_loop:
            while gate.owner != DONE:
                if self._closing and gate.owner == HANDED:  # the loop will not come to it
                    return GIVEN_UP
                self._is_called(None)  # orders are looked at anyway when the chunk is done
            memory_order.loads_first()
            return int(gate.status)
        self._has_team = True
        return int(context.library.lib.uma_decode(context.pointer, self._batch.struct))

    def _sample(self, prompt: HeldPrompt, row: int) -> None:
        """The first token of a prompt, whose last token was number ``row`` of the chunk."""
        assert self._sampler is not None
        context, table, slot = self._ready, self._x.table, prompt.slot
        prompt.sampled = True
        current = self._x.is_current(slot, prompt.serial, prompt.epoch)
        if self._is_over(prompt) or not current or table.n_tokens[slot] != prompt.past:
            return
        context.synchronize()
        logits = context.library.lib.llama_get_logits_ith(context.pointer, row)
        address = int(context.library.ffi.cast("intptr_t", logits))
        if not address:
            self._x.refuse(slot, "libllama has no logits of its last token")
        else:
            token = self._sampler.sample(slot, prompt.serial, prompt.past, address)
            self._x.first.append(token)
        self._notify()

    def _put(self, prompt: HeldPrompt, n: int) -> bool:
        """The next ``n`` tokens of a prompt into the batch.

        Returns whether the last of them is the prompt's last, of which there will be logits.
        """
        arrays, p0 = self._batch.arrays, prompt.past
        ends = bool(p0 + n == self._x.table.n_tokens[prompt.slot])
        arrays.logits[n - 1] = ends
        arrays.token[:n] = self._x.table.tokens[prompt.slot, p0 : p0 + n]
        arrays.pos[:n] = np.arange(p0, p0 + n)
        arrays.seq[:n] = prompt.seq
        return ends

    def _learn(self, n: int, wall_ms: float) -> None:
        gate = self._x.orders.gate
        if self.by_loop and gate.size_class not in self._sizes:
            # the first of a size pays for buffers and pages
            self._sizes.add(int(gate.size_class))
            return
        if self.by_loop and (part_ms := longest_ms(gate)) > 0.0:
            # as if it had been of the largest size of its class
            size = int(CHUNK_SIZES[gate.size_class])
            learn_part(self._cost, size, part_ms, size / n * all_ms(gate))
            doubt_larger(self._cost, size)
        if not self.by_loop:  # which waited between its slices
            self.pace.learn(n, wall_ms)

    def _export(self, prompt: HeldPrompt) -> bool:
        """Copy out what was computed and not copied yet, a piece at most."""
        x, p0 = self._x, prompt.exported
        p1 = min(prompt.past, p0 + self.piece_tokens)
        if p1 == prompt.end - 1:
            p1 -= prompt.end == x.table.n_tokens[prompt.slot]  # the last token is not the engine's
        if p0 >= p1 or len(x.finished) >= BACKLOG:
            return False
        if not x.is_current(prompt.slot, prompt.serial, prompt.epoch):
            return False
        room = x.buffers.take()
        try:
            data, size = export_piece(self._ready, prompt.seq, self._spare, p0, p1, room)
        except ValueError as error:
            x.refuse(prompt.slot, str(error))
            self._notify()
            return False
        prompt.exported = p1
        x.finished.append(Piece(prompt.slot, prompt.serial, prompt.epoch, p0, p1, data, size))
        self._notify()
        return True

    def _take_handed(self) -> None:
        """Put in place what the engine gave."""
        x = self._x
        while x.handed:
            piece = x.handed.popleft()
            prompt = self._prompts.get(piece.slot)
            if prompt is not None and (prompt.serial, prompt.epoch) == (piece.serial, piece.epoch):
                prompt.asked = False
                fits = prompt.past == piece.p0 < piece.p1
                if fits and import_piece(self._ready, prompt.seq, self._spare, piece):
                    prompt.past = piece.p1
                elif fits:
                    x.refuse(piece.slot, "the second context did not take its KV cells")
                    self._notify()
            x.buffers.give(piece.data)

    @property
    def _ready(self) -> Context:
        assert self._context is not None
        return self._context

    def _open(self, tokens: int) -> None:
        """A context with cells for so many; a larger one in place of one that is too small.

        Whatever the smaller one held is fetched again from the engine, which has nearly all of it.
        """
        if self._context is not None and tokens <= self._cells:
            return
        for prompt in list(self._prompts.values()):
            self._drop(prompt)
        self._close_context()
        cells = FEWEST_CELLS
        while cells < tokens:
            cells *= 2
        cells = min(cells, self._loaded.n_ctx)
        others = {}
        if self._x.orders.gate.swap:
            model = self._loaded.model
            others = hang(self._x.orders.gate, model.library, model.n_vocab)
        self._context = open_second(
            self._loaded, self._start, cells, self._chunk_most, self._threads_set, **others
        )
        # a byte of it is looked at, the lowest one (little-endian)
        stop = address_of(self._x.orders.gate, "stop")
        self._context.set_abort_callback(int(is_set.address or 0), stop)
        self._cells = cells

    def _clear(self) -> None:
        """Something in the memory is no number, and may reach what is computed with it."""
        for prompt in list(self._prompts.values()):
            self._drop(prompt)
        if self._context is not None:
            self._context.clear(data=True)

    def _close_context(self) -> None:
        if self._context is not None:
            self._context.close()
        self._context, self._cells = None, 0
        self._sizes.clear()
