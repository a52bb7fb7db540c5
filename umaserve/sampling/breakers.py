"""DRY's sequence breakers: from strings to token sequences, as llama.cpp makes them.

A breaker is a string, and tokens rarely begin where it does.  So every token of the vocabulary is
looked at as a head.  Where its text contains the breaker, the token alone breaks a sequence.  Where
its text ends with the breaker's beginning, the tokens of the rest (the tail) have to follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from umaserve.llama import Model
from umaserve.wire.messages import Sampling

MAX_BREAKER_BYTES = 40  # a longer one is cut off, as in llama.cpp
MAX_TAIL = 20  # tokens

Heads = dict[int, list[tuple[int, ...]]]


class Words:
    """The texts of a vocabulary, searched as one piece of memory.

    Token i reads ``data[offsets[i]:offsets[i + 1]]`` (int32[n_vocab + 1], uint8[]; borrowed).
    ``others`` are texts of tokens that are empty there: control tokens.
    """

    def __init__(
        self, offsets: np.ndarray, data: np.ndarray, others: dict[int, bytes] | None = None
    ) -> None:
        self.n_vocab = offsets.size - 1
        self._starts, self._ends, self._data = offsets[:-1], offsets[1:], data
        self._others = others or {}

    def containing(self, text: bytes) -> list[int]:
        """Tokens with ``text`` somewhere in theirs."""
        starts = max(self._data.size - len(text) + 1, 0)
        found = np.flatnonzero(self._data[:starts] == text[0])
        for j in range(1, len(text)):
            found = found[self._data[found + j] == text[j]]
        tokens = np.searchsorted(self._ends, found, side="right")
        tokens = np.unique(tokens[found + len(text) <= self._ends[tokens]])
        return tokens.tolist() + [t for t, word in self._others.items() if text in word]

    def ending(self, text: bytes) -> list[int]:
        """Tokens whose text ends with ``text``."""
        tokens = np.flatnonzero(self._ends - self._starts >= len(text))
        for j in range(1, len(text) + 1):
            tokens = tokens[self._data[self._ends[tokens] - j] == text[-j]]
        return tokens.tolist() + [t for t, word in self._others.items() if word.endswith(text)]


def find_heads(
    breakers: Sequence[bytes], words: Words, tokenize: Callable[[bytes], list[int]]
) -> Heads:
    """Head token -> its tails (the empty one first), for UTF-8 ``breakers``.

    ``tokenize`` adds no special tokens and reads none.  Source: ``get_overlapping_token_sequences``
    of ``llama-sampler.cpp``.
    """
    heads: Heads = {}
    for breaker in breakers:
        text = breaker[:MAX_BREAKER_BYTES]
        if not text:
            continue
        alone = set(words.containing(text))
        for token in alone:
            _add(heads, token, ())
        for length in range(1, len(text)):
            tokens = [t for t in words.ending(text[:length]) if t not in alone]
            if tokens:
                tail = tuple(tokenize(text[length:])[:MAX_TAIL])
                for token in tokens:
                    _add(heads, token, tail)
    for found in heads.values():
        found.sort(key=len)
    return heads


def _add(heads: Heads, token: int, tail: tuple[int, ...]) -> None:
    found = heads.setdefault(token, [])
    if tail not in found:
        found.append(tail)


def pack(heads: Heads, n_vocab: int) -> np.ndarray:
    """``heads`` as one int32 array that compiled code reads.

    ``n_vocab``, then one entry a token: 0, or where in the array its tails are: how many, and each
    as its length and its tokens.  Without heads it is the single number 0.
    """
    if not heads:
        return np.zeros(1, np.int32)
    index = np.zeros(n_vocab, np.int32)
    data: list[int] = []
    known: dict[tuple[tuple[int, ...], ...], int] = {}  # most heads have the same, empty tail
    for token, tails in heads.items():
        key = tuple(tails)
        if key not in known:
            known[key] = 1 + n_vocab + len(data)
            data.append(len(tails))
            for tail in tails:
                data += [len(tail), *tail]
        index[token] = known[key]
    return np.concatenate([np.array([n_vocab], np.int32), index, np.array(data, np.int32)])


class BreakerCache:
    """Packed breakers by their strings; making them takes some milliseconds.

    ``words`` is called when the first request with breakers comes.
    """

    def __init__(
        self, words: Callable[[], Words], tokenize: Callable[[bytes], list[int]], keep: int = 16
    ) -> None:
        self._make_words = words
        self._words: Words | None = None
        self._tokenize = tokenize
        self._keep = keep
        self._packed: dict[tuple[str, ...], np.ndarray] = {}

    @classmethod
    def of_model(cls, model: Model) -> BreakerCache:
        """For the vocabulary of an open model, which is kept alive."""

        def words() -> Words:
            offsets, data = model.piece_table()
            empty = np.flatnonzero(np.diff(offsets) == 0).tolist()
            others = {token: model.token_to_piece_bytes(token, special=True) for token in empty}
            return Words(offsets, data, others)

        def tokenize(text: bytes) -> list[int]:
            return model.tokenize(
                text.decode("utf-8", "replace"), add_special=False, parse_special=False
            )

        return cls(words, tokenize)

    def of(self, sampling: Sampling) -> np.ndarray | None:
        """Return the breakers for ``SamplerTable.set``; None where the request uses no DRY."""
        if sampling.dry_multiplier == 0.0 or sampling.mirostat:
            return None
        return self.get(sampling.dry_sequence_breakers)

    def get(self, breakers: tuple[str, ...]) -> np.ndarray:
        """int32[] as ``pack`` makes it; the same object for the same strings."""
        packed = self._packed.pop(breakers, None)
        if packed is None:
            if self._words is None:
                self._words = self._make_words()
            encoded = [text.encode("utf-8", "replace") for text in breakers]
            packed = pack(find_heads(encoded, self._words, self._tokenize), self._words.n_vocab)
        self._packed[breakers] = packed  # the newest is the last
        while len(self._packed) > self._keep:
            del self._packed[next(iter(self._packed))]
        return packed
