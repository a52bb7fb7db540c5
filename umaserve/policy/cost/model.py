"""Cost of ticks by their shape, learned from the ticks of this machine.

The cost of a batch is neither linear nor monotonic in its size: eight rows can be cheaper than
five.  Therefore no curve is fitted.  There is one running mean for each shape of batch, by decoding
rows, prompt tokens and mode (all threads, or a prompt beside the ticks).  Only the part that grows
with the KV cells that each token attends to (``past``) is taken as linear.  It has a slope for
batches of fewer than `TILED` tokens, and another for larger ones.  `prediction` reads the means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from umaserve.jit.compiled import INNER, njit
from umaserve.jit.record import Record

# largest number of decoding rows, and of prompt tokens, in each class; `TILED` begins one
ROW_EDGES = np.array([*range(9), 10, 12, 16, 20, 24, 32, 48, 64, 128, 256, 1 << 20], np.int64)
PROMPT_EDGES = np.array(
    [*range(9), 12, 16, 24, 32, 48, 63, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
     4096, 1 << 20], np.int64
)  # fmt: skip
N_ROWS, N_PROMPTS = ROW_EDGES.size, PROMPT_EDGES.size
MODES = 2
# From so many tokens of a batch on, libllama's attention on a processor has a faster kernel
# (``ggml_compute_forward_flash_attn_ext_tiled``): behind 2,000 cells 64 take a seventh of 63's time
TILED = 64

SURE = 2.0  # ticks after which a shape's mean is believed
SLOWEST = 1 / 32  # weight of a new tick at least
WILD = 2.5  # a tick this many times its shape's mean counts as that many times, no more
STALLED = 0.5  # a tick so far off its prediction says nothing about the slope
STALLS, LEAST_OFF = 3.0, 0.01  # deviations (and shares of the mean) that one tick counts as at most
FLAT = (20.0, 200.0)  # squares that each slope has to outweigh
FORGET = 0.998  # of the sums behind the slope, per tick
# Other programs come and go, so confidence ages: what was not seen lately is looked at again.
MOST_SURE = 32.0  # counts go no further
FADE_EVERY, FADE, FADED = 64.0, 0.8, 3.0  # every so many ticks all counts shrink, down to that
FRESH = 6.0  # ticks after which a shape that had faded is believed as any other
# weight of a tick until then, if it took less than it was believed to take.  One that took so much
# less leaves the shape as doubtful as it was
RELIEF, RELIEVED = 0.5, 0.9
IN_USE = 24.0  # fewer: not one of the shapes of these ticks, whose counts fade once between two
# prompt tokens of the chunks that are computed beside the ticks
CHUNK_SIZES = np.array([16, 32, 48, 64, 96, 128, 192, 256, 384, 512], np.int64)
FADES = 0.97  # of the time of a part, for each chunk of a smaller size
# of the time of all parts, after a restart: what was too long, and so not used, is tried once more
PARTS_DOUBT = 0.7
CHUNK_WEIGHT = 1 / 4  # of a new chunk
# Ticks of streams alone are counted in classes of so much, from 1.0 to WILD.  An old tick counts
# less, so that the first ones, predicted badly, are forgotten after some hundred.
TAIL_WIDTH, TAIL_CLASSES = 0.02, 75
TAIL_FADE, TAIL_DOUBT = 1.0 - 1.0 / 256.0, 0.25


class Tail(Record):
    """How ticks of streams alone differ from their prediction."""

    times: float  # how many times longer they take (their 95th percentile)
    seen: float  # how many were seen


class CostModel(NamedTuple):
    """Running means in milliseconds; ``count`` 0 = shape not seen yet.  One instance per engine.

    By shape, float64[MODES, N_ROWS, N_PROMPTS]:

    - ``mean``, and ``spread``: the mean absolute deviation.
    - ``count``: confidence rather than history.  It grows by one with each tick of the shape, up to
      ``MOST_SURE``, and fades while other shapes are used.
    - ``tokens``, ``rows``: mean prompt tokens and decoding rows.
    - ``kv``: ``past`` when first seen.

    By size of a chunk beside the ticks (CHUNK_SIZES), 0 = not measured:

    - ``longest`` float64[sizes]: ms of its longest part.  ``parts``: of all its parts together.

    By interactive rows, with nobody else about:

    - ``tails`` Tail[N_ROWS].
    - ``tail_counts`` float64[N_ROWS, TAIL_CLASSES]: ticks of each length, fading.

    Of all ticks:

    - ``slope`` float64[2, 3]: sums xy and xx, and ms per token and thousand cells (`TILED`).
    - ``error`` float64[2]: running mean of |predicted - measured| / measured, and its count.
    - ``ticks`` float64[1]: since counts faded.

    Not learned: ``filled`` float64[1], tokens up to which a short prompt's tick is filled, or 0.
    """

    mean: np.ndarray
    spread: np.ndarray
    count: np.ndarray  # type: ignore[assignment]  # a tuple has a method of that name
    tokens: np.ndarray
    rows: np.ndarray
    kv: np.ndarray
    slope: np.ndarray
    error: np.ndarray
    ticks: np.ndarray
    longest: np.ndarray
    parts: np.ndarray
    tails: np.ndarray
    tail_counts: np.ndarray
    filled: np.ndarray

    @classmethod
    def unknown(cls) -> CostModel:
        shape = (MODES, N_ROWS, N_PROMPTS)
        arrays = [np.zeros(shape) for _ in range(6)]
        chunks = [np.zeros(CHUNK_SIZES.size) for _ in range(2)]
        tails = Tail.several(N_ROWS), np.zeros((N_ROWS, TAIL_CLASSES))
        of_all = np.zeros((2, 3)), np.zeros(2), np.zeros(1)
        return cls._make([*arrays, *of_all, *chunks, *tails, np.zeros(1)])

    @classmethod
    def of(cls, numbers: Mapping[str, np.ndarray]) -> CostModel:
        """A new one from what `numbers` gave; ValueError where a shape is another."""
        made = cls.unknown()
        for name, mine in made.numbers().items():
            if numbers[name].shape != mine.shape:
                raise ValueError(f"{name} has the shape {numbers[name].shape}, not {mine.shape}")
            mine[...] = numbers[name]
        return made

    def numbers(self) -> dict[str, np.ndarray]:
        """Views of all that was learned, float64, by field; a record's fields are the last axis."""
        return {
            name: array.view(np.float64).reshape(*array.shape, -1) if array.dtype.names else array
            for name, array in self._asdict().items()
            if name != "filled"
        }

    def forget(self) -> None:
        """Start over, for instance after ticks that were not representative."""
        for array in self.numbers().values():
            array[...] = 0.0

    def copy_from(self, other: CostModel) -> None:
        for name, theirs in other.numbers().items():
            self.numbers()[name][...] = theirs

    def doubt(self) -> None:
        """Believe it no more than after a long absence: for costs of an earlier run."""
        np.minimum(self.count, FADED, out=self.count)
        self.parts[:] *= PARTS_DOUBT
        self.tail_counts[:] *= TAIL_DOUBT


@njit(**INNER)
def row_class(rows):
    return _class_of(ROW_EDGES, rows)


@njit(nogil=True, cache=True)
def prompt_class(tokens):
    return _class_of(PROMPT_EDGES, tokens)


@njit(**INNER)
def _class_of(edges, n):
    """The first class whose largest number is no smaller than ``n``."""
    i = min(n, 9)
    while edges[i] < n:
        i += 1
    return i


@njit(nogil=True, cache=True)
def at_fill(cost, mode, r, p, rows, prompt, past):
    """The mean of a known shape, moved to this fill of the KV cache."""
    tokens = rows + prompt
    value = cost.mean[mode, r, p]
    value += cost.slope[int(tokens >= TILED), 2] * tokens * (past - cost.kv[mode, r, p]) / 1000.0
    return max(value, 0.3 * cost.mean[mode, r, p])


@njit(nogil=True, cache=True)
def learn(cost, mode, rows, prompt, past, wall_ms):
    """Take one finished tick into account; a value far off moves a mean only a little."""
    if rows + prompt == 0 or wall_ms <= 0.0:
        return
    _fade(cost)
    r, p = row_class(rows), prompt_class(prompt)
    n = cost.count[mode, r, p]
    if n == 0.0:
        cost.mean[mode, r, p] = wall_ms
        cost.spread[mode, r, p] = 0.1 * wall_ms
        cost.tokens[mode, r, p] = prompt
        cost.rows[mode, r, p] = rows
        cost.kv[mode, r, p] = past
        cost.count[mode, r, p] = 1.0
        return
    expected = at_fill(cost, mode, r, p, rows, prompt, past)
    kind = int(rows + prompt >= TILED)
    slope = cost.slope[kind]
    x = (rows + prompt) * (past - cost.kv[mode, r, p]) / 1000.0
    if n == 1.0:
        bounded = min(wall_ms, expected)  # the first of a shape often pays for buffers
    else:
        bounded = min(max(wall_ms, expected / WILD), expected * WILD)
        miss = abs(wall_ms - expected) / wall_ms
        cost.error[1] = min(cost.error[1] + 1.0, 1000.0)
        cost.error[0] += (miss - cost.error[0]) / min(cost.error[1], 200.0)
        y = bounded - cost.mean[mode, r, p]
        if abs(x) > 0.05 and abs(bounded - expected) < STALLED * expected:
            slope[0] = slope[0] * FORGET + x * y
            slope[1] = slope[1] * FORGET + x * x
            # a weight of its own keeps a few ticks from making a slope
            slope[2] = max(slope[0] / (slope[1] + FLAT[kind]), 0.0)
    weight = max(1.0 / (n + 1.0), SLOWEST)
    level = bounded - slope[2] * x
    # decoders that take turns, merged for a look: noise only adds, so what was learned is old
    unused = rows > 1 and prompt == 0 and n < IN_USE
    relieved = n >= SURE and level < RELIEVED * cost.mean[mode, r, p] and (n <= FADED or unused)
    if level < cost.mean[mode, r, p] and (n < FRESH or relieved):
        weight = max(weight, RELIEF)
    if n == 1.0:
        weight = 1.0
    cost.mean[mode, r, p] += weight * (level - cost.mean[mode, r, p])
    # a stall is not what a 95th percentile is about: it would raise it for a hundred ticks
    off = min(abs(bounded - expected), STALLS * cost.spread[mode, r, p] + LEAST_OFF * expected)
    cost.spread[mode, r, p] += weight * (off - cost.spread[mode, r, p])
    cost.tokens[mode, r, p] += weight * (prompt - cost.tokens[mode, r, p])
    cost.rows[mode, r, p] += weight * (rows - cost.rows[mode, r, p])
    cost.count[mode, r, p] = min(n, FADED) if relieved else min(n + 1.0, MOST_SURE)


@njit(**INNER)
def _fade(cost):
    cost.ticks[0] += 1.0
    if cost.ticks[0] < FADE_EVERY:
        return
    cost.ticks[0] = 0.0
    for mode in range(MODES):
        for r in range(N_ROWS):
            for p in range(N_PROMPTS):
                n = cost.count[mode, r, p]
                if n > FADED:
                    cost.count[mode, r, p] = max(n * FADE, FADED)


@njit(nogil=True, cache=True)
def chunk_class(tokens):
    """The entry of ``cost.longest`` for a chunk: the smallest size that is no smaller."""
    i = 0
    while i < CHUNK_SIZES.size - 1 and CHUNK_SIZES[i] < tokens:
        i += 1
    return i


@njit(nogil=True, cache=True)
def learn_part(cost, tokens, longest_ms, all_ms):
    """Take the parts of a chunk beside the ticks into account: the longest one, and all."""
    i = chunk_class(tokens)
    cost.longest[i] = _nearer(cost.longest[i], longest_ms)
    cost.parts[i] = _nearer(cost.parts[i], all_ms)


@njit(nogil=True, cache=True)
def doubt_larger(cost, tokens):
    """After a chunk, believe a little less what parts of larger ones take.

    Where others use the same cores it may have been they who made them long; so they are tried
    again, some dozen chunks later.
    """
    for i in range(chunk_class(tokens) + 1, CHUNK_SIZES.size):
        cost.longest[i] *= FADES


@njit(**INNER)
def _nearer(known, new):
    return known + CHUNK_WEIGHT * (min(new, WILD * known) - known) if known > 0.0 else new


@njit(nogil=True, cache=True)
def learn_tail(cost, rows, times):
    """Learn from a tick of so many streams that took so many times longer than predicted."""
    r = row_class(rows)
    tail = cost.tails[r]
    tail.seen = min(tail.seen + 1.0, 1e6)
    tail.times = _count(cost.tail_counts[r], times, TAIL_WIDTH, TAIL_FADE)


@njit(**INNER)
def _count(counts, times, width, fade):
    """Count ``times`` in its class, from 1.0 on, after all counts faded; their 95th percentile."""
    for i in range(counts.size):
        counts[i] *= fade
    at = int((max(times, 1.0) - 1.0) / width)
    counts[min(at, counts.size - 1)] += 1.0
    above = 0.05 * counts.sum()
    for i in range(counts.size - 1, -1, -1):
        if counts[i] >= above:
            return 1.0 + width * (i + 1.0 - above / counts[i])
        above -= counts[i]
    return 1.0
