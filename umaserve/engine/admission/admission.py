"""Admission of requests: from a message to a row of the session table, or a refusal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import numpy as np

from umaserve.engine.constraints.constraints import Constraints
from umaserve.engine.model.loaded import Setup
from umaserve.engine.native.batch import to_come
from umaserve.llama.specials import Specials
from umaserve.policy.latency_guard import FIRST_CREDIT
from umaserve.sampling.breakers import BreakerCache
from umaserve.sampling.params import SamplerTable
from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.memory_order import stores_first

from .refusals import room_behind, why_refused
from .tokenizer_thread import TokenizerThread, tokens_of

INLINE_BYTES = 4096  # a text this short is tokenised at once: handing it over would cost as much
SLOW_S = 0.01  # a text that takes so long was not short
BACKGROUND_BYTES = 256  # the same for one that nobody waits for, but whom it may hold up
REHEARSAL = "a request is on its way"


class Admission:
    """Takes Submit messages to rows in state WAITING, or refuses them.

    Constraints are compiled and long texts tokenised beside the ticks (`Constraints`,
    `tokenizer_thread`); ``take_tokenised`` collects what is finished.
    """

    def __init__(self, setup: Setup, samplers: SamplerTable) -> None:
        loaded, table, control = setup.loaded, setup.table, setup.control
        self._loaded, self._table, self._control = loaded, table, control
        self._samplers = samplers
        self._specials = Specials(loaded.model)
        self._breakers = BreakerCache.of_model(loaded.model)
        self._arrivals = 0
        self._slots: dict[int, int] = {}  # serial -> slot of rows in the table
        self.constraints = Constraints(loaded.model, table, samplers, control.notify)
        self._pending: set[int] = set()  # serials that threads work on
        self._cancelled: set[int] = set()
        self.awaited = 0  # interactive requests that are being tokenised
        # set by the loop, and by what computes texts beside the requests
        self.on_row: Callable[[int, m.Submit], None]
        self.on_embed: Callable[[m.Embed, list[list[int]], str], None]
        self.on_prompt: Callable[[m.Submit, list[int]], None]
        self.resumed_at = np.zeros(setup.start.n_slots, np.int32)  # n_tokens at first
        self._inline = INLINE_BYTES
        self._thread = TokenizerThread(self._specials, table, control.notify)
        self._other = TokenizerThread(self._specials, table, control.notify, gives_way=True)

    def slot_of(self, serial: int) -> int:
        """Row of a request, or -1."""
        return self._slots.get(serial, -1)

    def submit(self, message: m.Submit) -> None:
        """A request from the front."""
        came_ns = message.came_ns or time.monotonic_ns()
        self._table.t_submit_ns[message.slot] = self._table.t_wait_ns[message.slot] = came_ns
        stores_first()  # behind FREE: the front takes a state that comes with a serial for its own
        self._table.serial[message.slot] = message.serial
        if message.constraint is not None:
            self._pending.add(message.serial)
            self.constraints.compile(message)
        else:
            self._tokenise(message)

    def _tokenise(self, message: m.Submit) -> None:
        if message.tokens is not None:
            with self._owned(message):
                self._place_tokens(message, message.tokens)
        elif self._is_short(message):
            with self._owned(message):
                began_s = time.thread_time()  # what others made it wait does not count
                tokens, error = tokens_of(self._specials, message)
                if time.thread_time() - began_s > SLOW_S:  # some vocabularies take a second
                    shorter = max(len(message.prompt or "") // 2, BACKGROUND_BYTES)
                    self._inline = min(self._inline, shorter)
                self._tokenised(message, tokens, error)
        else:
            self._pending.add(message.serial)
            is_awaited = message.lane == m.LANE_INTERACTIVE
            self.awaited += is_awaited
            (self._thread if is_awaited else self._other).put(message)

    def _is_short(self, message: m.Submit) -> bool:
        """Whether its text is tokenised at once, rather than beside the ticks."""
        limit = self._inline
        if message.lane != m.LANE_INTERACTIVE:
            limit = min(limit, BACKGROUND_BYTES)
        return len(message.prompt or "") <= limit

    def tokenize(self, message: m.Tokenize | m.Embed) -> None:
        """Somebody's question about a text."""
        self._other.put(message)

    def forget(self, ref: int) -> None:
        """Nobody waits for that answer any more."""
        self._other.forget(ref)

    @contextlib.contextmanager
    def _owned(self, message: m.Submit) -> Iterator[None]:
        """Blame a request if handling its client's bytes in this block ends the process."""
        self._table.in_tick[message.slot] = t.IN_TOKENIZER
        try:
            yield
        finally:
            self._table.in_tick[message.slot] = 0

    def rehearse(self) -> None:
        """Tokenise something, so that the next text finds the tokeniser in the caches."""
        self._loaded.model.tokenize(REHEARSAL)

    def take_tokenised(self) -> None:
        """Place the requests whose text or constraint a thread has finished."""
        while self.constraints.has_compiled:
            self._compiled(*self.constraints.take_compiled())
        while self._thread.finished or self._other.finished:
            thread = self._thread if self._thread.finished else self._other
            message, tokens, error = thread.finished.popleft()
            if isinstance(message, m.Tokens):
                self._control.send(message)
                continue
            if isinstance(message, m.Embed):
                self.on_embed(message, tokens, error)
                continue
            self.awaited -= message.lane == m.LANE_INTERACTIVE
            if self._goes_on(message):
                with self._owned(message):
                    self._tokenised(message, tokens, error)

    def _compiled(self, message: m.Submit, error: str) -> None:
        if not self._goes_on(message):
            return
        if error:
            self.reject(message, "E_PROTO_005", f"the constraint cannot be used: {error}")
        else:
            self._tokenise(message)

    def _goes_on(self, message: m.Submit) -> bool:
        """Whether a request that a thread has worked on is still wanted; else it is over."""
        self._pending.discard(message.serial)
        if message.serial not in self._cancelled:
            return True
        self._cancelled.discard(message.serial)
        self.end_empty(message)
        return False

    def end_empty(self, message: m.Submit) -> None:
        """A request that was cancelled before it was a row."""
        self._fill_row(message, [], 0, 0)
        self._done(message.slot, t.REASON_CANCEL)

    def _done(self, slot: int, reason: int) -> None:
        """A row that ends before it ran.  The state goes last: it is what the front looks at."""
        self._table.reason[slot] = reason
        stores_first()
        self._table.state[slot] = t.DONE
        self._control.wake()

    @property
    def is_tokenizing(self) -> bool:
        """Whether a text is being tokenised beside the loop."""
        return self._thread.is_busy or self._other.is_busy

    @property
    def has_tokenised(self) -> bool:
        """Whether `take_tokenised` has something to place."""
        finished = self._thread.finished or self._other.finished
        return bool(finished or self.constraints.has_compiled)

    def cancel_pending(self, serial: int) -> bool:
        """Remember a cancel for a request that a thread still works on."""
        if serial in self._pending:
            self._cancelled.add(serial)
            return True
        return False

    def release(self, slot: int, serial: int) -> None:
        """The front has read a row that has ended."""
        table = self._table
        if table.serial[slot] == serial and table.state[slot] == t.DONE:
            self._slots.pop(serial, None)
            self.constraints.drop(serial)
            table.serial[slot] = 0
            table.state[slot] = t.FREE

    # --- inside ------------------------------------------------------------------------------

    def _tokenised(self, message: m.Submit, tokens: list[int], error: str) -> None:
        if error:
            self.reject(message, "E_PROTO_003", f"prompt cannot be tokenised: {error}")
        else:
            self._place(message, tokens, len(tokens))

    def _place_tokens(self, message: m.Submit, tokens: list[int]) -> None:
        n_vocab = self._loaded.n_vocab
        if max(tokens, default=0) >= n_vocab:
            text = f'"tokens" names token {max(tokens)}; the vocabulary has {n_vocab}'
            self.reject(message, "E_PROTO_003", text)
            return
        start = self._specials.bos if message.add_bos else []
        self._place(message, [*start, *tokens], len(start) + message.n_prompt)

    def reject(self, message: m.Submit, code: str, text: str, n_prompt: int = 0) -> None:
        """Refuse a request, which has no row any more."""
        self._slots.pop(message.serial, None)
        self._table.serial[message.slot] = 0
        self.constraints.drop(message.serial)
        self._control.send(m.Rejected(message.serial, code, text, n_prompt))

    def _place(self, message: m.Submit, tokens: list[int], n_prompt: int) -> None:
        refusal = why_refused(self._loaded, message, tokens, n_prompt)
        if refusal is not None:
            self.reject(message, *refusal)
            return
        room = room_behind(self._loaded, message, n_prompt)
        max_tokens = min(message.max_tokens, room) if message.max_tokens > 0 else room
        if message.max_tokens == m.NO_TOKENS:
            max_tokens = 0
        self._fill_row(message, tokens, n_prompt, max_tokens)
        self._samplers.set(message.slot, message.sampling, self._breakers.of(message.sampling))
        if message.prompt_logprobs >= 0:
            self.on_prompt(message, tokens[:n_prompt])
        else:
            self.begin(message)

    def begin(self, message: m.Submit) -> None:
        """Let a request wait for its turn, whose row is filled."""
        if to_come(self._table, message.slot) <= 0:
            # none are wanted, or it is resumed with its last token out: only the end was lost
            self._done(message.slot, t.REASON_LENGTH)
        else:
            self.constraints.attach(message.serial)
            stores_first()  # the state goes last: it is what the front looks at
            self._table.state[message.slot] = t.WAITING

    def _fill_row(
        self, message: m.Submit, tokens: list[int], n_prompt: int, max_tokens: int
    ) -> None:
        table, slot = self._table, message.slot
        self._slots[message.serial] = slot
        table.tokens[slot, : len(tokens)] = tokens
        # the next is marked as not there yet: zero is a valid id
        table.tokens[slot, len(tokens) : len(tokens) + 1] = t.NOT_YET
        table.serial[slot] = message.serial
        table.reason[slot] = t.REASON_NONE
        table.lane[slot] = message.lane
        table.seq[slot] = -1
        table.n_prompt[slot] = n_prompt
        table.n_tokens[slot] = len(tokens)
        table.n_past[slot] = table.cached[slot] = table.checkpoint[slot] = 0
        table.more_cells[slot] = sum(picture.more_cells for picture in message.pictures)
        table.max_tokens[slot] = max_tokens
        table.shifts[slot] = 0 if message.shifts and not message.deterministic else -1
        table.isolate[slot] = t.APART if message.deterministic else message.isolate
        table.speculate[slot] = message.speculate
        table.drafted[slot] = table.accepted[slot] = 0
        table.cap[slot] = message.latency_cap
        table.target_ttft_ms[slot] = message.target_ttft_ms
        table.target_tbt_ms[slot] = message.target_tbt_ms
        table.credit[slot] = FIRST_CREDIT
        table.t_admit_ns[slot] = 0
        table.t_first_ns[slot] = 0
        table.t_last_ns[slot] = 0
        self._arrivals += 1
        table.program[slot] = message.program
        table.weight[slot] = message.weight
        table.rounds[slot] = 1.0
        table.auto[slot] = t.AUTO_NEW if message.auto else t.LABELLED
        table.arrival[slot] = (message.turn << 32) + self._arrivals
        self.resumed_at[slot] = len(tokens)
        self.on_row(slot, message)
