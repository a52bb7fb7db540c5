"""How many tokens a chunk has that is computed on cores of its own, by what others took."""

from __future__ import annotations

from umaserve.policy.cost.model import TILED
from umaserve.policy.processor.slices import SLICED_CHUNK

# tokens of one llama_decode; the largest that keeps to CHUNK_MS
CHUNKS = (SLICED_CHUNK, 64, 32, 16)
CHUNK_MS = 400.0  # a chunk of 16 tokens costs half as much again, per token, as one of 128
FIRST_CHUNK = 32  # while the rate is unknown
RATE_WEIGHT = 0.25  # of a new chunk in the running mean
DEEP = 256  # cells before a chunk, from which on it has no fewer than `TILED` tokens
HARDLY_MORE = 1.15  # times the tokens that a chunk may have: counts as so many


def even_share(left: int, most: int, strictly: bool = False) -> int:
    """Tokens of the next chunk of ``left``, where it may have ``most``.

    All are of a size, since few tokens at a prompt's end may take as long as many.  Where it may
    have as many as `TILED`, none has fewer, but rather up to twice as many.  Attention takes longer
    with 48 tokens than with 128.  ``strictly``: none has more than ``most``, since a chunk of this
    prompt was too long.
    """
    chunks = -(-left // most)
    if most >= TILED and not strictly:
        chunks = max(min(chunks, left // TILED), 1)
    return -(-left // chunks)


def counted(tokens: int, most: int) -> int:
    """As how many tokens a chunk counts that might have had ``most``.  A few more are as good as
    that many, so that what is learned is what was asked for."""
    return most if most < tokens <= HARDLY_MORE * most else tokens


class Pace:
    """``ms_per_token``: running mean of the last chunks; 0 = unknown."""

    def __init__(self) -> None:
        self.ms_per_token = 0.0

    def learn(self, tokens: int, wall_ms: float) -> None:
        """Take a chunk into account that ran by itself."""
        rate = wall_ms / tokens
        if not self.ms_per_token:
            self.ms_per_token = rate
        elif tokens >= CHUNKS[-1]:  # a few tokens cost nearly as much as many
            self.ms_per_token += RATE_WEIGHT * (rate - self.ms_per_token)

    def chunk(self, past: int) -> int:
        """Tokens of the next chunk behind ``past`` cells: as many as take ``CHUNK_MS``."""
        least = TILED if past >= DEEP else CHUNKS[-1]
        if not self.ms_per_token:
            return max(FIRST_CHUNK, least)
        fits = (n for n in CHUNKS if n * self.ms_per_token <= CHUNK_MS)
        return max(next(fits, CHUNKS[-1]), least)
