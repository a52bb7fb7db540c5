"""What `benchmarks.drafts` plays: the texts of each turn, and the cells that they need."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks import repeated_texts
from benchmarks.draft_tables import COPIES, PIECES, PLAIN
from benchmarks.repeated_texts import Text, Texts

KINDS = {
    COPIES: repeated_texts.COPIES, PIECES: repeated_texts.PIECES, PLAIN: repeated_texts.PLAIN,
}  # fmt: skip
STEP = 256  # cells of a context are a multiple of it
CHARACTERS = 2  # of a token, in the mean of a text, where the vocabulary is small
MOST_DRAFTED = 64  # tokens that a stream may have drafted at a time, on any side


class Turn(NamedTuple):
    """What all ways play once in a round; the warm-up is round -1."""

    run: int
    streams: int
    texts: str


def turns_of(options: argparse.Namespace, rounds: int) -> list[Turn]:
    return [
        Turn(run, streams, texts)
        for run in range(-1, rounds)
        for streams in map(int, options.streams.split(","))
        for texts in options.texts.split(",")
    ]


def texts_of(turn: Turn, options: argparse.Namespace) -> list[Text]:
    """Texts that no other turn has."""
    seed = random.Random(f"{options.seed} {turn}").getrandbits(48)
    source, kinds = Texts(seed, options.words, options.answer), KINDS[turn.texts]
    count = max(turn.streams, len(kinds))
    return [source.make(kinds[i % len(kinds)]) for i in range(count)]


def cells(texts: Sequence[Text]) -> int:
    """KV cells for all of these at once, with their drafts."""
    characters = sum(len(text.prompt) + len(text.answer) for text in texts)
    return -(-(characters // CHARACTERS + MOST_DRAFTED * len(texts)) // STEP) * STEP
