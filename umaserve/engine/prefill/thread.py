"""The prefill worker's own thread: a second context, and the prompts it holds.

On an accelerator the thread is *paced*: a chunk waits until the policy has granted it
(``Orders.grant``), and stops and goes on with the `gate`.  On a processor the thread computes
chunks on cores of its own.  Where the policy gives prompts slices of time, it puts them together
and lets the loop compute them (`chunk_stack`).

Long: prompts, chunks and copies share one context and its cells.  A chunk that fails drops prompts,
a copy decides what the next chunk is, and a prompt that comes makes the context anew.  Two classes
would hold each other.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from umaserve.engine.cells.piece import Piece, export_piece, import_piece, ordinary
from umaserve.engine.native.batch import Batch
from umaserve.engine.native.niceness import stand_back
from umaserve.engine.native.status import DECODED, GIVEN_UP, NO_KV_SLOT
from umaserve.engine.samplers.first_token import FirstTokens
from umaserve.jit.record import address_of
from umaserve.llama.host_memory import HostMemory
from umaserve.policy.cost.model import CHUNK_SIZES
from umaserve.wire import memory_order
from umaserve.wire import messages as m
from umaserve.wire import table as t

from .chunk_pace import CHUNKS, Pace, counted, even_share
from .chunk_stack import hand_over
from .gate import DONE, HANDED, OPEN, THREAD, all_ms, begin_chunk, hang, longest_ms
from .held_prompt import HeldPrompt
from .orders import ABORT_CALLBACK, BACKLOG, Exchange, Request
from .second_context import measure_chunks, open_second

if TYPE_CHECKING:
    from umaserve.engine.model.loaded import Loaded
    from umaserve.llama import Context

PACED_CHUNK = 512  # tokens of one llama_decode at most where the policy says how many
FEWEST_CELLS = 1024  # of the second KV cache; it doubles until the prompt at hand fits
FEWEST_PACED = 4096
IDLE_S = 60.0  # without a prompt, after which the second context goes
GATHER_S = 0.02  # after a chunk, for which one that is not full waits while streams decode
FULL_ENOUGH = 0.75  # of the largest chunk


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens that are computed together.

    ``parts``: prompts and how many of each, the prompt whose turn it is first.
    ``ends``: the prompts that end with them, and the row of the batch.
    """

    parts: list[tuple[HeldPrompt, int]]
    ends: list[tuple[HeldPrompt, int]]
    most: int  # tokens that were granted
    whole: bool  # it goes on through the ticks

    @property
    def total(self) -> int:
        return sum(count for _, count in self.parts)


class PrefillThread:
    """Computes what ``exchange.orders`` want, until `close`.

    Owns the second context, which no other thread touches while this one lives.

    - ``n_threads`` may be set from outside and counts from the next chunk.
    - ``piece_tokens`` may be set too and counts from the next piece, for which ``room_bytes`` are
      enough.
    - The counters are for reading.
    - ``measured`` is told tokens of a chunk, ms of its longest part and of all of them, from this
      thread.  Of a chunk that went on through the ticks it is told 0 and its duration.
    - ``part_ms`` and ``parts_ms`` have these from the start, by CHUNK_SIZES, 0 = not measured.
    - ``sampler`` samples first tokens here.  None leaves the last token of every prompt to the
      engine.
    """

    def __init__(
        self,
        loaded: Loaded,
        start: m.Start,
        exchange: Exchange,
        wake_read: int,
        n_threads: int,
        piece_tokens: int,
        notify: Callable[[], None],
        room_bytes: int = 0,
        paced: bool = False,
        measured: Callable[[int, float, float], None] | None = None,
        sampler: FirstTokens | None = None,
    ) -> None:
        self.n_threads = n_threads
        self.piece_tokens = piece_tokens
        self.paced = paced
        self.by_loop = False  # the chunk at hand is one that the loop computes
        self.may_prepare = threading.Event()  # set and cleared from outside, where paced
        self.ready = threading.Event()  # nothing more is prepared
        self.tokens_total = 0
        self.aborted_total = 0
        self.pace = Pace()
        self.part_ms, self.parts_ms = np.zeros(CHUNK_SIZES.size), np.zeros(CHUNK_SIZES.size)
        self._loaded = loaded
        self._start = start
        self._x = exchange
        self._wake_read = wake_read
        self._notify = notify
        self._measured = measured
        self._sampler = sampler
        self._host = HostMemory(loaded.library) if paced else None
        self._context: Context | None = None
        self._cells = 0  # of that context
        self._room_bytes = room_bytes
        self._chunk_most = PACED_CHUNK if paced else CHUNKS[0]
        self._batch = Batch(loaded.library.ffi, self._chunk_most, 1)
        self._threads_set = n_threads
        self._by_itself = False  # the next chunk is of one prompt
        self._ended_ns = 0  # when the last chunk did, monotonic
        self._answered = 0  # first tokens that came of it
        self._gathers = False  # a small chunk waits for more
        self._prompts: dict[int, HeldPrompt] = {}
        self._free_seqs = deque(range(loaded.n_seq))
        self._spare = loaded.n_seq
        self._closing = False
        self._buffers_left = BACKLOG + 2  # to be made beforehand, where paced
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
        if self._host is not None:
            self._host.close()

    @property
    def cells(self) -> int:
        """KV cells of the second context; 0 while there is none."""
        return self._cells

    def _run(self) -> None:
        stand_back()
        self._poll.register(self._wake_read, select.POLLIN)
        try:
            if not self.paced:
                self.ready.set()
            while not self._closing:
                if self.may_prepare.is_set() and not self.ready.is_set():
                    self._prepare()
                if not self._step():
                    may_go = self._cells and not self._prompts
                    limit_s = GATHER_S if self._gathers else IDLE_S if may_go else None
                    if self._poll.poll(None if limit_s is None else 1000.0 * limit_s):
                        os.read(self._wake_read, 4096)
                    elif not self._gathers:
                        self._close_context()
        except Exception as error:  # whatever it is, the engine can do without this thread
            self._x.complain(f"prompts are no longer computed beside the ticks: {error}")
            self._x.orders.alive[0] = 0
            self.ready.set()
            self._notify()

    def _prepare(self) -> None:
        """Have what a first prompt would stop the accelerator and its streams for.

        That is a context's buffers, those of its kernels, and memory that pieces are copied to.
        It is done while nobody asks for anything (``may_prepare``), the rest in a later pause.
        """
        assert self._host is not None
        gate = self._x.orders.gate
        for _ in range(self._buffers_left):
            self._x.buffers.give(self._host.array(self._room_bytes))
        self._buffers_left = 0
        self._open(1)
        for prompt in list(self._prompts.values()):  # nobody runs, and their cells are needed
            self._drop(prompt)
        chunks = measure_chunks(
            self._ready, self._batch, gate,
            min(self._chunk_most, self._cells // 2, self._loaded.n_positions),
            self._loaded.model.n_vocab, self.part_ms, self.parts_ms,
        )  # fmt: skip
        while self.may_prepare.is_set() and not self._closing:
            if next(chunks, self) is self:
                self.ready.set()
                break
        gate.measure = 0

    def _step(self) -> bool:
        """One chunk or one copy; False when there is nothing to do."""
        self._x.orders.gate.stop = 0
        memory_order.all_first()  # the loop says what it wants, then stops what it does not want
        self._gathers = False
        if self._closing:  # looked at after the flag is cleared, so that close cannot be missed
            return False
        if self._x.clears:
            self._x.clears = False
            self._clear()
        wanted = self._x.orders.settled()
        self._take_handed(wanted)
        for prompt in list(self._prompts.values()):
            if self._is_over(prompt):
                self._drop(prompt)
        return any(self._advance(slot, wanted) for slot in wanted)

    # --- one prompt --------------------------------------------------------------------------

    def _advance(self, slot: int, wanted: list[int]) -> bool:
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
            missing = min(n_past - prompt.past, self.piece_tokens)
            if self.paced and not self._make_room(prompt, missing, wanted):
                return False
            if not prompt.asked:
                prompt.asked = True
                self._x.asked.append(Request(slot, serial, prompt.epoch, prompt.past))
                self._notify()
            return False
        self._look_for_end(prompt)
        return prompt.past < prompt.end and self._compute(prompt, wanted)

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

    def _compute(self, prompt: HeldPrompt, wanted: list[int]) -> bool:
        """The next chunk of a prompt, and out with it; False if it may not be computed yet."""
        chunk = self._gather(prompt, wanted)
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
            self.tokens_total += chunk.total
            self._learn(chunk.total, wall_ms)
            for each, count in chunk.parts:
                each.past += count
            for each, row in chunk.ends:
                self._sample(each, row)
            self._export(prompt)
        else:
            self._take_back(chunk, status, mark)
        return True

    def _gather(self, prompt: HeldPrompt, wanted: list[int]) -> Chunk | None:
        """Put the next chunk together; None if it may not be computed yet.

        Where chunks are granted and the end of a prompt leaves room, others fill it.
        """
        orders, left = self._x.orders, prompt.end - prompt.past
        granted = int(orders.grant[0])
        memory_order.loads_first()
        self.by_loop = bool(orders.gate.by_loop)
        most, whole = abs(granted), granted < 0
        if not (self.paced or self.by_loop):
            most, whole = self.pace.chunk(), True
        n = min(most, left, self._chunk_most)
        if self.by_loop and n > 0:
            n = even_share(left, n, prompt.strictly)
        if n <= 0 or self.paced and not self._make_room(prompt, n, wanted):
            return None
        self._batch.arrays.logits[:] = 0
        ends = [(prompt, n - 1)] if self._put(prompt, 0, n) else []
        more = []
        if self.paced and not self._by_itself:
            more = self._fill(prompt, min(most, self._chunk_most), n, wanted, ends)
        chunk = Chunk([(prompt, n), *more], ends, most, whole)
        self._gathers = self._more_may_come(prompt, chunk.total, most, wanted)
        return None if self._gathers else chunk

    def _begin(self, chunk: Chunk) -> None:
        """Say that a chunk is computed, and hand it to the loop if that computes it."""
        orders, context = self._x.orders, self._ready
        orders.grant[0] = 0
        self._by_itself = False
        n_threads = self._loaded.n_threads_batch if self.by_loop else self.n_threads
        if self._threads_set != n_threads:
            self._threads_set = n_threads
            context.set_threads(n_threads)
        self._batch.arrays.n_tokens[0] = chunk.total
        # who is looked at if libllama takes the process down
        for each, _ in chunk.parts:
            self._x.table.in_tick[each.slot] = 1
        orders.started_ns[0] = time.monotonic_ns()
        orders.size[0] = chunk.total
        size = counted(chunk.total, chunk.most) if self.by_loop else chunk.total
        begin_chunk(orders.gate, size, chunk.whole)
        if self.by_loop:
            address = self._loaded.library.ffi.cast
            hand_over(
                orders.gate, int(address("intptr_t", context.pointer)),
                int(address("intptr_t", self._batch.struct)),
            )  # fmt: skip
        memory_order.stores_first()
        orders.running[0] = chunk.parts[0][0].slot
        orders.turns[0] += 1

    def _end(self, chunk: Chunk) -> None:
        """Say that a chunk is no longer computed."""
        orders, table = self._x.orders, self._x.table
        orders.turns[0] += 1
        orders.running[0] = -1
        orders.gate.owner = THREAD
        self._ended_ns, self._answered = time.monotonic_ns(), len(chunk.ends)
        for each, _ in chunk.parts:
            if table.serial[each.slot] == each.serial:
                table.in_tick[each.slot] = 0

    def _take_back(self, chunk: Chunk, status: int, mark: int) -> None:
        """A chunk was not computed: nothing of it counts.  ``mark``: the library's log before."""
        context, (prompt, _) = self._ready, chunk.parts[0]
        for each, _ in chunk.parts:
            context.seq_rm(each.seq, each.past, -1)
        if status == GIVEN_UP:
            self.aborted_total += 1
            prompt.strictly |= bool(self._x.orders.gate.redo)
        elif len(chunk.parts) > 1 and status != NO_KV_SLOT:
            self._by_itself = True  # to see whose fault it is
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
                self._poll.poll()
                os.read(self._wake_read, 4096)  # looked at anyway when the chunk is done
            memory_order.loads_first()
            return int(gate.status)
        status = int(context.library.lib.uma_decode(context.pointer, self._batch.struct))
        if status == DECODED and self.paced:
            context.synchronize()
        return status

    def _more_may_come(
        self, prompt: HeldPrompt, tokens: int, most: int, wanted: list[int]
    ) -> bool:  # fmt: skip
        """Whether a chunk should wait a little for more tokens.

        While streams decode, a chunk goes on for many ticks, one of few tokens for nearly as many.
        Clients whose requests ended with the last chunk may be about to ask again.
        """
        table, orders = self._x.table, self._x.orders
        if not self.paced or orders.gate.until == OPEN or tokens >= FULL_ENOUGH * most:
            return False
        if table.lane[prompt.slot] == m.LANE_INTERACTIVE:
            return False
        came = np.count_nonzero(table.t_admit_ns[wanted] > self._ended_ns)
        return bool(
            came < self._answered and time.monotonic_ns() - self._ended_ns < 1e9 * GATHER_S
        )

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

    def _put(self, prompt: HeldPrompt, at: int, n: int) -> bool:
        """The next ``n`` tokens of a prompt into the batch, from ``at`` on.

        Returns whether the last of them is the prompt's last, of which there will be logits.
        """
        arrays, p0, end = self._batch.arrays, prompt.past, at + n
        ends = bool(p0 + n == self._x.table.n_tokens[prompt.slot])
        arrays.logits[end - 1] = ends
        arrays.token[at:end] = self._x.table.tokens[prompt.slot, p0 : p0 + n]
        arrays.pos[at:end] = np.arange(p0, p0 + n)
        arrays.seq[at:end] = prompt.seq
        return ends

    def _fill(
        self,
        first: HeldPrompt,
        most: int,
        used: int,
        wanted: list[int],
        ends: list[tuple[HeldPrompt, int]],
    ) -> list[tuple[HeldPrompt, int]]:
        """Put tokens of other wanted prompts behind those of ``first``: (prompt, tokens) each.

        Those that end are added to ``ends``, with the number of their last token in the batch.
        """
        table, orders = self._x.table, self._x.orders
        room = self._cells - sum(prompt.past for prompt in self._prompts.values()) - used
        out = []
        for slot in wanted:
            n_past, last = int(table.n_past[slot]), int(table.n_tokens[slot]) - 1
            if slot == first.slot or table.state[slot] != t.RUNNING or last + 1 > self._cells:
                continue
            if table.isolate[slot] or orders.refused[slot] or n_past >= last:
                continue
            prompt = self._prompts.get(slot)
            if prompt is None and self._free_seqs:
                prompt = self._take(slot, int(table.serial[slot]))
            if prompt is None or self._is_over(prompt) or prompt.past < n_past:
                continue
            self._look_for_end(prompt)
            n = min(most - used, prompt.end - prompt.past, room)
            if n <= 0:
                continue
            if self._put(prompt, used, n):
                ends.append((prompt, used + n - 1))
            out.append((prompt, n))
            used, room = used + n, room - n
        return out

    def _make_room(self, prompt: HeldPrompt, n: int, wanted: list[int]) -> bool:
        """Cells for ``n`` more tokens; False where those that are done have to leave first.

        What is computed in part and comes later in the list gives way: it can be computed again.
        """
        used = sum(other.past for other in self._prompts.values())
        later = sorted(
            (other for other in self._prompts.values() if other is not prompt),
            key=lambda other: wanted.index(other.slot) if other.slot in wanted else len(wanted),
        )
        while used + n > self._cells and later:
            other = later.pop()
            if other.past < other.end:
                used -= other.past
                self._drop(other)
        return used + n <= self._cells

    def _learn(self, n: int, wall_ms: float) -> None:
        gate = self._x.orders.gate
        if self.by_loop and gate.size_class not in self._sizes:
            # the first of a size pays for buffers and pages
            self._sizes.add(int(gate.size_class))
            return
        if self._measured is not None and (self.paced or self.by_loop):
            if gate.whole:
                self._measured(n, 0.0, wall_ms)
            elif (part_ms := longest_ms(gate)) > 0.0:
                # between a processor's ticks, as if it had been of the largest size of its class
                size = int(CHUNK_SIZES[gate.size_class]) if self.by_loop else n
                self._measured(size, part_ms, size / n * all_ms(gate))
        if not self.by_loop:  # which waited between its slices
            self.pace.learn(n, wall_ms)

    # --- KV cells that come and go -----------------------------------------------------------

    def _export(self, prompt: HeldPrompt) -> bool:
        """Copy out what was computed and not copied yet, a piece at most."""
        x, p0 = self._x, prompt.exported
        p1 = min(prompt.past, p0 + self.piece_tokens)
        if self._ends_here(prompt):
            return False
        if p1 == prompt.end - 1:
            p1 -= prompt.end == x.table.n_tokens[prompt.slot]  # the last token is not the engine's
        if p0 >= p1 or len(x.finished) >= BACKLOG:
            return False
        if not x.is_current(prompt.slot, prompt.serial, prompt.epoch):
            return False
        background = x.table.lane[prompt.slot] != m.LANE_INTERACTIVE
        goes_on = p1 - p0 < self.piece_tokens and prompt.past < prompt.end
        if self.paced and background and goes_on:
            return False  # a copy has a fixed cost: small chunks leave together
        room = x.buffers.take()
        try:
            fresh = ordinary if self._host is None else self._host_array
            data, size = export_piece(self._ready, prompt.seq, self._spare, p0, p1, room, fresh)
        except ValueError as error:
            x.refuse(prompt.slot, str(error))
            self._notify()
            return False
        prompt.exported = p1
        x.finished.append(Piece(prompt.slot, prompt.serial, prompt.epoch, p0, p1, data, size))
        self._notify()
        return True

    def _ends_here(self, prompt: HeldPrompt) -> bool:
        """Whether nothing of it is needed but its first token, which is sampled here.

        A processor's ticks take prompts back as soon as nobody streams, so there all comes out.
        """
        sampler, slot = self._sampler, prompt.slot
        if sampler is None or not self.paced:
            return False
        if prompt.sampled and self._x.table.n_tokens[slot] > prompt.past:
            return False  # it has its first token and goes on
        return sampler.takes(slot) and sampler.ends(slot)

    def _host_array(self, size: int) -> np.ndarray:
        """Of the largest piece's size at least: such memory is dear to get and is used again."""
        assert self._host is not None
        self._room_bytes = max(self._room_bytes, size)
        return self._host.array(self._room_bytes)

    def _take_handed(self, wanted: list[int]) -> None:
        """Put in place what the engine gave."""
        x = self._x
        while x.handed:
            piece = x.handed.popleft()
            prompt = self._prompts.get(piece.slot)
            if prompt is not None and (prompt.serial, prompt.epoch) == (piece.serial, piece.epoch):
                prompt.asked = False
                fits = prompt.past == piece.p0 < piece.p1
                if fits and self.paced:  # else it is asked for again once there is room
                    fits = self._make_room(prompt, piece.p1 - piece.p0, wanted)
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
        cells = FEWEST_PACED if self.paced else FEWEST_CELLS
        while cells < tokens:
            cells *= 2
        cells = min(cells, self._loaded.n_ctx)
        others = {}
        if self.paced or self._x.orders.gate.swap:
            model = self._loaded.model
            others = hang(self._x.orders.gate, model.library, self._wake_read, model.n_vocab)
        self._context = open_second(
            self._loaded, self._start, cells, self._chunk_most, self._threads_set, **others
        )
        if not self.paced:
            # a byte of it is looked at, the lowest one (little-endian)
            stop = address_of(self._x.orders.gate, "stop")
            self._context.set_abort_callback(ABORT_CALLBACK, stop)
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
