"""How what a sequence holds is copied out of libllama's memory, and back into it.

Two ways, by what the model's memory can do: a range of positions at a time (`Pieces`), or the whole
state of a sequence (`WholeStates`).  What is copied lies in ordinary memory and is the caller's.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from umaserve.cache.entry import Entry, Part
from umaserve.cache.tree import PrefixTree
from umaserve.cache.whole import WholeTexts
from umaserve.engine.cells.piece import Piece, export_piece, import_piece
from umaserve.engine.model.loaded import Loaded
from umaserve.llama import Context

from .pages import ReadyPages, own_pages

PrefixStore = PrefixTree | WholeTexts

PIECE_BYTES = 8 << 20  # a few ms to copy; on an accelerator twice as many
FEWEST, MOST = 16, 512  # tokens of a piece
STRIDE = 512  # tokens after which a state is saved, where only whole ones can be
CALL_MS, BYTES_PER_MS = 0.008, 4e6  # of an accelerator: to copy from one tensor, and its bytes
LEAST_BYTES = 1 << 20  # of a copy that says something about the next one
NEWS = 0.25  # weight of the last copy


class Pieces:
    """Ranges of positions, which pass through the sequence ``loaded.n_seq``.

    As of `WholeStates`: ``step`` is the tokens between two saves, and ``cuts`` says whether a range
    of positions can be saved, not only all.
    """

    def __init__(self, loaded: Loaded, most_bytes: int) -> None:
        self.store = PrefixTree(most_bytes)
        self.cuts = True
        self._loaded = loaded
        self._per_token = max(loaded.kv_bytes // max(loaded.n_ctx, 1), 1)
        most = PIECE_BYTES if loaded.on_processor else 2 * PIECE_BYTES
        self.step = min(max(most // self._per_token, FEWEST), MOST)
        self._tensors = tensors(loaded)
        self._room = room_for(loaded)

    def save(self, seq: int, p0: int, p1: int, other: Context | None = None) -> np.ndarray | None:
        """Positions [p0, p1) of a sequence, as libllama saves them; None where it cannot.

        Of an ``other`` context of the same kind, whose last sequence is spare.
        """
        context, spare = self._loaded.context, self._loaded.n_seq
        if other is not None:
            context, spare = other, other.n_seq_max - 1
        try:
            data, size = export_piece(context, seq, spare, p0, p1, None, self._room)
        except ValueError:
            return None
        return data[:size]

    def restore(self, seq: int, part: Part) -> bool:
        """Append a part to a sequence that has what comes before; False, and it is empty."""
        entry, loaded = part.entry, self._loaded
        piece = Piece(-1, 0, 0, entry.p0, entry.p1, entry.data, entry.data.size)
        if import_piece(loaded.context, seq, loaded.n_seq, piece, part.end):
            return True
        loaded.context.seq_rm(seq)
        return False

    def save_ms(self, seq: int, p0: int, p1: int, n_prompt: int) -> float:
        """Estimated ms of `save`; 0 where it is cheap.  ``n_prompt``: tokens that were not decoded
        one by one."""
        if self._loaded.on_processor:
            return 0.0
        return self._copy_ms(p1 - p0, stretches(p0, p1, n_prompt))

    def restore_ms(self, parts: list[Part]) -> float:
        """Estimated ms of `restore` of all parts of a text; 0 where it is cheap."""
        return 0.0 if self._loaded.on_processor else self._copy_ms(parts[-1].end, 1)

    @property
    def step_ms(self) -> float:
        """Estimated ms of copying ``step`` tokens; 0 where it is cheap."""
        return 0.0 if self._loaded.on_processor else self._copy_ms(self.step, 1)

    def _copy_ms(self, tokens: int, stretches: int) -> float:
        """Cells of an accelerator that lie in so many stretches."""
        calls_ms = CALL_MS * self._tensors * stretches
        return calls_ms + tokens * self._per_token / BYTES_PER_MS


class WholeStates:
    """All that a sequence holds, at the token that it has got to, or what of it cannot be cut.

    A recurrent memory has nothing that can be cut: of that no marks are made.  What a copy takes on
    an accelerator is learned: the cells of a window lie ever more apart.
    """

    def __init__(self, loaded: Loaded, most_bytes: int) -> None:
        self.cuts, self.step = False, STRIDE
        self.store = self.texts = WholeTexts(most_bytes)
        self._context, self._room = loaded.context, room_for(loaded)
        self._ms_per_byte = 0.0 if loaded.on_processor else 1.0 / BYTES_PER_MS
        self._per_token = 0.0  # bytes, of the last whole state
        lib, model = loaded.library.lib, loaded.model.pointer
        recurrent = lib.llama_model_is_recurrent(model) and not lib.llama_model_is_hybrid(model)
        self.has_marks = not recurrent

    def save(self, seq: int, p0: int, p1: int, other: Context | None = None) -> np.ndarray | None:
        context = self._context if other is None else other
        if p0 or context.seq_pos_max(seq) != p1 - 1:
            return None
        data = self._copy(context, seq, partial=False)
        if data is not None:
            self._per_token = data.size / p1
        return data

    def mark(self, seq: int) -> np.ndarray | None:
        """Copy the state of a sequence that cannot be cut, as it is now; None where that fails."""
        return self._copy(self._context, seq, partial=True)

    def _copy(self, context: Context, seq: int, partial: bool) -> np.ndarray | None:
        size = context.state_seq_size(seq, partial)
        data, began_s = self._room(max(size, 1)), time.monotonic()
        if not size or context.state_seq_get(seq, data, partial) != size:
            return None
        self.learn(size, 1e3 * (time.monotonic() - began_s))
        return data

    def learn(self, size: int, ms: float) -> None:
        """Learn from a copy of ``size`` bytes, where copies are not taken to be cheap."""
        if self._ms_per_byte and size >= LEAST_BYTES:
            self._ms_per_byte += NEWS * (ms / size - self._ms_per_byte)

    def mark_ms(self, seq: int) -> float:
        """Estimated ms of `mark`; 0 where it is cheap."""
        return self._ms_per_byte and self._ms_per_byte * self._context.state_seq_size(seq, True)

    def restore(self, seq: int, part: Part) -> bool:
        """The cells of attention come first: what cannot be cut is replaced, and the rest cut."""
        context, last = self._context, part.end - 1
        done = self._set(seq, part.entry.data, partial=False)
        if done and part.mark is not None:
            done = self.rewind(seq, part.mark, last)
        if done and context.seq_pos_max(seq) == last:
            return True
        context.seq_rm(seq)
        return False

    def rewind(self, seq: int, mark: Entry, last: int) -> bool:
        """Take a sequence that has a longer text back to a mark, and its position ``last``.

        False, and nobody knows what the sequence holds.
        """
        return self._set(seq, mark.data, partial=True) and self._context.seq_rm(seq, last + 1)

    def _set(self, seq: int, data: np.ndarray, partial: bool) -> bool:
        began_s = time.monotonic()
        done = self._context.state_seq_set(seq, data, data.size, partial) == data.size
        if done:
            self.learn(int(data.size), 1e3 * (time.monotonic() - began_s))
        return done

    def save_ms(self, seq: int, p0: int, p1: int, n_prompt: int) -> float:
        """Estimated ms of `save`, as of `Pieces`."""
        return self._ms_per_byte and self._ms_per_byte * self._context.state_seq_size(seq)

    def restore_ms(self, parts: list[Part]) -> float:
        needed = (each for part in parts for each in (part.entry, part.mark) if each is not None)
        return self._ms_per_byte * sum(each.data.size for each in needed)

    @property
    def step_ms(self) -> float:
        return self._ms_per_byte * self._per_token * self.step


def stretches(p0: int, p1: int, n_prompt: int) -> int:
    """Estimated number of stretches of cells in which positions [p0, p1) of a row lie.

    The prompt lies together.  Streams get their cells in turns, so each token behind the prompt
    lies alone.
    """
    return 1 + max(p1 - max(p0, n_prompt), 0)


def tensors(loaded: Loaded) -> int:
    """Return the number of tensors that hold keys or values, at most."""
    return 2 * int(loaded.library.lib.llama_model_n_layer(loaded.model.pointer))


def room_for(loaded: Loaded) -> Callable[[int], np.ndarray]:
    """Return the maker of arrays for copies: on an accelerator their pages are touched ahead."""
    return own_pages if loaded.on_processor else ReadyPages().take
