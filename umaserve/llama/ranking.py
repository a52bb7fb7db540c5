"""Tokens of a query with a document, as llama-server gives them to a model that ranks."""

from __future__ import annotations

import re

from umaserve.llama.model import Model

_PLACE = re.compile(r"\{(query|document)\}")


class RankPrompt:
    """Makes such tokens; safe for several threads.

    Models that generate have a template for it, called ``rerank``.  Others get the two texts with
    the vocabulary's own tokens around them.
    """

    def __init__(self, model: Model) -> None:
        lib, ffi, vocab = model.library.lib, model.library.ffi, model.vocab
        self._model = model
        self._template = model.template(ffi.new("char[]", b"rerank")) or ""
        sep = int(lib.llama_vocab_sep(vocab))
        ends = [model.token_eos if model.token_eos >= 0 else sep] if model.adds_eos else []
        self._start = [model.token_bos] if model.adds_bos else []
        self._between = [*ends, *([sep] if lib.llama_vocab_get_add_sep(vocab) else [])]
        self._end = self._tokens(self._parts("", "")[-1], True) if self._template else ends

    @property
    def n_end(self) -> int:
        """Tokens behind a document, 1 at least."""
        return max(len(self._end), 1)

    def tokens(self, query: str, document: str) -> list[int]:
        """Token ids of a query with a document.  Raises ``ValueError`` as `Model.tokenize` does."""
        if not self._template:
            texts = self._tokens(query, False), self._tokens(document, False)
            return [*self._start, *texts[0], *self._between, *texts[1], *self._end]
        parts = self._parts(query, document)
        if all(self._tokens(each, True) == self._tokens(each, False) for each in parts[1::2]):
            return self._tokens("".join(parts), True)
        # the text of a control token in a query or a document is no control token
        found: list[int] = []
        for at, part in enumerate(parts):
            found += self._tokens(part, at % 2 == 0)
        return found

    def _parts(self, query: str, document: str) -> list[str]:
        """The template's own parts at even places, the texts between them at odd ones."""
        parts = _PLACE.split(self._template)
        texts = {"query": query, "document": document}
        return [texts[part] if at % 2 else part for at, part in enumerate(parts)]

    def _tokens(self, text: str, parse_special: bool) -> list[int]:
        return self._model.tokenize(text, add_special=False, parse_special=parse_special)
