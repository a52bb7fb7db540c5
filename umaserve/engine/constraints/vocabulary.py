"""The vocabulary as llguidance wants it: made at the first schema, and kept."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from umaserve.llama import Model
from umaserve.sampling.mask import WORD, forbid

from .grammar.grammars import Grammars
from .matcher import Matcher


class Vocabulary:
    """Safe for several threads.

    A vocabulary without a token that ends answers lends its last one, which no mask allows then.
    Making it takes some 0.2 s for 150k tokens, in which Python does nothing else, and 20 MB.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.grammars = Grammars(model)
        self.ends = np.flatnonzero(model.eog_mask())  # tokens that end an answer
        self._lock = threading.Lock()
        self._made: Any = None

    def get(self) -> Any:
        """llguidance's ``LLTokenizer``."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def fill(self, matcher: Matcher, mask: np.ndarray) -> bool:
        """`Matcher.fill`, without the token that was lent."""
        binds = matcher.fill(mask)
        if binds and not self.ends.size:
            forbid(mask, [self.model.n_vocab - 1])
        return binds

    def may_end(self, mask: np.ndarray) -> bool:
        """Whether a mask of `fill` lets the answer end."""
        ends = self.ends
        if ends.size:
            return bool(((mask[ends // WORD] >> (ends % WORD)) & 1).any())
        return not mask.any()

    def _make(self) -> Any:
        from llguidance import LLTokenizer

        model = self.model
        library = model.library
        return LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]
            tokens=_texts(model),
            vocab_ptr=int(library.ffi.cast("uintptr_t", model.vocab)),
            tokenize_fptr=library.address("llama_tokenize"),
            eos_token=self.ends.tolist() or [model.n_vocab - 1],
            slices=[],  # with them the vocabulary is three times as large, and no mask is quicker
        )


def _texts(model: Model) -> list[bytes]:
    """Each token's text; those that have none, as control tokens, are marked with 0xFF."""
    (offsets, data), (hidden_offsets, hidden) = model.piece_table(), model.piece_table(hidden=True)
    shown, names = data.tobytes(), hidden.tobytes()
    at, hidden_at = offsets.tolist(), hidden_offsets.tolist()
    return [
        shown[at[i] : at[i + 1]] or b"\xff" + names[hidden_at[i] : hidden_at[i + 1]]
        for i in range(model.n_vocab)
    ]
