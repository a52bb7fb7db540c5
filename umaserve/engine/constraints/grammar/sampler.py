"""libllama's sampler for one grammar.  Only `grammar.process` has one: some end it.

A few lines of GBNF make it compute without an end, or take all memory while an answer goes on.
Others, such as ``"a" !<think>``, end the process: its mask allows a token that it cannot accept.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from umaserve.engine.constraints.matcher import CannotBind, tokens_of
from umaserve.llama import Model
from umaserve.wire import messages as m

from . import check as gbnf

MAX_MADE_GRAMMAR = 4 << 20  # bytes of a grammar that uma-chat has made of tools


class GrammarMatcher:
    """Binds from the first token on.  Raises `CannotBind`."""

    def __init__(self, constraint: m.Constraint, model: Model) -> None:
        self._model = model
        self._lib, self._ffi = model.library.lib, model.library.ffi
        text = constraint.text
        if not constraint.is_made:
            try:
                gbnf.check(text, self._is_token)
            except gbnf.BadGrammar as error:
                raise CannotBind(str(error)) from None
        elif len(text) > MAX_MADE_GRAMMAR:
            raise CannotBind(f"the tools make a grammar of {len(text)} characters")
        self._sampler: Any = self._lib.llama_sampler_init_grammar(
            model.vocab, text.encode("utf-8", "replace"), b"root"
        )
        if self._sampler == self._ffi.NULL:
            raise CannotBind("libllama refuses it")
        kind = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        self._rows = np.zeros(model.n_vocab, kind)
        self._bits = np.zeros(-(-model.n_vocab // 32) * 32, bool)
        self._array = self._ffi.new("llama_token_data_array *")
        self._array.data = self._ffi.cast("llama_token_data *", self._rows.ctypes.data)
        if constraint.begun:
            self.accept_text(constraint.begun)

    def accept(self, tokens: list[int]) -> None:
        """These came next."""
        for token in tokens:
            # libllama ends the process where it is given what it does not allow
            if not self._allowed(np.array([token], np.int32))[0]:
                raise CannotBind("the text does not follow the grammar")
            self._lib.llama_sampler_accept(self._sampler, token)

    def accept_text(self, text: str) -> None:
        """This came next, in whatever tokens."""
        tokens = tokens_of(self._model, text)
        pieces = [self._model.token_to_piece_bytes(token, special=True) for token in tokens]
        if b"".join(pieces) != text.encode():
            raise CannotBind("its beginning cannot be told in tokens of this model")
        self.accept(tokens)

    def mask(self) -> bytes:
        """Return the mask of tokens that may be next: int32 words, one bit for each token."""
        allowed = self._allowed(np.arange(self._model.n_vocab, dtype=np.int32))
        self._bits[: allowed.size] = allowed
        return np.packbits(self._bits, bitorder="little").tobytes()

    def _allowed(self, tokens: np.ndarray) -> np.ndarray:
        """bool: which of ``tokens`` int32 may be next."""
        rows = self._rows[: tokens.size]
        rows["id"], rows["logit"] = tokens, 0.0
        self._array.size, self._array.selected, self._array.sorted = tokens.size, -1, False
        self._lib.llama_sampler_apply(self._sampler, self._array)
        return rows["logit"] == 0.0

    def _is_token(self, text: str) -> bool:
        """Whether ``<text>`` or ``<[id]>`` of a grammar stands for one token."""
        if text.startswith("<["):
            return int(text[2:-2]) < self._model.n_vocab
        return len(self._model.tokenize(text, add_special=False)) == 1
