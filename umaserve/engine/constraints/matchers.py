"""What follows the tokens of one answer and says which may be next.

Schemas and regular expressions are llguidance's, grammars (GBNF) libllama's.  Both release the GIL
while they compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from umaserve.sampling.mask import words_of
from umaserve.wire import messages as m

from . import gbnf

if TYPE_CHECKING:
    from .vocabulary import Vocabulary

MAX_MADE_GRAMMAR = 4 << 20  # bytes of a grammar that uma-chat has made of tools
MAX_WHY = 400  # characters
# of white space there is an end: a model that likes it would go on for ever
_OPTIONS: Any = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,20}"}


class CannotBind(ValueError):
    """The constraint cannot be met or compiled; the text says why."""


class Matcher(Protocol):
    """Of one answer, from its first token on; for one thread."""

    def accept(self, tokens: list[int]) -> None:
        """These came next.  Raises `CannotBind`."""

    def fill(self, mask: np.ndarray) -> bool:
        """Write into ``mask`` int32[words] what may be next; False: anything.  May raise."""

    def close(self) -> None:
        """Free what is not Python's."""


def matcher_of(constraint: m.Constraint, vocabulary: Vocabulary) -> Matcher:
    """Compile a constraint.  Raises `CannotBind`; takes up to some 100 ms."""
    if constraint.kind == m.GRAMMAR:
        return GrammarMatcher(constraint, vocabulary)
    return SchemaMatcher(constraint, vocabulary)


class SchemaMatcher:
    """A JSON schema or a regular expression."""

    def __init__(self, constraint: m.Constraint, vocabulary: Vocabulary) -> None:
        from llguidance import LLMatcher, LLParserLimits

        text = constraint.text
        try:
            if constraint.kind == m.REGEX:
                grammar = LLMatcher.grammar_from_regex(text)
            elif text == "false":
                raise CannotBind("it allows nothing")
            else:
                schema = "{}" if text == "true" else text
                grammar = LLMatcher.grammar_from_json_schema(schema, overrides=_OPTIONS)
        except ValueError as error:
            raise CannotBind(_in_a_line(str(error))) from None
        limits = LLParserLimits(verbose_errors=False)
        self._matcher = LLMatcher(vocabulary.get(), grammar, log_level=0, limits=limits)
        self._check()

    def accept(self, tokens: list[int]) -> None:
        for token in tokens:
            self._matcher.consume_token(token)
        self._check()

    def fill(self, mask: np.ndarray) -> bool:
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._check()
        return True

    def close(self) -> None:
        pass

    def _check(self) -> None:
        if self._matcher.is_error():
            raise CannotBind(_in_a_line(self._matcher.get_error()))


class GrammarMatcher:
    """A grammar in GBNF, from the first token on or from a trigger on.

    Before a trigger is written anything may come.  libllama looks for triggers with ``std::regex``,
    which calls itself for every character.  So they are looked for here, and it gets what follows.
    """

    def __init__(self, constraint: m.Constraint, vocabulary: Vocabulary) -> None:
        self._model = vocabulary.model
        self._lib, self._ffi = self._model.library.lib, self._model.library.ffi
        self._sampler: Any = self._ffi.NULL
        text = constraint.text
        if constraint.is_made:
            if len(text) > MAX_MADE_GRAMMAR:
                raise CannotBind(f"the tools make a grammar of {len(text)} characters")
        else:
            try:
                gbnf.check(text, vocabulary.is_token)
            except gbnf.BadGrammar as error:
                raise CannotBind(str(error)) from None
        self._sampler = self._lib.llama_sampler_init_grammar(
            self._model.vocab, text.encode("utf-8", "replace"), b"root"
        )
        if self._sampler == self._ffi.NULL:
            raise CannotBind("libllama refuses it")
        self._triggers = [word.encode() for word in constraint.triggers]
        self._waits = bool(self._triggers)
        self._text = b""  # while it waits: the end of the text, as long as a trigger may be
        n_vocab = self._model.n_vocab
        kind = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        self._rows = np.zeros(n_vocab, kind)
        self._bits = np.zeros(32 * words_of(n_vocab), bool)
        self._array = self._ffi.new("llama_token_data_array *")
        self._array.data = self._ffi.cast("llama_token_data *", self._rows.ctypes.data)
        try:
            if constraint.begun:
                self._accept_text(constraint.begun)
        except CannotBind:
            self.close()
            raise

    def accept(self, tokens: list[int]) -> None:
        for token in tokens:
            if self._waits:
                self._look_for_trigger(token)
            else:
                self._accept(token)

    def fill(self, mask: np.ndarray) -> bool:
        if self._waits:
            return False
        allowed = self._allowed(np.arange(self._model.n_vocab, dtype=np.int32))
        self._bits[: allowed.size] = allowed
        mask[:] = np.packbits(self._bits, bitorder="little").view(np.int32)
        return True

    def close(self) -> None:
        sampler, self._sampler = self._sampler, self._ffi.NULL
        if sampler != self._ffi.NULL:
            self._lib.llama_sampler_free(sampler)

    def _allowed(self, tokens: np.ndarray) -> np.ndarray:
        """bool: which of ``tokens`` int32 may be next."""
        rows = self._rows[: tokens.size]
        rows["id"], rows["logit"] = tokens, 0.0
        self._array.size, self._array.selected, self._array.sorted = tokens.size, -1, False
        self._lib.llama_sampler_apply(self._sampler, self._array)
        return rows["logit"] == 0.0

    def _accept(self, token: int) -> None:
        # libllama ends the process where it is given what it does not allow
        if not self._allowed(np.array([token], np.int32))[0]:
            raise CannotBind("the text does not follow the grammar")
        self._lib.llama_sampler_accept(self._sampler, token)

    def _accept_text(self, text: str) -> None:
        tokens = self._model.tokenize(text, add_special=False)
        pieces = [self._model.token_to_piece_bytes(token, special=True) for token in tokens]
        if pieces[:1] == [b" "] and not text.startswith(" "):
            del tokens[0], pieces[0]  # some tokenizers begin every text with a space
        if b"".join(pieces) != text.encode():
            raise CannotBind("its beginning cannot be told in tokens of this model")
        for token in tokens:
            self._accept(token)

    def _look_for_trigger(self, token: int) -> None:
        self._text += self._model.token_to_piece_bytes(token, special=True)
        found = [at for at in map(self._text.find, self._triggers) if at >= 0]
        if not found:
            self._text = self._text[-max(map(len, self._triggers)) :]
            return
        self._waits = False
        # the trigger may begin amid a token, and libllama takes whole ones
        self._accept_text(self._text[min(found) :].decode("utf-8", "replace"))


def _in_a_line(text: str) -> str:
    return " ".join(text.split())[:MAX_WHY] or "it cannot be followed"
