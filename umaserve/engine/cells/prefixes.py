"""Prompts whose beginning is known: saved from the KV cache, and copied back into it.

`umaserve.cache.tree` knows which texts are kept; here libllama saves and restores their cells.  A
row's cells are saved while it runs, a piece at a time between two ticks, and the rest at its end.
What is known of a prompt is copied into the row's sequence before the row runs.  A prompt that
begins as one that is being computed waits until that beginning is there.  A row's cells are its
own at all times: copies are made, and nothing is shared between sequences.
"""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from umaserve.cache.tree import Part, PrefixTree
from umaserve.engine.model.abilities import why_not_plain
from umaserve.models.needs import available_bytes, total_bytes
from umaserve.policy.cost.model import predict
from umaserve.wire import table as t

from .piece import Piece, export_piece, import_piece

if TYPE_CHECKING:
    from umaserve.engine.model.loaded import Loaded
    from umaserve.policy.cost.model import CostModel

    from .sequences import Sequences

PIECE_BYTES = 8 << 20  # a few ms to copy; on an accelerator twice as many
FEWEST, MOST = 16, 512  # tokens of a piece
WORTH_A_COPY = 8  # tokens: fewer are computed as soon
WORTH_A_WAIT = 32  # tokens that a prompt being computed has to save another
SHARE = 4  # of the machine's memory, one part in so many may be taken by default
RESERVE = 16  # of the machine's memory, one part in so many stays free
LOOK_S = 1.0  # how often to ask what memory is free
AUTO = -1
CALL_MS, BYTES_PER_MS = 0.008, 8e6  # of an accelerator: to copy from one tensor, and its bytes


@dataclass(slots=True)
class Restoring:
    """A row whose known beginning is on its way into its sequence, part by part."""

    slot: int
    serial: int
    parts: list[Part]


class Prefixes:
    """For the loop's thread, between ticks.  ``most_bytes``: 0 = nothing is kept, AUTO = by what
    is free."""

    def __init__(
        self, loaded: Loaded, table: t.SessionTable, sequences: Sequences, cost: CostModel,
        most_bytes: int,
    ) -> None:  # fmt: skip
        self._loaded, self._table, self._sequences = loaded, table, sequences
        self._cost = cost
        self._asked = total_bytes() // SHARE if most_bytes == AUTO else most_bytes
        self.is_on = self._asked > 0 and loaded.generates and not why_not_plain(loaded)
        self.tree = PrefixTree(self._asked)
        self._looked_s = 0.0
        per_token = max(loaded.kv_bytes // max(loaded.n_ctx, 1), 1)
        piece = PIECE_BYTES if loaded.on_processor else 2 * PIECE_BYTES
        self._piece = min(max(piece // per_token, FEWEST), MOST)
        self._per_token = per_token
        self._tensors = 2 * int(loaded.library.lib.llama_model_n_layer(loaded.model.pointer))
        self._domains: dict[int, str] = {}  # of rows whose text may be kept, by slot
        self._saved: dict[int, int] = {}  # tokens of a row that are kept, at most
        self._restoring: list[Restoring] = []
        self._awaited: dict[int, int] = {}  # rows that others wait for: up to which token

    # --- rows ------------------------------------------------------------------------------------

    def arrive(self, slot: int, domain: str | None) -> None:
        """A request has got a row; ``domain``: who may share its text, None = nobody."""
        self._saved.pop(slot, None)
        if self.is_on and domain is not None:
            self._domains[slot] = domain
        else:
            self._domains.pop(slot, None)

    def forget(self, slot: int) -> None:
        """Nothing of this row is to be kept."""
        self._domains.pop(slot, None)

    def known(self, slot: int) -> list[Part]:
        """What is kept of a row's text, but for its last token, which has to be computed."""
        domain = self._domains.get(slot)
        if domain is None:
            return []
        tokens = self._table.tokens[slot, : int(self._table.n_tokens[slot]) - 1]
        parts = self.tree.match(domain, tokens)
        return parts if parts and parts[-1].end >= WORTH_A_COPY else []

    def followers(self) -> set[int]:
        """Rows that had better wait for others, which compute what they begin with."""
        table = self._table
        self._awaited.clear()
        if not self.is_on:
            return set()
        states = table.state.tolist()
        waiting = [s for s in self._domains if states[s] == t.WAITING and table.seq[s] < 0]
        leaders = [s for s in self._domains if states[s] == t.RUNNING and not table.isolate[s]]
        return {slot for slot in waiting if leaders and self._follows(slot, leaders)}

    def _follows(self, slot: int, leaders: list[int]) -> bool:
        table, domain = self._table, self._domains[slot]
        tokens = table.tokens[slot, : int(table.n_tokens[slot]) - 1]
        parts = self.tree.match(domain, tokens)
        have = parts[-1].end if parts else 0
        for leader in leaders:
            if self._domains[leader] != domain or table.lane[leader] > table.lane[slot]:
                continue
            theirs = table.tokens[leader, : int(table.n_tokens[leader])]
            n = min(tokens.size, theirs.size)
            differ = np.flatnonzero(tokens[:n] != theirs[:n])
            shared = int(differ[0]) if differ.size else n
            if shared - have >= WORTH_A_WAIT:
                self._awaited[leader] = max(shared, self._awaited.get(leader, 0))
                return True
        return False

    # --- into the cache --------------------------------------------------------------------------

    def begin(self, slot: int, at_once: bool) -> bool:
        """Restore what is known of a row that has got an empty sequence.

        ``at_once``, or piece by piece in `step`.  False while pieces are left.
        """
        parts = self.known(slot)
        if not parts or not self._pays(slot, parts[-1].end):
            return True
        self.tree.use(parts)
        self._restoring.append(Restoring(slot, int(self._table.serial[slot]), parts))
        if at_once:
            while not self._restore_one(self._restoring[-1]):
                pass
        return not self.fills(slot)

    def fills(self, slot: int) -> bool:
        """Whether pieces of this row are on their way."""
        return any(each.slot == slot for each in self._restoring)

    def leave(self, slot: int) -> None:
        """The row's sequence is being taken away."""
        self._restoring = [each for each in self._restoring if each.slot != slot]
        self._saved.pop(slot, None)

    def _pays(self, slot: int, known: int) -> bool:
        """Whether copying so many tokens is faster than computing them."""
        if self._loaded.on_processor:
            return True
        whole = int(self._table.n_tokens[slot])
        saves_ms = predict(self._cost, 0, 0, whole, whole / 2) - predict(
            self._cost, 0, 0, whole - known, (whole + known) / 2
        )
        return saves_ms > 0.5 * self._copy_ms(known, 1)

    def _copy_ms(self, tokens: int, stretches: int) -> float:
        """What it takes to copy cells of an accelerator that lie in so many stretches."""
        return CALL_MS * self._tensors * stretches + tokens * self._per_token / BYTES_PER_MS

    def _restore_one(self, job: Restoring) -> bool:
        """The next part of a row; True where it has all, or what there is failed."""
        table, part = self._table, job.parts[0]
        entry, seq = part.entry, int(table.seq[job.slot])
        data, loaded = entry.data, self._loaded
        piece = Piece(job.slot, job.serial, 0, entry.p0, entry.p1, data, data.size)
        self._sequences.place(seq, data, entry.p0, entry.p1)
        if import_piece(loaded.context, seq, loaded.n_seq, piece, part.end):
            if part.end < entry.p1:
                self._sequences.forgotten(seq, part.end)
            table.n_past[job.slot] = part.end
            del job.parts[0]
        else:
            # nobody knows what went wrong: the row begins with nothing
            loaded.context.seq_rm(seq)
            self._sequences.lose_track()
            table.n_past[job.slot] = 0
            job.parts.clear()
        if job.parts:
            return False
        self._restoring.remove(job)
        self._saved[job.slot] = int(table.n_past[job.slot])
        return True

    # --- between ticks ---------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether `step` has something to do before more than one tick runs."""
        return bool(self._restoring or self._awaited) or any(map(self._has_piece, self._domains))

    def step(self, at_once: bool, may_save: bool) -> list[int]:
        """Restore and save a piece, or all where that is ``at_once``.

        Returns the rows that have what is known of them now.
        """
        filled = []
        for job in sorted(self._restoring, key=lambda job: int(self._table.lane[job.slot])):
            while (whole := self._restore_one(job)) is False and at_once:
                pass
            if whole:
                filled.append(job.slot)
            if not at_once:
                return filled
        for slot, upto in list(self._awaited.items()):
            while self._has_piece(slot, upto) and self._save_one(slot, upto) and at_once:
                pass
        for slot in list(self._domains) if may_save else ():
            while self._has_piece(slot):
                if not self._save_one(slot):
                    break
                if not at_once:
                    return filled
        return filled

    def keep(self, slot: int) -> None:
        """A row is over: save what is not saved yet, while its sequence has its cells."""
        if slot not in self._domains:
            return
        while self._table.n_past[slot] - self._saved.get(slot, 0) >= WORTH_A_COPY:
            if not self._save_one(slot):
                break

    def _has_piece(self, slot: int, upto: int = 1 << 30) -> bool:
        """Whether a whole piece of a row can be saved, or all up to a token that is awaited."""
        table = self._table
        if table.state[slot] != t.RUNNING or table.isolate[slot]:
            return False
        have, past = self._saved.get(slot, 0), int(table.n_past[slot])
        return past - have >= self._piece or past >= upto > have

    def _save_one(self, slot: int, upto: int = 1 << 30) -> bool:
        """Save the next piece of a row; False where nothing more can be kept of it now."""
        table, domain = self._table, self._domains[slot]
        past = min(int(table.n_past[slot]), upto)
        parts = self.tree.match(domain, table.tokens[slot, :past])
        p0 = parts[-1].end if parts else 0
        p1 = min(p0 + self._piece, past)
        self._saved[slot] = p1
        if p1 <= p0:
            return False
        self._look_at_memory()
        seq, loaded = int(table.seq[slot]), self._loaded
        cost_ms = predict(self._cost, 0, 0, p1 - p0, (p0 + p1) / 2)
        if not self._worth_saving(seq, p0, p1, cost_ms):
            return False
        try:
            data, size = export_piece(loaded.context, seq, loaded.n_seq, p0, p1, None, own_pages)
        except ValueError:
            return False
        return self.tree.add(domain, table.tokens[slot, :p1], p0, data[:size], cost_ms)

    def _worth_saving(self, seq: int, p0: int, p1: int, cost_ms: float) -> bool:
        """Whether copying cells out costs less than to compute them again."""
        if self._loaded.on_processor:
            return True
        stretches = self._sequences.stretches(seq, p0, p1)
        return cost_ms <= 0.0 or self._copy_ms(p1 - p0, stretches) < cost_ms

    def _look_at_memory(self) -> None:
        """Take no more than is free, and give back where others need it."""
        now_s = time.monotonic()
        if now_s < self._looked_s + LOOK_S:
            return
        self._looked_s = now_s
        free = available_bytes()
        if free:
            room = self.tree.bytes_held + free - total_bytes() // RESERVE
            self.tree.most_bytes = max(min(self._asked, room), 0)
            self.tree.shrink()

    def clear(self) -> list[int]:
        """Forget all that is kept, and what is on its way; returns the rows that waited for it."""
        slots = [job.slot for job in self._restoring]
        self._restoring.clear()
        self._awaited.clear()
        self._saved.clear()
        self.tree.clear()
        return slots


def own_pages(size: int) -> np.ndarray:
    """uint8[size] in pages of its own, which the system has back as soon as nobody needs it."""
    return np.frombuffer(mmap.mmap(-1, size), np.uint8)
