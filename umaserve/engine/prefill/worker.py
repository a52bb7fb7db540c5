"""Prompts computed beside the ticks of a processor: on cores of their own, or between ticks.

Decode is bound by memory and prefill by arithmetic.  So on separate cores they hardly disturb each
other (Splitwise, Patel et al. 2023; DistServe, Zhong et al. 2024).  A second ``llama_context`` on
the same weights, driven by a thread of its own (`thread`), computes prompts chunk by chunk.  The KV
cells of each chunk are copied into the engine's context between two ticks.  The last known token of
a prompt stays with the engine, which needs its logits, unless nobody waits for it.  Then the first
token is sampled there (`first_token`).

The two threads share little: a few arrays that compiled code may write as well, and deques
(`orders`).  Neither waits for the other, the gate apart.  Only the loop's thread touches the
engine's context, only the worker's the second one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

from umaserve.engine.cells.accounting import cells_used
from umaserve.engine.cells.piece import Piece, export_piece, import_piece
from umaserve.engine.model.abilities import why_not_plain
from umaserve.engine.model.loaded import Loaded, Setup
from umaserve.engine.samplers.first_token import FirstToken, FirstTokens
from umaserve.models.needs import available_bytes
from umaserve.policy.cost.model import CostModel
from umaserve.wire import memory_order
from umaserve.wire import messages as m
from umaserve.wire import table as t

from .chunk_pace import CHUNKS
from .chunk_stack import ChunkStack, give_up, waits
from .orders import Exchange, Orders
from .thread import PrefillThread

PIECE_BYTES = 8 << 20  # of KV that move in one go, roughly: a few milliseconds of copying
RESERVE_BYTES = 256 << 20  # memory that the second KV cache leaves alone


def why_not_aside(loaded: Loaded) -> str:
    """Why prompts of this model cannot be computed aside; "" = they can."""
    if loaded.n_cores < 2:
        return "there is one core only"
    if reason := why_not_plain(loaded):
        return reason
    # mapped weights count as available memory, and we want them to stay where they are
    free = available_bytes()
    second = loaded.kv_bytes * loaded.n_positions // max(loaded.n_ctx, 1)  # for one prompt
    kv_bytes = second + loaded.unused_bytes + loaded.model.size_bytes
    if free and kv_bytes + RESERVE_BYTES > free:  # 0: the system does not tell
        return "there is no memory for a second KV cache"
    return ""


class PrefillWorker:
    """The loop's side of the worker; see the module.  Nothing is done here before `open`.

    All methods are for the loop's thread and never wait for the worker, `close` apart.  Its thread
    calls ``control.notify``, which ends the loop's ticks, when there is something for `land`.
    ``orders`` is for compiled code.  ``threads``: those of the worker, 0 = there is none.
    """

    def __init__(self, setup: Setup, cost: CostModel) -> None:
        loaded, table = self._loaded, self._table = setup.loaded, setup.table
        self._setup, self._cost = setup, cost
        self.threads = 0
        self._wake_read, wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(wake_write, False)
        self.orders = Orders.allocate(table.state.size, wake_write)
        self.orders.alive[0] = 0
        self._x = Exchange(table, self.orders)
        per_token = max(loaded.kv_bytes // max(loaded.n_ctx, 1), 1)
        self._piece_most = min(max(PIECE_BYTES // per_token, CHUNKS[-1]), CHUNKS[0])
        self._spare = loaded.n_seq  # sequence id, in both contexts
        self._stack: ChunkStack | None = None
        self._thread: PrefillThread | None = None

    def open(self, abortable: bool, first_tokens: Callable[[], FirstTokens]) -> None:
        """Start the worker; a device that is not ``abortable`` computes prompts in the ticks."""
        loaded, asked = self._loaded, self._setup.start.prefill_threads
        if asked == 0 or not abortable or why_not_aside(loaded):
            return
        threads = min(asked, loaded.n_cores - 1) if asked > 0 else loaded.n_cores // 2
        if threads:
            self.start(threads, first_tokens())

    def start(self, threads: int, sampler: FirstTokens | None = None) -> None:
        """Start so many threads; ``sampler``: of first tokens, None where the ticks sample all."""
        loaded, self.threads = self._loaded, threads
        if loaded.on_processor:
            with contextlib.suppress(OSError):  # then prompts get no slices here
                self._stack = ChunkStack(self.orders.gate, loaded.library)
        self.orders.alive[0] = 1
        self._thread = PrefillThread(
            self._setup, self._x, self._wake_read, threads, self._piece_most, self._cost, sampler
        )

    @property
    def sliced(self) -> bool:
        """Whether the loop can compute chunks itself, in slices of time between ticks."""
        return self._stack is not None

    @property
    def alive(self) -> bool:
        """Whether prompts are computed beside the ticks: False once the worker has given up."""
        return bool(self.orders.alive[0])

    @property
    def has_pieces(self) -> bool:
        """`land` has something to do, cells permitting."""
        return bool(self._x.finished or self._x.asked)

    def want(self, slots: Sequence[int]) -> None:
        """Want ``slots``, the most urgent first: ``orders.give_orders`` for calls from Python."""
        orders, n = self.orders, len(slots)
        orders.sequence[0] += 1
        memory_order.stores_first()
        orders.wanted[:n] = slots
        orders.wanted[n:] = -1
        memory_order.stores_first()
        orders.sequence[0] += 1
        memory_order.stores_first()
        self._x.wake_worker()

    def land(self, most: int = 1) -> int:
        """Move up to ``most`` pieces each way; returns the prompt tokens that landed.

        A finished piece goes into the engine's context if its row still runs the same request and
        has exactly the tokens before it.  ``n_past`` is raised.  One that does not fit is dropped,
        and the worker goes on from ``n_past``.  While there are too few free cells it stays where
        it is.  Of a row that the engine computed itself for a while, the worker gets what it asked
        for.
        """
        x, table, orders, n_ctx = self._x, self._table, self.orders, self._loaded.n_ctx
        moved = self._hand_over(most)
        landed = taken = 0
        while taken < most and x.finished:
            piece = x.finished[0]
            slot, tokens = piece.slot, piece.p1 - piece.p0
            if self._runs(slot, piece.serial, piece.epoch):
                if table.n_past[slot] != piece.p0:
                    orders.epoch[slot] += 1  # those after it do not fit either
                elif piece.p1 >= table.n_tokens[slot] or cells_used(table) + tokens > n_ctx:
                    break  # its first token comes before its last cell
                else:
                    taken += 1
                    seq = int(table.seq[slot])
                    if import_piece(self._loaded.context, seq, self._spare, piece):
                        table.n_past[slot] = piece.p1
                        landed += tokens
                    else:
                        x.refuse(slot, "the engine's context did not take its KV cells")
            x.finished.popleft()
            x.buffers.give(piece.data)
            moved = True
        if moved:
            x.wake_worker()
        return landed

    def take_first(self) -> list[FirstToken]:
        """First tokens that the worker has sampled, of requests that still wait for them.

        The caller adds them to their rows.  To be called before `land`.
        """
        x, table, out = self._x, self._table, []
        for _ in range(len(x.first)):
            first = x.first.popleft()
            waits = table.state[first.slot] == t.RUNNING and table.n_tokens[first.slot] == first.at
            if waits and table.serial[first.slot] == first.serial:
                out.append(first)
        if out:
            x.wake_worker()
        return out

    def forget(self, slot: int) -> None:
        """The row's request ended or lost its cells: nothing of it is needed any more."""
        self.orders.life[slot] += 1
        self.reclaim(slot)
        self.orders.refused[slot] = 0

    def reclaim(self, slot: int) -> None:
        """The engine computes this prompt from now on; nothing more of it lands.

        The slot leaves ``wanted``, and its running chunk is given up.  Wanted again, it goes on
        from where the engine is.
        """
        orders = self.orders
        orders.epoch[slot] += 1
        wanted = orders.listed()
        if slot in wanted:
            self.want([other for other in wanted if other != slot])
        if orders.running[0] == slot:
            orders.gate.stop = 1
            if waits(orders.gate):  # there may be no tick for long that would do it
                give_up(orders.gate)
                self._x.wake_worker()

    def clear(self) -> None:
        """Forget all prompts, what was sampled of them too, and zero the second context's memory.

        To be called after `forget` for all rows that run.
        """
        self._x.first.clear()
        self._x.clears = True
        self._x.wake_worker()

    def take_log(self) -> list[m.Log]:
        """Return messages on failures since the last call, for the front's log."""
        return [self._x.log.popleft() for _ in range(len(self._x.log))]

    def close(self) -> None:
        """Give up the running chunk, end the thread, free the context.  Before ``loaded.close``."""
        if self._wake_read >= 0:
            if self._thread is not None:
                give_up(self.orders.gate)
                self._thread.close()
            os.close(self._wake_read)
            os.close(self.orders.wake_fd)
            self._wake_read = -1

    def _runs(self, slot: int, serial: int, epoch: int) -> bool:
        return bool(
            self._table.state[slot] == t.RUNNING and self._x.is_current(slot, serial, epoch)
        )

    def _hand_over(self, most: int) -> bool:
        """Give the worker what the engine computed of prompts that it asked for."""
        x, table = self._x, self._table
        moved = False
        for _ in range(min(most, len(x.asked))):
            slot, serial, epoch, p0 = x.asked.popleft()
            p1 = min(int(table.n_past[slot]), p0 + self._piece_most)
            if not self._runs(slot, serial, epoch) or p0 >= p1:
                continue  # overtaken: the epoch is new, or the cells are gone
            context, seq, room = self._loaded.context, int(table.seq[slot]), x.buffers.take()
            try:
                data, size = export_piece(context, seq, self._spare, p0, p1, room)
            except ValueError as error:
                x.refuse(slot, str(error))
                continue
            x.handed.append(Piece(slot, serial, epoch, p0, p1, data, size))
            moved = True
        return moved
