"""The tokens that a model puts around a text: once, also where the text has them already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from umaserve.llama.model import Model


class Specials:
    """Tokenises texts with the start and end tokens of a model; safe for several threads.

    libllama tokenises a text alike with and without these, and adds its own beside those that
    the text has.  So they are added here.
    """

    def __init__(self, model: Model) -> None:
        lib, bos = model.library.lib, model.token_bos
        self.model = model
        self.bos = [bos] if bos >= 0 else []  # the start token
        added = model.tokenize("", add_special=True)
        # a model without the one may end its texts with a token that is also the start token
        starts = added[:1] == self.bos and (added[1:] or lib.llama_vocab_get_add_bos(model.vocab))
        self._start, self._end = (added[:1], added[1:]) if starts else ([], added)

    def tokenize(
        self,
        text: str,
        *,
        add_bos: bool | None = None,
        parse_special: bool = True,
        plain: Iterable[tuple[int, int]] = (),
        inserted: Iterable[tuple[int, list[int]]] = (),
    ) -> list[int]:
        """Token ids of ``text`` with what the model adds.

        ``plain`` are spans of it, in order, where no text of a control token is one.  They begin
        and end where the text does, or at such a token, so that nothing else is cut in two.

        ``inserted`` are tokens in front of characters of the text, in order.  The texts around them
        are tokenised apart.

        ``add_bos``: ``None`` adds the start token if the model wants one and the text does not
        begin with it.  ``True`` adds it in any case where the model has one, ``False`` in none.  An
        end token that the text has already is not added.  Raises ``ValueError`` as
        ``Model.tokenize`` does.
        """
        tokens: list[int] = []
        begin, spans = 0, list(plain)
        for at, ids in [*inserted, (len(text), [])]:
            for part, is_plain in _parts(text[begin:at], _clipped(spans, begin, at)):
                parse = parse_special and not is_plain
                tokens += self.model.tokenize(part, add_special=False, parse_special=parse)
            tokens += ids
            begin = at
        if add_bos is None:
            start = [] if tokens[:1] == self._start else self._start
        else:
            start = self.bos if add_bos else []
        end = [] if tokens[-1:] == self._end else self._end
        return [*start, *tokens, *end]


def _clipped(spans: list[tuple[int, int]], begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The spans as a part of the text has them."""
    for first, last in spans:
        if max(first, begin) < min(last, end):
            yield max(first, begin) - begin, min(last, end) - begin


def _parts(text: str, plain: Iterable[tuple[int, int]]) -> Iterator[tuple[str, bool]]:
    """The parts of a text, and whether each is plain; none is empty, unless the text is."""
    at = 0
    for start, end in plain:
        if at < start:
            yield text[at:start], False
        yield text[start:end], True
        at = end
    if at < len(text) or not at:
        yield text[at:], False
